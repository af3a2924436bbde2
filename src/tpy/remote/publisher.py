"""Publisher: sends frontend processes the replica of the serving table, made of the services' own results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import TypeVar

import msgspec
import trio

from tpy.errors import ErrorCode, TpyError
from tpy.limits.remote import REMOTE_SEEN_S_MAX
from tpy.messages import IndexEntry
from tpy.regions import DeviceRegion, Region, SegmentRegion
from tpy.remote.core.framing import ProtocolError
from tpy.remote.core.messages import encode
from tpy.remote.core.replica import (
    ANY_NAME,
    ANY_VERSION,
    AnyRegionEntry,
    DeviceRegionEntry,
    ModelEntry,
    RegionEntry,
    RemoteError,
    ReplicaUpdate,
    ServerState,
    VersionEntry,
)
from tpy.remote.published_copies import PublishedCopies
from tpy.services import Services

T = TypeVar("T")

_PAUSE_S_PER_MODEL = 20e-6
_PAUSE_S_MAX = 0.1
"""Between two updates that nobody waits for: at the start of a server with many models every one of them is a change."""

Subscriber = Callable[[bytes], None]
"""Takes a frame with an update. Raises nothing."""


class Subscription:
    """One frontend process: `first` is what it begins with; when it has seen that, it may `begin` to serve, and whoever changes
    something waits until it has seen the change."""

    def __init__(self, publisher: Publisher, first: ReplicaUpdate, subscriber: Subscriber, begin: Callable[[], None]) -> None:
        self.first = first
        self.send = subscriber
        self.seen = -1
        """The newest update that it has seen; -1: none yet, and it does not serve."""
        self.late = False
        """True if waiting for it timed out."""
        self.regions: dict[int, DeviceRegion] = {}
        """Those in memory of GPUs that the process may refer to, by number: until it forgets them."""
        self._publisher = publisher
        self._begin = begin

    def take_seen(self, revision: int) -> None:
        """The process has seen the update of this revision. Raises ProtocolError for one that it cannot have seen."""
        if not max(0, self.seen) <= revision <= self._publisher.revision:
            raise ProtocolError(f"has seen revision {revision} after {self.seen}, the newest is {self._publisher.revision}")
        begins = self.seen < 0
        self.seen = revision
        self.late = False
        self._publisher.seen_changed.unpark_all()
        if begins:
            self._begin()


class Publisher:
    """One for all frontend processes: an update is made, and encoded, once. It holds the `copies` that it has published until all
    frontend processes have seen an update without them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._entries: dict[str, ModelEntry] = {}
        self._rows: dict[str, list[IndexEntry]] = {}
        self._regions: dict[str, Region] = {}
        self._server: ServerState | None = None
        self.revision = 0
        """Of the newest update."""
        self.seen_changed = trio.lowlevel.ParkingLot()
        """The calls that wait until frontend processes have it."""
        self.copies = PublishedCopies()
        self._replaced: dict[int, int] = {}
        """Copies that are not in the entries any more, and since which revision."""
        self._subscriptions: set[Subscription] = set()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Publish changes as they come, for ever."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._run()
        finally:
            self._nursery = None
            self.copies.let_all_go()

    async def _run(self) -> None:
        readiness = self._services.readiness
        seen = -1
        while True:
            if readiness is None:
                await trio.sleep(_PAUSE_S_MAX)
            else:
                seen = await readiness.wait_changed(seen)
            await self.refresh()
            await trio.sleep(min(_PAUSE_S_MAX, _PAUSE_S_PER_MODEL * len(self._entries)))

    async def refresh(self) -> None:
        """Publish what has changed."""
        self.take_rows(await self._services.repository.index())

    async def publish(self) -> None:
        """Publish what has changed. When this returns, every frontend process answers by it, but for one that takes no notice for
        REMOTE_SEEN_S_MAX."""
        await self.refresh()
        await self._wait_seen(self.revision)

    async def _wait_seen(self, revision: int) -> None:
        with trio.move_on_after(REMOTE_SEEN_S_MAX) as patience:
            while self._unaware(revision):
                await self.seen_changed.park()
        if patience.cancelled_caught:
            for subscription in self._unaware(revision):
                subscription.late = True

    def _unaware(self, revision: int) -> list[Subscription]:
        """The subscriptions that serve and have not seen `revision`."""
        return [each for each in self._subscriptions if 0 <= each.seen < revision and not each.late]

    def take_rows(self, rows: Iterable[IndexEntry]) -> None:
        """The same with an index that is known already: whole, sorted by name."""
        known = {name: list(found) for name, found in groupby(rows, key=lambda row: row.name)}
        changed: dict[str, ModelEntry | None] = {name: None for name in self._entries if name not in known}
        for name, found in known.items():
            entry = self._entry(name, found)
            if entry is not self._entries.get(name):
                changed[name] = entry
        self._rows = known
        self._publish(changed)

    def take_name(self, name: str) -> None:
        """Publish what has changed about one model."""
        rows = self._rows.get(name)
        if rows is not None:
            entry = self._entry(name, rows)
            if entry is not self._entries.get(name):
                self._publish({name: entry})

    @contextmanager
    def subscribed(self, subscriber: Subscriber, begin: Callable[[], None]) -> Iterator[Subscription]:
        """For the length of the block `subscriber` gets every update; the block begins with all that is known. `begin` is called
        when the subscriber has confirmed it. To be entered after a first `refresh`."""
        regions = {name: entry for name, region in self._regions.items() if (entry := _region_entry(region)) is not None}
        first = ReplicaUpdate(self._server or self._state(), dict(self._entries), regions)
        subscription = Subscription(self, first, subscriber, begin)
        self._subscriptions.add(subscription)
        subscription.regions.update(_on_devices(self._regions))
        try:
            yield subscription
        finally:
            self._subscriptions.remove(subscription)
            self.seen_changed.unpark_all()

    def _publish(self, changed: dict[str, ModelEntry | None]) -> None:
        before = set().union(*(_copies(self._entries.get(name)) for name in changed))
        now = set().union(*map(_copies, changed.values()))
        for name, entry in changed.items():
            if entry is None:
                del self._entries[name]
            else:
                self._entries[name] = entry
        regions = self._changed_regions()
        state = self._state()
        if not changed and not regions and state == self._server:
            return
        self.revision += 1
        self._server = msgspec.structs.replace(state, revision=self.revision)
        frame = encode(ReplicaUpdate(self._server, changed, regions))
        for subscription in tuple(self._subscriptions):
            subscription.regions.update(_on_devices({name: self._regions[name] for name, entry in regions.items() if entry}))
            subscription.send(frame)
        for copy in now:
            self._replaced.pop(copy, None)
        for copy in before - now:
            self._replaced[copy] = self.revision
        if not self._unaware(self.revision):
            self._let_go(self.revision)
        elif before - now and self._nursery is not None:
            self._nursery.start_soon(self._let_go_when_seen, self.revision)

    def _changed_regions(self) -> dict[str, AnyRegionEntry | None]:
        """Returns the regions that differ from those of the last update."""
        before, self._regions = self._regions, dict(self._services.shared_memory.regions)
        changed: dict[str, AnyRegionEntry | None] = {name: None for name in before if name not in self._regions}
        for name, region in self._regions.items():
            if before.get(name) is not region:
                changed[name] = _region_entry(region)
        return changed

    async def _let_go_when_seen(self, revision: int) -> None:
        await self._wait_seen(revision)
        self._let_go(revision)

    def _let_go(self, revision: int) -> None:
        """All know this revision."""
        copies = [copy for copy, since in self._replaced.items() if since <= revision]
        self.copies.let_go(copies)
        for copy in copies:
            del self._replaced[copy]

    def _state(self) -> ServerState:
        services = self._services
        unknown = _result_of(lambda: services.inference.resolve(ANY_NAME, None))
        return ServerState(
            self.revision,
            services.repository.server_live(),
            services.repository.server_ready(),
            services.diagnostics.server_metadata(),
            services.diagnostics.log_settings(),
            refusal if isinstance(refusal := _result_of(services.shared_memory.require_enabled), RemoteError) else None,
            unknown if isinstance(unknown, RemoteError) else _unexpected(ANY_NAME),
            bool(services.observers.active),
        )

    def _entry(self, name: str, rows: list[IndexEntry]) -> ModelEntry:
        """The replica's entry of a model; the same object if it has not changed."""
        before = self._entries.get(name)
        same_rows = before is not None and self._rows.get(name) == rows
        if before is not None and same_rows and not _has_versions(before):
            return before  # nothing that could have changed without the index
        inference = self._services.inference
        numbers = _result_of(lambda: inference.ready_versions(name))
        versions = {row.version for row in rows if row.version is not None}
        if not isinstance(numbers, RemoteError):
            versions.update(numbers)
        if before is not None and same_rows:
            other = before.other
        else:
            refusal = _result_of(lambda: inference.resolve(name, ANY_VERSION))
            other = refusal if isinstance(refusal, RemoteError) else _unexpected(name)
        entry = ModelEntry(
            self._version(name, None),
            {version: self._version(name, version) for version in sorted(versions)},
            other,
            None if isinstance(numbers, RemoteError) else numbers,
            numbers if isinstance(numbers, RemoteError) else None,
        )
        return before if before is not None and before == entry else entry

    def _version(self, name: str, version: int | None) -> VersionEntry | RemoteError:
        inference = self._services.inference
        model = _result_of(lambda: inference.resolve(name, version))
        if isinstance(model, RemoteError):
            return model
        copy = self.copies.publish(model)
        description = msgspec.structs.replace(model.description, copies_inputs=False)  # what they send they have read
        config = _result_of(lambda: inference.config(name, version))
        if isinstance(config, RemoteError):
            return VersionEntry(copy, description, None, config)
        return VersionEntry(copy, description, config, None)


def _copies(entry: ModelEntry | None) -> set[int]:
    if entry is None:
        return set()
    return {each.copy for each in (entry.newest, *entry.versions.values()) if isinstance(each, VersionEntry)}


def _has_versions(entry: ModelEntry) -> bool:
    return isinstance(entry.newest, VersionEntry) or any(isinstance(each, VersionEntry) for each in entry.versions.values())


def _result_of(question: Callable[[], T]) -> T | RemoteError:
    try:
        return question()
    except TpyError as error:
        return RemoteError(error.code, error.message)


def _unexpected(name: str) -> RemoteError:
    return RemoteError(ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")


def _on_devices(regions: Mapping[str, Region]) -> dict[int, DeviceRegion]:
    return {region.number: region for region in regions.values() if isinstance(region, DeviceRegion)}


def _region_entry(region: Region) -> AnyRegionEntry | None:
    if isinstance(region, DeviceRegion):
        return DeviceRegionEntry(region.facts, region.number)
    if not isinstance(region, SegmentRegion):
        return None
    return RegionEntry(region.facts, os.getpid(), region.descriptor, region.identity)
