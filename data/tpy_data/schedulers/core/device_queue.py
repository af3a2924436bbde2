"""DeviceQueue: the FairQueue of a model that shares devices with others, by the rate limiter.

Between two batches of a tenant here, its clock of this queue also goes on by the time that it has on the other models, by at most
DEVICE_DEBT_BATCHES times its part of the first of the two. The clocks stay those of this queue: a tenant that begins to wait
starts where the others of this queue are, however long other models run, and one that is served much elsewhere is passed over
here only until each of the others has had so much.

Queues are not told of batches elsewhere: a clock is brought up to now when the tenant is looked at. It only moves forward then,
as FairQueue demands of the start of a tenant that waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpy.limits.tenants import DEVICE_DEBT_BATCHES
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.fair_queue import FairQueue, Line
from tpy_data.schedulers.core.tenants import Tenants


class DeviceQueue(FairQueue):
    """See the module. `Line.device_ns` is how much of the tenant's `device_ns` the clock here has seen, `Line.spare_ns` how far
    it may still go on for other models until the tenant's next batch here."""

    __slots__ = ()

    def executed(self, tickets: Sequence[Ticket], took_ns: int) -> None:
        """As `FairQueue.executed`."""
        super().executed(tickets, took_ns)
        if took_ns <= 0:
            return
        rows = sum([ticket.batch_size for ticket in tickets])
        parts: dict[Line, int] = {}
        for ticket in tickets:
            line = ticket.line
            self._start_of(line)  # what was elsewhere until now counts up to the bound of the batch before
            cost = took_ns * ticket.batch_size // rows
            line.tenant.device_ns += cost
            line.device_ns += cost
            parts[line] = parts.get(line, 0) + cost
        for line, part in parts.items():
            line.spare_ns = DEVICE_DEBT_BATCHES * part

    def _start(self, line: Line) -> None:
        self._start_of(line)
        period = line.period
        super()._start(line)
        if line.period != period:  # all start anew: what was elsewhere before is forgotten
            line.spare_ns = 0

    def _start_of(self, line: Line) -> int:
        tenant = line.tenant
        elsewhere_ns = tenant.device_ns - line.device_ns
        if elsewhere_ns:
            line.device_ns = tenant.device_ns
            counted_ns = min(elsewhere_ns, line.spare_ns)
            line.spare_ns -= counted_ns
            line.start += counted_ns * tenant.unit
        return line.start

    def _first(self) -> Line | None:
        while (line := super()._first()) is not None:
            start = line.start
            if self._start_of(line) == start:
                break
        return line


def fair_queue(options: DynamicOptions, tenants: Tenants) -> FairQueue:
    """The queue of a model with these options."""
    return DeviceQueue(options, tenants) if tenants.is_rate_limited and options.shares_devices else FairQueue(options, tenants)
