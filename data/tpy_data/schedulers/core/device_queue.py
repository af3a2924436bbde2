"""DeviceQueue: the FairQueue of a model that shares devices with others, by the rate limiter.

A tenant has one start for all such models, so the time that it had on one of them counts on the others. The starts never begin
anew: a tenant that begins to wait, and waits for none of these models, starts at their common virtual time, unless it is ahead.
"""

from __future__ import annotations

from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.fair_queue import FairQueue, Line
from tpy_data.schedulers.core.tenants import Tenant, Tenants


class DeviceLine(Line):
    """A tenant's tickets in one queue; its start and what it owes are those of the tenant."""

    __slots__ = ()

    def __init__(self, number: int, tenant: Tenant, options: DynamicOptions) -> None:
        start, owed = tenant.device_start, tenant.device_owed
        super().__init__(number, tenant, options)  # which sets them to zero
        tenant.device_start, tenant.device_owed = start, owed
        tenant.device_lines.add(self)

    @property
    def start(self) -> int:
        """As `Line.start`."""
        return self.tenant.device_start

    @start.setter
    def start(self, start: int) -> None:
        self.tenant.device_start = start

    @property
    def owed(self) -> int:
        """As `Line.owed`."""
        return self.tenant.device_owed

    @owed.setter
    def owed(self, owed: int) -> None:
        self.tenant.device_owed = owed


class DeviceQueue(FairQueue):
    """See the module."""

    __slots__ = ()

    @property
    def _virtual(self) -> int:
        return self._tenants.device_virtual

    @_virtual.setter
    def _virtual(self, virtual: int) -> None:
        self._tenants.device_virtual = max(self._tenants.device_virtual, virtual)

    def _make_line(self, tenant: Tenant) -> Line:
        return DeviceLine(self._numbers, tenant, self._options)

    def _start(self, line: Line) -> None:
        if any(other.count for other in line.tenant.device_lines):
            return  # a start may not fall while the tenant waits
        line.start = max(self._virtual, line.start + line.owed * line.tenant.unit)
        line.owed = 0


def fair_queue(options: DynamicOptions, tenants: Tenants) -> FairQueue:
    """The queue of a model with these options."""
    return DeviceQueue(options, tenants) if tenants.is_rate_limited and options.shares_devices else FairQueue(options, tenants)
