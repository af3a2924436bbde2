"""Changes that no call has asked for, as the audit log tells them: from the snapshots of the store."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tpy.assembly.auditing import RepositoryChange, RepositoryChanges
from tpy.clock import SystemClock
from tpy.config import ModelConfig
from tpy.ids import Generation, ModelId
from tpy.messages import ModelState
from tpy.state import DesiredModel, DesiredVersion, ModelStateStore, ObservedKey, ObservedVersion

M = ModelId("m")


class World:
    """A store, both of whose halves a test writes, and the changes that were told."""

    def __init__(self) -> None:
        self.store = ModelStateStore(SystemClock())
        self.desired = self.store.desired_writer()
        self.observed = self.store.observed_writer()
        self.changes = RepositoryChanges()
        self.generation = 0
        self.told: list[RepositoryChange] = []

    def want(self, *versions: int, why: str = "file change", model: ModelId = M) -> None:
        """Desire these versions in a new generation."""
        self.generation += 1
        wanted = {
            version: DesiredVersion(version=version, generation=Generation(self.generation), directory=Path("/m"))
            for version in versions
        }
        config = ModelConfig(name=model.name, backend="identity")
        self.desired.put(
            DesiredModel(id=model, directory=Path("/m"), config=config, config_revision=self.generation, versions=wanted, why=why)
        )

    def see(self, version: int, state: ModelState, reason: str = "", model: ModelId = M) -> None:
        """Observe a version of the newest generation."""
        key = ObservedKey(model, version, Generation(self.generation))
        self.observed.move(ObservedVersion(key=key, state=state, reason=reason, config_revision=self.generation))

    def look(self, now_ns: int = 0) -> list[RepositoryChange]:
        found = list(self.changes.look(self.store.snapshot(), now_ns))
        self.told += found
        return found


LOADING, READY, UNAVAILABLE = ModelState.LOADING, ModelState.READY, ModelState.UNAVAILABLE


def test_a_load_is_told_when_it_is_over() -> None:
    world = World()
    world.want(1, 2)
    assert world.look(10) == []
    world.see(1, LOADING)
    world.see(2, LOADING)
    world.see(1, READY)
    assert world.look(20) == []
    world.see(2, UNAVAILABLE, "no memory")
    assert world.look(30) == [RepositoryChange("load", M, "file change", (1, 2), "version 2: no memory", 20)]
    assert world.look(40) == []


def test_unloads_and_what_calls_ask_for() -> None:
    world = World()
    world.want(1, why="load request")
    world.see(1, LOADING)
    world.see(1, READY)
    assert world.look() == []
    world.want(why="file change")
    assert world.look() == [RepositoryChange("unload", M, "file change")]
    world.want(1, why="load request")
    world.look()
    world.desired.remove(M)
    assert world.look() == [RepositoryChange("unload", M, "its directory is gone")]


def test_rejections() -> None:
    world = World()
    world.desired.reject(M, "no versions")
    assert world.look() == [RepositoryChange("load", M, "its files were read", error="no versions")]
    assert world.look() == []
    world.desired.withdraw_rejection(M)
    assert world.look() == []


OPERATIONS = st.lists(st.tuples(st.sampled_from(["want", "empty", "loading", "ready", "fail", "look"]), st.integers(1, 3)))


@given(OPERATIONS)
def test_each_change_is_told_once(operations: list[tuple[str, int]]) -> None:
    """Against a model that counts: what was desired when it was looked at is told once, at the end or when it is replaced."""
    world = World()
    looked_at: set[int] = set()
    empties = 0
    for operation, version in operations:
        keys = world.store.snapshot().observed
        state = keys[key].state if (key := ObservedKey(M, version, Generation(world.generation))) in keys else None
        if operation in ("want", "empty"):
            world.want(*([version] if operation == "want" else []))
            empties += operation == "empty"
            if operation == "want":
                looked_at.add(world.generation)
            world.look()
        elif operation == "loading" and state is None and world.generation:
            world.see(version, LOADING)
        elif operation in ("ready", "fail") and state is LOADING:
            world.see(version, READY if operation == "ready" else UNAVAILABLE, "" if operation == "ready" else "no")
        else:
            world.look()
    desired = world.store.snapshot().desired.get(M)
    for version in () if desired is None else desired.versions:
        key = ObservedKey(M, version, Generation(world.generation))
        state = seen.state if (seen := world.store.snapshot().observed.get(key)) is not None else None
        if state is None:
            world.see(version, LOADING)
        if state in (None, LOADING):
            world.see(version, READY)
    world.look()
    assert sum(change.action == "load" for change in world.told) == len(looked_at)
    assert sum(change.action == "unload" for change in world.told) == empties
