"""RateLimiter: the one rate limiter of a server, and its gates: one per model version."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import trio

from tpy_data.engine.channels.channel import InstanceChannel, Report
from tpy_data.engine.loading.placing import PlacedInstance
from tpy_data.engine.requests.batch import Batch
from tpy_data.schedulers.core import Resource
from tpy_data.schedulers.core.rate_limiter import Demand, GroupActivity, RateLimiterCore, Supply

Taker = Callable[[int], None]
"""Takes an instance that may run now."""


class RateLimiter:
    """Performs the decisions of its core at once, on the caller's stack. On the Trio thread."""

    def __init__(self, supply: Supply) -> None:
        self._core = RateLimiterCore(supply)
        self._takers: dict[Hashable, Taker] = {}
        self._is_granting = False

    def open_gate(self, key: Hashable) -> InstanceGate:
        """The gate of a version. `close` it when nothing of the version is left."""
        return InstanceGate(self._core, self._takers, self.grant, key)

    def used(self) -> Mapping[Resource, int]:
        """The resources that are held now."""
        return self._core.used()

    def grant(self) -> None:
        """Let run who may. The taker of an instance may call this again: the loop further up the stack goes on then."""
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while grants := self._core.take_grants():
                for grant in grants:
                    self._takers[grant.group](grant.instance)
        finally:
            self._is_granting = False


class InstanceGate:
    """The instances of one version, as the rate limiter sees them.

    Where the version's core hands work to whichever instance is there, they are one group, and an instance is there only while
    it may run (`taker`, `want`, `release`: the GatedDriver's). Where work belongs to an instance, as with sequences, each
    instance is a separate group, and its batches wait in its channel (`enter`).
    """

    def __init__(self, core: RateLimiterCore, takers: dict[Hashable, Taker], grant: Callable[[], None], key: Hashable) -> None:
        self.grant = grant
        self.taker: Taker | None = None
        self._core = core
        self._takers = takers
        self._key = key
        self._demands: dict[int, Demand] = {}
        self._gated: dict[int, GatedChannel] = {}
        self._placed: tuple[PlacedInstance, ...] = ()
        core.declare(key, ())

    @contextmanager
    def change(self, wanted: Sequence[PlacedInstance]) -> Iterator[None]:
        """Within the block these instances replace the previous ones; when it raises, the previous ones stay.

        Raises InvalidArgument, and nothing has changed, when one of them could never run.
        """
        before = after = self._placed
        self._declare((*before, *wanted))
        try:
            yield
            after = tuple(wanted)
        finally:
            self._declare(after)
            self._placed = after
            self.grant()

    def _declare(self, placed: Iterable[PlacedInstance]) -> None:
        self._core.declare(self._key, [_demand(each) for each in placed if not each.passive])

    def close(self) -> None:
        """The version is no more."""
        self._takers.pop(self._key, None)
        self._core.forget(self._key)
        self.grant()

    # An instance

    @property
    def is_of_version(self) -> bool:
        """True when the instances are one group."""
        return self.taker is not None

    def enter(self, number: int, placed: PlacedInstance, channel: InstanceChannel) -> InstanceChannel:
        """An instance is about to be given work: what to give it to."""
        demand = self._demands[number] = _demand(placed)
        if self.taker is not None:
            return channel
        gated = self._gated[number] = GatedChannel(channel, self._core, (self._key, number), demand, self.grant)
        self._takers[(self._key, number)] = gated.granted
        return gated

    async def leave(self, number: int) -> None:
        """The instance is about to be closed: wait for the batches that it was given. Idempotent."""
        self._demands.pop(number, None)
        gated = self._gated.pop(number, None)
        if gated is not None:
            try:
                await gated.wait_done()
            finally:
                gated.forget()
                self._takers.pop((self._key, number), None)
                self.grant()

    # What may never be had (ResourceGate)

    def needs(self) -> Mapping[Resource, int]:
        """The resources that every instance that entered holds while it runs: of each as much as the least demanding one."""
        demands = [demand.resources for demand in self._demands.values()]
        if not demands:
            return {}
        return {resource: least for resource in demands[0] if (least := min([each.get(resource, 0) for each in demands]))}

    def supply(self) -> Mapping[Resource, int]:
        """The resources that there are, in the whole server."""
        return self._core.supply()

    def used(self) -> Mapping[Resource, int]:
        """The resources that are held now, by all instances of the server."""
        return self._core.used()

    def activity(self) -> GroupActivity:
        """The instances of the version, as one group."""
        return self._core.activity(self._key)

    def keeps_back(self, number: int) -> bool:
        """True when a batch of this instance waits in its channel, and none runs."""
        gated = self._gated.get(number)
        return gated is not None and gated.keeps_back

    # All instances as one group

    def take(self, taker: Taker) -> None:
        """Instances that may run are given to this."""
        self.taker = self._takers[self._key] = taker

    def add(self, number: int) -> None:
        """An instance that entered is free."""
        self._core.add(self._key, number, self._demands[number])

    def remove(self, number: int) -> None:
        """It gets nothing more."""
        self._core.remove(self._key, number)

    def want(self, wanted: bool) -> None:
        """Tell whether there is work for one more instance."""
        if wanted:
            self._core.want(self._key)
        else:
            self._core.unwant(self._key)

    def release(self, number: int, *, used: bool = True) -> None:
        """Its batch is over."""
        self._core.release(self._key, number, used=used)


