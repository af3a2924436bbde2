"""The store itself. Lives on the Trio thread; not for use from others.

Legal moves of an observed version:

    (absent) --> LOADING --> READY --> UNLOADING --> UNAVAILABLE("unloaded") --> (absent)
                    |          |  ^                       ^
                    |          v  |                       |
                    +-----> UNAVAILABLE(reason) ----------+--> LOADING (retry), UNAVAILABLE(another reason), (absent)

READY -> UNAVAILABLE is a version whose last instance died; it returns to READY when one was started again.
A retry is legal, but the data plane makes none: a version stays LOADING while its load is tried again, and a model that is loaded
anew has another generation, which begins as absent.
A move that is not in LEGAL_MOVES raises IllegalMove: that is a bug of the writer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from types import MappingProxyType

import anyio
import msgspec

from tpy.clock import Clock
from tpy.errors import InvariantViolation
from tpy.ids import Generation, ModelId, Version
from tpy.messages import ModelState
from tpy.state.model import DesiredModel, ObservedKey, ObservedVersion, Rejection, Snapshot

LEGAL_MOVES: frozenset[tuple[ModelState | None, ModelState | None]] = frozenset(
    {
        (None, ModelState.LOADING),
        (ModelState.LOADING, ModelState.READY),
        (ModelState.LOADING, ModelState.UNAVAILABLE),
        (ModelState.READY, ModelState.READY),
        (ModelState.READY, ModelState.UNLOADING),
        (ModelState.READY, ModelState.UNAVAILABLE),
        (ModelState.UNAVAILABLE, ModelState.READY),
        (ModelState.UNAVAILABLE, ModelState.LOADING),
        (ModelState.UNAVAILABLE, ModelState.UNLOADING),
        (ModelState.UNAVAILABLE, ModelState.UNAVAILABLE),
        (ModelState.UNLOADING, ModelState.UNAVAILABLE),
        (ModelState.UNAVAILABLE, None),
    }
)
"""(from, to); None: absent. READY -> READY applies a new configuration in place."""


class IllegalMove(InvariantViolation):
    """A writer tried a move that is not in the table."""


class ModelStateStore:
    """Holds both halves. Hand `desired_writer()` to the control plane, `observed_writer()` to the data plane, once each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._revision = 0
        self._desired: dict[ModelId, DesiredModel] = {}
        self._rejections: dict[ModelId, Rejection] = {}
        self._observed: dict[ObservedKey, ObservedVersion] = {}
        self._answering: dict[ModelId, Version] = {}
        self._snapshot: Snapshot | None = None
        self._changed = anyio.Event()
        self._writers_given: set[str] = set()

    def snapshot(self) -> Snapshot:
        """Both halves now. The same object until something changes."""
        if self._snapshot is None:
            self._snapshot = Snapshot(
                revision=self._revision,
                desired=MappingProxyType(dict(self._desired)),
                rejections=MappingProxyType(dict(self._rejections)),
                observed=MappingProxyType(dict(self._observed)),
                answering=MappingProxyType(dict(self._answering)),
            )
        return self._snapshot

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """The snapshot now and after every change. Changes that come while the reader works are merged into one: it always
        gets the newest state, never a backlog."""
        seen = -1
        while True:
            if self._revision == seen:
                await self._changed.wait()
            snapshot = self.snapshot()
            seen = snapshot.revision
            yield snapshot

    async def wait_for(self, predicate: Callable[[Snapshot], bool]) -> Snapshot:
        """The first snapshot, now or later, for which `predicate` holds. `predicate` must be a pure function."""
        while True:
            snapshot = self.snapshot()
            if predicate(snapshot):
                return snapshot
            await self._changed.wait()

    def desired_writer(self) -> DesiredWriter:
        """The one writer of the desired half."""
        self._give("desired")
        return DesiredWriter(self)

    def observed_writer(self) -> ObservedWriter:
        """The one writer of the observed half."""
        self._give("observed")
        return ObservedWriter(self)

    def _give(self, half: str) -> None:
        if half in self._writers_given:
            raise InvariantViolation(f"the {half} half of the store has its writer already")
        self._writers_given.add(half)

    def _touch(self) -> None:
        self._revision += 1
        self._snapshot = None
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class DesiredWriter:
    """Writes the desired half. Held by the control plane."""

    def __init__(self, store: ModelStateStore) -> None:
        self._store = store
        self._newest_generation: dict[ModelId, Generation] = {}

    def next_generation(self, model: ModelId) -> Generation:
        """A generation that the model never had."""
        generation = Generation(self._newest_generation.get(model, Generation(0)) + 1)
        self._newest_generation[model] = generation
        return generation

    def put(self, desired: DesiredModel) -> None:
        """Set what should be served of a model, and withdraw its rejection. No change, no event."""
        store = self._store
        same = store._desired.get(desired.id) == desired
        if same and desired.id not in store._rejections:
            return
        store._desired[desired.id] = desired
        store._rejections.pop(desired.id, None)
        store._touch()

    def reject(self, model: ModelId, reason: str) -> None:
        """Say why a model's newest files cannot be served. Its older DesiredModel, if any, stays."""
        store = self._store
        known = store._rejections.get(model)
        if known is not None and known.reason == reason:
            return
        store._rejections[model] = Rejection(id=model, reason=reason, since_ns=store._clock.now_ns())
        store._touch()

    def withdraw_rejection(self, model: ModelId) -> None:
        """Take back a rejection, for example when the model's directory is gone."""
        if self._store._rejections.pop(model, None) is not None:
            self._store._touch()

    def remove(self, model: ModelId) -> None:
        """Forget a model altogether (its directory is gone). Its versions are unloaded; absent models are fine."""
        store = self._store
        gone = [store._desired.pop(model, None), store._rejections.pop(model, None)]
        if any(entry is not None for entry in gone):
            store._touch()


class ObservedWriter:
    """Writes the observed half. Held by the data plane."""

    def __init__(self, store: ModelStateStore) -> None:
        self._store = store

    def move(self, observed: ObservedVersion) -> None:
        """Put a version into a state; `since_ns` is filled in. Raises IllegalMove when the table forbids it."""
        store = self._store
        before = store._observed.get(observed.key)
        self._check(observed.key, before.state if before else None, observed.state)
        kept_since = before is not None and before.state is observed.state
        since_ns = before.since_ns if before is not None and kept_since else store._clock.now_ns()
        store._observed[observed.key] = _replace_since(observed, since_ns)
        store._touch()

    def forget(self, key: ObservedKey) -> None:
        """Remove an UNAVAILABLE version from the store; absent ones are fine."""
        store = self._store
        before = store._observed.get(key)
        if before is None:
            return
        self._check(key, before.state, None)
        del store._observed[key]
        store._touch()

    def answer(self, model: ModelId, version: Version | None) -> None:
        """Say which version answers requests without one until another is promoted; None: whichever is the newest. No change, no
        event."""
        store = self._store
        if store._answering.get(model) == version:
            return
        if version is None:
            del store._answering[model]
        else:
            store._answering[model] = version
        store._touch()

    @staticmethod
    def _check(key: ObservedKey, before: ModelState | None, after: ModelState | None) -> None:
        if (before, after) not in LEGAL_MOVES:
            raise IllegalMove(f"{key}: {before} -> {after} is not a legal move")


def _replace_since(observed: ObservedVersion, since_ns: int) -> ObservedVersion:
    return msgspec.structs.replace(observed, since_ns=since_ns)
