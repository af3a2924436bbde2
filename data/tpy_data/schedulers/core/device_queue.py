"""DeviceQueue: the FairQueue of a model that shares devices with others, by the rate limiter.

The time that a tenant had on the other models since its last batch here is added to what that batch cost it, up to a bound of
DEVICE_DEBT_BATCHES times the batch. The clocks stay those of this queue: a tenant that begins to wait starts where the others of
this queue are, however long other models run, and one that is served much elsewhere is passed over here for that bound only.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpy.limits.tenants import DEVICE_DEBT_BATCHES
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.fair_queue import FairQueue, Line
from tpy_data.schedulers.core.tenants import Tenants


class DeviceQueue(FairQueue):
    """See the module. `Line.device_ns` is how much of the tenant's `device_ns` it has been charged here, or was spared."""

    __slots__ = ()

    def executed(self, tickets: Sequence[Ticket], took_ns: int) -> None:
        """As `FairQueue.executed`."""
        super().executed(tickets, took_ns)
        if took_ns <= 0:
            return
        rows = sum([ticket.batch_size for ticket in tickets])
        for ticket in tickets:
            line = ticket.line
            tenant = line.tenant
            line.owed += min(tenant.device_ns - line.device_ns, DEVICE_DEBT_BATCHES * took_ns)
            tenant.device_ns += took_ns * ticket.batch_size // rows
            line.device_ns = tenant.device_ns

    def _start(self, line: Line) -> None:
        period = line.period
        super()._start(line)
        if line.period != period:  # all start anew: what was elsewhere before is forgotten
            line.device_ns = line.tenant.device_ns


def fair_queue(options: DynamicOptions, tenants: Tenants) -> FairQueue:
    """The queue of a model with these options."""
    return DeviceQueue(options, tenants) if tenants.is_rate_limited and options.shares_devices else FairQueue(options, tenants)
