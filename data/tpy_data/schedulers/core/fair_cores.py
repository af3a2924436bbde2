"""The cores of a server with tenants: those of a server without, around a FairQueue, which they tell how long batches took."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import msgspec

from tpy.config.model_config import ModelConfig
from tpy.errors import TooManyRequests, Unavailable
from tpy.limits.tenants import TENANT_ROW_NS_FIRST
from tpy.messages import QueueActivity
from tpy_data.schedulers.core.contract import BatchStrategy, Outcome, SchedulerCore, Ticket
from tpy_data.schedulers.core.default import DefaultCore
from tpy_data.schedulers.core.device_queue import DeviceQueue, fair_queue
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import NO_START_DELAY, DynamicOptions, StartDelay, dynamic_options, shares_devices
from tpy_data.schedulers.core.engine_core import EngineCore, engine_options
from tpy_data.schedulers.core.fair_queue import FairQueue, FairTokenQueue
from tpy_data.schedulers.core.instance_pool import InstancePool
from tpy_data.schedulers.core.tenants import Tenants


class FairDynamicCore(DynamicCore):
    """See the module. `submit` raises TooManyRequests beyond a tenant's share of the queue."""

    __slots__ = ("_fair",)

    def __init__(
        self,
        options: DynamicOptions,
        tenants: Tenants,
        delay: StartDelay = NO_START_DELAY,
        strategy: BatchStrategy | None = None,
    ) -> None:
        self._fair = fair_queue(options, tenants)
        super().__init__(options, delay, strategy, self._fair)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """As `DynamicCore.done`."""
        _executed(self._fair, self._pool, instance, times_ns)
        super().done(instance, now_ns, times_ns)

    def explain(self, now_ns: int) -> QueueActivity:
        """As `SchedulerCore.explain`."""
        return msgspec.structs.replace(super().explain(now_ns), tenants=self._fair.tenants(now_ns))

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        """As `DynamicCore.revoked`."""
        _returned(self._fair, self._pool, instance, batches)
        super().revoked(instance, now_ns, batches)


class FairDefaultCore(DefaultCore):
    """See the module. `submit` raises TooManyRequests beyond a tenant's share of the queue."""

    __slots__ = ("_fair",)

    def __init__(self, tenants: Tenants, *, shares_devices: bool = False) -> None:
        waiting = _DeviceWaiting if tenants.is_rate_limited and shares_devices else _FairWaiting
        self._fair = waiting(DynamicOptions(), tenants)
        super().__init__(self._fair)

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        """As `DefaultCore.submit`, whose lines stand here again: a call of it would cost each request one more."""
        if self._deadlines.soonest_ns <= now_ns or self._credit.ask_ns:
            self._expire(now_ns)
        if self._stopped:
            raise Unavailable(Outcome.STOPPING.value)
        ticket.queued_ns = now_ns
        fair = self._fair
        try:
            level = fair.admit(ticket)
        except TooManyRequests:
            self._dispatch(now_ns)
            raise
        deadline_ns = ticket.deadline_ns
        if deadline_ns is not None:
            if deadline_ns <= now_ns:
                self._refuse(ticket, Outcome.TIMED_OUT)
                return
            self._deadlines.add(ticket, deadline_ns)
        fair.push(ticket, level)
        self._give_waiting(now_ns)

    def explain(self, now_ns: int) -> QueueActivity:
        """As `SchedulerCore.explain`."""
        return msgspec.structs.replace(super().explain(now_ns), tenants=self._fair.tenants(now_ns))

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        """As `DefaultCore.revoked`."""
        _returned(self._fair, self._pool, instance, batches)
        super().revoked(instance, now_ns, batches)

    def _over(self, batches: Sequence[Sequence[Ticket]], times_ns: Sequence[int]) -> None:
        for batch, took_ns in zip(batches, times_ns, strict=True):
            self._fair.executed(batch, took_ns)
        super()._over(batches, times_ns)

    def _put_back(self, live: list[Ticket]) -> None:
        for ticket in live:
            self._fair.push_back(ticket, self._fair.level_of(ticket), None)

    def _refuse_waiting(self, outcome: Outcome) -> None:
        for ticket in self._fair.drain():
            self._deadlines.discard(ticket)
            self._refuse(ticket, outcome)


class FairEngineCore(EngineCore):
    """See the module: tickets cost tokens. `submit` raises TooManyRequests beyond a tenant's share of the queue."""

    def __init__(self, options: DynamicOptions, tenants: Tenants) -> None:
        self._fair = FairTokenQueue(options, tenants)
        super().__init__(options, self._fair)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """As `EngineCore.done`."""
        self._fair.executed(self._given(instance)[: len(times_ns)], 0)
        super().done(instance, now_ns, times_ns)

    def explain(self, now_ns: int) -> QueueActivity:
        """As `SchedulerCore.explain`."""
        return msgspec.structs.replace(super().explain(now_ns), tenants=self._fair.tenants(now_ns))

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        """As `EngineCore.revoked`."""
        if batches:
            self._fair.returned(self._given(instance)[-batches:])
        super().revoked(instance, now_ns, batches)


def make_fair_core(
    config: ModelConfig, tenants: Tenants, delay: StartDelay, strategy: BatchStrategy | None, *, engine: bool
) -> SchedulerCore:
    """As `make_core`, for a model without sequences."""
    if engine:
        return FairEngineCore(engine_options(config), tenants)
    if config.dynamic_batching is None:
        return FairDefaultCore(tenants, shares_devices=shares_devices(config))
    return FairDynamicCore(dynamic_options(config), tenants, delay, strategy)


class _FairWaiting(FairQueue):
    """A FairQueue with what DefaultCore asks of `Waiting`."""

    __slots__ = ()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Ticket]:
        return self.in_order()

    def __setitem__(self, ticket: Ticket, _: None) -> None:
        self.push(ticket, ticket.line.levels[0])

    def __delitem__(self, ticket: Ticket) -> None:
        self.remove((ticket,))

    def popitem(self, last: bool = True) -> tuple[Ticket, None]:
        """Take the first ticket, to give it to an instance, and charge it: as `take`."""
        line = self._first()
        if line is None:
            raise IndexError("nothing waits")
        item = line.levels[0].waiting.popitem(last=False)
        ticket = item[0]
        self.count -= 1
        self._executing += 1
        start = line.start
        if start > self._virtual:
            self._virtual = start
        cost = ticket.charge = (self._row_ns or TENANT_ROW_NS_FIRST) * ticket.batch_size
        if line.owed:
            cost += line.owed
            line.owed = 0 if cost >= 0 else cost
        if cost > 0:
            line.start = start + cost * line.tenant.unit
        line.bytes -= ticket.size_bytes
        line.count -= 1
        if not line.count:
            heapq.heappop(self._heap)
            self._busy -= 1
        elif self._busy > 1:
            line.entry = (line.start, line.number, line)
            heapq.heapreplace(self._heap, line.entry)
        return item


class _DeviceWaiting(DeviceQueue, _FairWaiting):
    """The same, of a model that shares devices."""

    __slots__ = ()


def _executed(queue: FairQueue, pool: InstancePool, instance: int, times_ns: Sequence[int]) -> None:
    batches = pool.batches(instance)
    for index, took_ns in enumerate(times_ns[: len(batches)]):
        queue.executed(batches[index], took_ns)


def _returned(queue: FairQueue, pool: InstancePool, instance: int, count: int) -> None:
    batches = pool.batches(instance)
    for index in range(len(batches) - count, len(batches)):
        queue.returned(batches[index])
