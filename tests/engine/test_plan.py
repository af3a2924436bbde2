"""The plan against a world that follows it: it converges, and never takes away what serves before its successor does."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.engine.fakes import config
from tpy.ids import Generation, ModelId, Version
from tpy.state import DesiredModel, DesiredVersion, ObservedKey
from tpy_data.engine.runtimes.core import Forget, Load, Phase, Resize, Running, Unload, plan

MODEL = ModelId("m")


def desired(versions: dict[int, int], revision: int = 1) -> DesiredModel:
    return DesiredModel(
        id=MODEL,
        directory=Path("m"),
        config=config(),
        config_revision=revision,
        versions={
            Version(v): DesiredVersion(version=Version(v), generation=Generation(g), directory=Path("m"))
            for v, g in versions.items()
        },
    )


def key(version: int, generation: int) -> ObservedKey:
    return ObservedKey(MODEL, Version(version), Generation(generation))


def copy(version: int, generation: int, phase: Phase, revision: int = 1) -> Running:
    return Running(key=key(version, generation), phase=phase, config_revision=revision)


def actions(want: DesiredModel | None, *there: Running) -> list[tuple[str, int, int]]:
    return [
        (type(action).__name__, action.key.version, action.key.generation)
        for action in plan({} if want is None else {MODEL: want}, there)
    ]


def test_one_step_at_a_time() -> None:
    serving, loading = Phase.SERVING, Phase.LOADING
    assert actions(desired({1: 1, 2: 1})) == [("Load", 1, 1), ("Load", 2, 1)]
    assert actions(desired({1: 1}), copy(1, 1, loading)) == []
    assert actions(desired({1: 2}), copy(1, 1, serving)) == [("Load", 1, 2)]
    assert actions(desired({1: 2}), copy(1, 1, serving), copy(1, 2, loading)) == []
    assert actions(desired({1: 2}), copy(1, 1, serving), copy(1, 2, Phase.FAILED)) == []
    assert actions(desired({1: 2}), copy(1, 1, serving), copy(1, 2, serving)) == [("Unload", 1, 1)]
    assert actions(desired({1: 2}), copy(1, 1, Phase.UNLOADED), copy(1, 2, serving)) == [("Forget", 1, 1)]
    two = (copy(1, 1, serving), copy(1, 2, loading), copy(2, 1, serving), copy(2, 2, serving))
    assert actions(desired({1: 2, 2: 2}), *two) == [("Unload", 2, 1)], "each waits for its own successor"
    assert actions(desired({2: 1}), copy(1, 1, serving), copy(2, 1, loading)) == []
    assert actions(desired({2: 1}), copy(1, 1, serving), copy(2, 1, serving)) == [("Unload", 1, 1)]
    assert actions(desired({}), copy(1, 1, serving)) == [("Unload", 1, 1)]
    assert actions(desired({}), copy(1, 1, Phase.UNLOADED)) == [], "to be seen as unloaded"
    assert actions(desired({}), copy(1, 1, Phase.UNLOADED), copy(1, 2, Phase.UNLOADED)) == [("Forget", 1, 1)]
    assert actions(desired({}), copy(1, 1, Phase.UNLOADED), copy(1, 2, Phase.FAILED)) == [("Forget", 1, 2)]
    assert actions(desired({}), copy(1, 1, Phase.UNLOADED), copy(1, 2, Phase.STOPPING)) == [("Forget", 1, 1)]
    assert actions(desired({1: 2}), copy(1, 1, Phase.UNLOADED), copy(1, 2, Phase.FAILED)) == [("Forget", 1, 1)]
    assert actions(desired({}), copy(1, 1, Phase.FAILED)) == [("Forget", 1, 1)]
    assert actions(None, copy(1, 1, Phase.UNLOADED)) == [("Forget", 1, 1)]
    assert actions(desired({1: 1}, revision=2), copy(1, 1, serving)) == [("Resize", 1, 1)]
    assert actions(desired({1: 1}, revision=2), copy(1, 1, serving, revision=2)) == []


class World(RuleBasedStateMachine):
    """Desires change at random, loads succeed or fail at random, the plan is asked at random moments."""

    def __init__(self) -> None:
        super().__init__()
        self.want: DesiredModel | None = None
        self.there: dict[ObservedKey, Running] = {}
        self.generation = 0
        self.revision = 0
        self.tried: set[ObservedKey] = set()

    @initialize()
    def begin(self) -> None:
        self.update({1})

    @rule(versions=st.sets(st.integers(1, 3)))
    def update(self, versions: set[int]) -> None:
        self.generation += 1
        self.revision += 1
        self.want = desired(dict.fromkeys(versions, self.generation), self.revision)

    @rule()
    def only_instances(self) -> None:
        if self.want is not None:
            self.revision += 1
            self.want = desired({v.version: v.generation for v in self.want.versions.values()}, self.revision)

    @rule()
    def remove(self) -> None:
        self.want = None

    @rule(ok=st.booleans(), data=st.data())
    def one_load_ends(self, ok: bool, data: st.DataObject) -> None:
        self.end(Phase.LOADING, Phase.SERVING if ok else Phase.FAILED, data)

    @rule(data=st.data())
    def one_unload_ends(self, data: st.DataObject) -> None:
        self.end(Phase.STOPPING, Phase.UNLOADED, data)

    def end(self, before: Phase, after: Phase, data: st.DataObject) -> None:
        which = sorted(k for k, c in self.there.items() if c.phase is before)
        if which:
            chosen = data.draw(st.sampled_from(which))
            self.there[chosen] = Running(key=chosen, phase=after, config_revision=self.there[chosen].config_revision)

    @rule()
    def ask(self) -> None:
        self.follow()

    def follow(self) -> bool:
        """Do what the plan says; True when it said anything that changes something."""
        before = dict(self.there)
        for action in plan({} if self.want is None else {MODEL: self.want}, self.there.values()):
            there = self.there.get(action.key)
            if isinstance(action, Load):
                assert there is None
                assert action.key not in self.tried, "a generation is tried once"
                self.tried.add(action.key)
                self.there[action.key] = Running(key=action.key, phase=Phase.LOADING, config_revision=self.revision)
                continue
            assert there is not None
            if isinstance(action, Unload):
                self.check_may_go(action.key)
                after = Phase.UNLOADED if there.phase is Phase.LOADING else Phase.STOPPING
                self.there[action.key] = Running(key=action.key, phase=after, config_revision=there.config_revision)
            elif isinstance(action, Resize):
                assert there.phase is Phase.SERVING
                self.there[action.key] = Running(key=action.key, phase=there.phase, config_revision=self.revision)
            else:
                assert isinstance(action, Forget)
                assert there.phase in (Phase.FAILED, Phase.UNLOADED)
                del self.there[action.key]
        if self.want is not None:
            unloaded = {which.version for which, there in before.items() if there.phase is Phase.UNLOADED}
            assert unloaded <= {which.version for which in self.there}, "what was unloaded is still to be seen"
        return self.there != before

    def check_may_go(self, gone: ObservedKey) -> None:
        wanted = self.wanted()
        assert gone not in wanted
        if self.there[gone].phase is Phase.SERVING and wanted:
            serving = {k for k, c in self.there.items() if c.phase is Phase.SERVING}
            successors = {k for k in wanted if k.version == gone.version} or wanted
            assert successors <= serving, "what serves goes only when what replaces it serves"

    def wanted(self) -> set[ObservedKey]:
        return set() if self.want is None else {key(v.version, v.generation) for v in self.want.versions.values()}

    @invariant()
    def asking_twice_says_the_same(self) -> None:
        want = {} if self.want is None else {MODEL: self.want}
        assert plan(want, self.there.values()) == plan(want, self.there.values())

    def teardown(self) -> None:
        """If everything ends well from here on, exactly the desired versions serve, but for the loads that had failed."""
        for _ in range(20):
            for which, there in self.there.items():
                ended = {Phase.LOADING: Phase.SERVING, Phase.STOPPING: Phase.UNLOADED}.get(there.phase, there.phase)
                self.there[which] = Running(key=which, phase=ended, config_revision=there.config_revision)
            if not self.follow():
                break
        else:
            raise AssertionError("the plan does not come to rest")
        failed = {k for k, c in self.there.items() if c.phase is Phase.FAILED}
        serving = {k for k, c in self.there.items() if c.phase is Phase.SERVING}
        assert failed <= self.wanted()
        assert self.wanted() - failed <= serving
        if not failed:
            assert serving == self.wanted()


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60, stateful_step_count=25)
