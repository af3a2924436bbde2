"""The model-state store: one writer per half, legal moves only, waiting sees every newest state."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tpy.clock import SystemClock
from tpy.config import ModelConfig
from tpy.errors import InvariantViolation
from tpy.ids import Generation, ModelId, Version
from tpy.messages import ModelState
from tpy.state import DesiredModel, DesiredVersion, IllegalMove, ModelStateStore, ObservedKey, ObservedVersion
from tpy.state.store import LEGAL_MOVES

MODEL = ModelId("m")
KEY = ObservedKey(MODEL, Version(1), Generation(1))


def desired(generation: int = 1) -> DesiredModel:
    version = DesiredVersion(version=Version(1), generation=Generation(generation), directory=Path("m/1"))
    return DesiredModel(
        id=MODEL, directory=Path("m"), config=ModelConfig(name="m"), config_revision=1, versions={Version(1): version}
    )


def test_each_half_has_one_writer() -> None:
    store = ModelStateStore(SystemClock())
    store.desired_writer()
    store.observed_writer()
    with pytest.raises(InvariantViolation):
        store.desired_writer()
    with pytest.raises(InvariantViolation):
        store.observed_writer()


PATHS: dict[ModelState | None, tuple[ModelState, ...]] = {
    None: (),
    ModelState.LOADING: (ModelState.LOADING,),
    ModelState.READY: (ModelState.LOADING, ModelState.READY),
    ModelState.UNAVAILABLE: (ModelState.LOADING, ModelState.UNAVAILABLE),
    ModelState.UNLOADING: (ModelState.LOADING, ModelState.READY, ModelState.UNLOADING),
}
"""Legal moves that lead to each state; none leads to UNKNOWN."""


@pytest.mark.parametrize("before", PATHS)
@pytest.mark.parametrize("after", [None, *ModelState])
def test_only_moves_of_the_table_are_legal(before: ModelState | None, after: ModelState | None) -> None:
    store = ModelStateStore(SystemClock())
    writer = store.observed_writer()
    for state in PATHS[before]:
        writer.move(ObservedVersion(key=KEY, state=state))
    if before is None and after is None:
        writer.forget(KEY)
        return

    def move() -> None:
        if after is None:
            writer.forget(KEY)
        else:
            writer.move(ObservedVersion(key=KEY, state=after))

    if (before, after) in LEGAL_MOVES:
        move()
        state = store.snapshot().observed.get(KEY)
        assert (state.state if state else None) is after
    else:
        with pytest.raises(IllegalMove):
            move()


def test_putting_the_same_again_is_no_change() -> None:
    store = ModelStateStore(SystemClock())
    writer = store.desired_writer()
    writer.put(desired())
    before = store.snapshot()
    writer.put(desired())
    assert store.snapshot() is before
    writer.reject(MODEL, "broken")
    assert MODEL in store.snapshot().desired, "the older desired model stays beside a rejection"
    writer.put(desired(2))
    assert not store.snapshot().rejections


async def test_wait_for_sees_a_later_change() -> None:
    store = ModelStateStore(SystemClock())
    writer = store.observed_writer()
    seen: list[ModelState] = []
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            snapshot = await store.wait_for(lambda s: KEY in s.observed and s.observed[KEY].state is ModelState.READY)
            seen.append(snapshot.observed[KEY].state)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        writer.move(ObservedVersion(key=KEY, state=ModelState.LOADING))
        await trio.testing.wait_all_tasks_blocked()
        assert not seen
        writer.move(ObservedVersion(key=KEY, state=ModelState.READY))
    assert seen == [ModelState.READY]


async def test_watch_merges_changes_into_the_newest() -> None:
    store = ModelStateStore(SystemClock())
    writer = store.observed_writer()
    watch = store.watch()
    first = await anext(watch)
    writer.move(ObservedVersion(key=KEY, state=ModelState.LOADING))
    writer.move(ObservedVersion(key=KEY, state=ModelState.READY))
    second = await anext(watch)
    assert first.observed == {}
    assert second.observed[KEY].state is ModelState.READY
    await watch.aclose()


def test_defaults_of_an_observed_version() -> None:
    version = ObservedVersion(key=KEY, state=ModelState.LOADING)
    assert (version.reason, version.since_ns, version.config_revision) == ("", 0, 0)
    assert (version.applied_error, version.refused_revision) == ("", 0)
    assert desired().auto_complete