def _demand(placed: PlacedInstance) -> Demand:
    limits = placed.limits
    if limits is None:
        return Demand()
    device = placed.placement.device_id
    resources: dict[Resource, int] = {
        (resource.name, None if resource.global_ else device): resource.count for resource in limits.resources
    }
    return Demand(resources, max(1, limits.priority))


class GatedChannel:
    """In front of the channel to an instance whose work is its own: batches wait here until the instance may run, one at a
    time."""

    def __init__(
        self,
        channel: InstanceChannel,
        core: RateLimiterCore,
        key: tuple[Hashable, int],
        demand: Demand,
        grant: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._core = core
        self._key = key
        self._number = key[1]
        self._grant = grant
        self._report: Report | None = None
        self._waiting: deque[Batch] = deque()
        self._is_running = False
        self._done: trio.Event | None = None
        core.declare(key, ())
        core.add(key, self._number, demand)

    def open(self, report: Report) -> None:
        """As `InstanceChannel.open`."""
        self._report = report
        self._channel.open(self._finished)

    async def run(self) -> None:
        """As `InstanceChannel.run`."""
        await self._channel.run()

    def give(self, batches: Sequence[Batch]) -> None:
        """As `InstanceChannel.give`: when the instance may run."""
        self._waiting.extend(batches)
        self._core.want(self._key)
        self._grant()

    def revoke(self) -> Sequence[Batch]:
        """As `InstanceChannel.revoke`."""
        batches = list(self._channel.revoke())
        if batches:
            self._release()
        if self._waiting:
            batches.extend(self._waiting)
            self._waiting.clear()
            self._core.unwant(self._key)
        self._check_done()
        self._grant()
        return batches

    def close(self) -> None:
        """As `InstanceChannel.close`: what waits here is given later, to the instance's thread."""
        self._channel.close()

    @property
    def keeps_back(self) -> bool:
        """True when a batch waits, and none runs."""
        return bool(self._waiting) and not self._is_running

    def granted(self, _: int) -> None:
        """It may run one batch."""
        self._is_running = True
        batch = self._waiting.popleft()
        if not self._waiting:
            self._core.unwant(self._key)
        self._channel.give((batch,))

    async def wait_done(self) -> None:
        """Until no batch waits or runs."""
        while self._waiting or self._is_running:
            self._done = trio.Event()
            await self._done.wait()

    def forget(self) -> None:
        """The instance goes, and gives back what it holds."""
        self._waiting.clear()
        self._core.forget(self._key)

    def _finished(self, batches: Sequence[Batch], failure: str | None) -> None:
        if batches:
            self._release()
        if self._report is not None:
            self._report(batches, failure)
        self._grant()

    def _release(self) -> None:
        self._is_running = False
        self._core.release(self._key, self._number)
        self._check_done()

    def _check_done(self) -> None:
        if self._done is not None and not self._waiting and not self._is_running:
            self._done.set()
