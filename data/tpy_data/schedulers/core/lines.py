"""The places where tickets wait: a level of a queue, the line of a tenant. Of any kind of ticket, as a ticket names its line."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules

if TYPE_CHECKING:
    from tpy_data.schedulers.core.tenants import Tenant  # which a server without tenants does not need

TicketT = TypeVar("TicketT", bound=Hashable)


class TicketLevel(Generic[TicketT]):
    """One priority level: unexpired tickets in order of arrival, and tickets whose time in the queue is over but that are kept
    (DELAY), in order of that time. Linked dictionaries, because a ticket may leave from the middle at any moment."""

    __slots__ = ("delayed", "index", "rules", "size_max", "waiting")

    def __init__(self, index: int, rules: QueueRules) -> None:
        self.index = index
        self.rules = rules
        self.size_max = rules.queue_size_max or math.inf
        self.waiting: OrderedDict[TicketT, None] = OrderedDict()
        self.delayed: OrderedDict[TicketT, int] = OrderedDict()


class TenantLine(Generic[TicketT]):
    """A tenant's tickets in one queue: `count` wait, with `bytes`. `start` and `owed` are of the busy period `period`. `entry` is
    the one of the heap that counts, `device_ns` and `spare_ns` are for DeviceQueue."""

    __slots__ = (
        "__weakref__",
        "bytes",
        "count",
        "device_ns",
        "entry",
        "levels",
        "number",
        "owed",
        "period",
        "spare_ns",
        "start",
        "tenant",
    )

    def __init__(self, number: int, tenant: Tenant, options: DynamicOptions) -> None:
        self.number = number
        self.tenant = tenant
        self.levels: tuple[TicketLevel[TicketT], ...] = tuple(
            TicketLevel(index, rules) for index, rules in enumerate(options.levels)
        )
        for level in self.levels:
            level.size_max = math.inf  # FairQueue.admit bounds it
        self.count = 0
        self.bytes = 0
        self.start = 0
        self.owed = 0
        self.device_ns = 0
        self.spare_ns = 0
        self.period = 0
        self.entry: tuple[int, int, TenantLine[TicketT]] | None = None
        tenant.lines.add(self)
