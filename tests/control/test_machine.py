"""The control core against the rule, in any order of events.

The rule: what is desired of a model are the versions that its policy selected at the last good look, each in a generation that
was loaded from exactly what was there then. A generation is replaced only when what it was loaded from has changed, when its load
has failed and is asked for again, or when the version was not desired in between.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tpy.ids import Generation, ModelId, Version
from tpy.state import DesiredModel
from tpy_control.core.candidate import Candidate, interpret
from tpy_control.core.control import Action, ControlCore, Put, Reject, Remove, Withdraw
from tpy_control.core.picture import FileFingerprint, ModelLocation, ModelPicture, assemble

NAMES = st.sampled_from(["a", "b"])
VERSIONS = st.integers(min_value=0, max_value=3)
CONTENTS = st.sampled_from(["x", "y"])


class Settings(NamedTuple):
    """What a configuration of these tests says. `policy`: "all", a count, or listed versions."""

    policy: str | int | tuple[int, ...] = 1
    instances: int = 1
    batch: int = 0
    broken: bool = False

    def text(self) -> str:
        if self.broken:
            return "nonsense: 3"
        policy = "all {}"
        if isinstance(self.policy, int):
            policy = f"latest {{ num_versions: {self.policy} }}"
        elif isinstance(self.policy, tuple):
            policy = f"specific {{ versions: [{', '.join(map(str, self.policy))}] }}"
        return (
            f'backend: "identity" max_batch_size: {self.batch} version_policy {{ {policy} }}'
            f" instance_group [{{ count: {self.instances} kind: KIND_CPU }}]"
        )

    def selected(self, versions: set[int]) -> set[int]:
        if self.policy == "all":
            return versions
        if isinstance(self.policy, tuple):
            return versions & set(self.policy)
        assert isinstance(self.policy, int)
        return set(sorted(versions)[-self.policy :])


SETTINGS = st.builds(
    Settings,
    policy=st.sampled_from(["all", 1, 2, (1,), (0, 3)]),
    instances=st.integers(1, 2),
    batch=st.sampled_from([0, 8]),
    broken=st.sampled_from([False] * 7 + [True]),
)

CHANGES = st.one_of(
    st.tuples(st.just("version"), VERSIONS, CONTENTS),
    st.tuples(st.just("version"), VERSIONS, CONTENTS),
    st.tuples(st.just("no version"), VERSIONS),
    st.tuples(st.just("config"), SETTINGS),
    st.tuples(st.just("shared"), CONTENTS),
    st.tuples(st.just("gone")),
)


class Directory:
    """A model directory of the naive repository."""

    def __init__(self, versions: dict[int, str] | None = None) -> None:
        self.settings = Settings()
        self.versions = versions or {}
        self.shared = ""


class Origin(NamedTuple):
    """What a version was loaded from, as far as it matters."""

    content: str
    shared: str
    batch: int


class ControlMachine(RuleBasedStateMachine):
    """Core and rule side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.generations = 0
        self.disk: dict[str, Directory] = {"a": Directory({1: "x", 2: "x"}), "b": Directory({0: "x"})}
        self.restart()

    def restart(self) -> None:
        """The process starts anew: nothing is remembered but the disk."""
        self.core = ControlCore(next_generation=self.next_generation, auto_complete=True)
        self.store: dict[str, DesiredModel] = {}
        self.rejected: dict[str, str] = {}
        self.expected: dict[str, dict[int, Origin]] = {}
        self.refused: set[str] = set()
        self.born: dict[int, Origin] = {}
        self.failed: set[int] = set()
        self.spared: dict[tuple[str, int], int] = {}

    def next_generation(self, model: ModelId) -> Generation:
        self.generations += 1
        return Generation(self.generations)

    @rule(name=NAMES, change=CHANGES, then=st.sampled_from(["look", "look", "load", "load", "nothing"]))
    def change(self, name: str, change: tuple[object, ...], then: str) -> None:
        """Somebody writes to the disk; it may be seen at once, or only after further changes."""
        directory = self.disk.setdefault(name, Directory())
        match change:
            case ("version", int(version), str(content)):
                directory.versions[version] = content
            case ("no version", int(version)):
                directory.versions.pop(version, None)
            case ("config", Settings() as chosen):
                directory.settings = chosen
            case ("shared", str(content)):
                directory.shared = content
            case _:
                del self.disk[name]
        self.act(name, then)

    @rule(name=NAMES, what=st.sampled_from(["look", "load", "load", "unload", "fail", "fail", "fail and load", "restart"]))
    def act(self, name: str, what: str) -> None:
        """Everything that happens without a change on disk."""
        match what:
            case "look":
                self.look(name)
            case "load":
                self.load(name)
            case "unload":
                self.unload(name)
            case "restart":
                self.restart()
            case "fail" | "fail and load":
                self.fail(name)
                if what == "fail and load":
                    self.load(name)

    def fail(self, name: str) -> None:
        """The data plane reports that it could not load the newest version that is desired."""
        desired = self.store[name].versions if name in self.store else {}
        if desired:
            self.failed.add(desired[max(desired)].generation)

    def look(self, name: str) -> None:
        """Poll mode finds the directory as it is now."""
        if name not in self.disk:
            self.perform(self.core.forget(ModelId(name)))
            self.expected.pop(name, None)
            self.refused.discard(name)
            self.keep_generations(name, {})
        else:
            self.take(name, retry=False)

    def load(self, name: str) -> None:
        """A call: what has failed is tried again."""
        if name in self.disk:
            self.take(name, retry=True)

    def unload(self, name: str) -> None:
        self.perform(self.core.unload(ModelId(name), why="test"))
        if name in self.expected:
            self.expected[name] = {}
        self.refused.discard(name)
        self.keep_generations(name, {})

    def take(self, name: str, *, retry: bool) -> None:
        directory = self.disk[name]
        before = dict(self.store[name].versions) if name in self.store else {}
        failed = [v for v, desired in before.items() if desired.generation in self.failed] if retry else []
        outcome = interpret(self.picture(name), ModelId(name), auto_complete=True)
        selected = directory.settings.selected(set(directory.versions))
        if directory.settings.broken or not selected:
            assert not isinstance(outcome, Candidate)
            self.perform(self.core.refuse(outcome))
            self.refused.add(name)
            return
        assert isinstance(outcome, Candidate)
        config = self.store[name].config if name in self.store else None
        revision = self.store[name].config_revision if name in self.store else 0
        self.perform(self.core.apply(outcome, why="test", failed=failed))
        self.refused.discard(name)
        self.expected[name] = {
            version: Origin(directory.versions[version], directory.shared, directory.settings.batch) for version in selected
        }
        self.keep_generations(name, {int(v): d.generation for v, d in before.items() if v not in failed and int(v) in selected})
        for version in failed:
            if version in self.store[name].versions:
                assert self.store[name].versions[version].generation != before[version].generation, "not tried again"
        changed = self.store[name].config != config
        assert self.store[name].config_revision == revision + changed

    def keep_generations(self, name: str, may_stay: dict[int, int]) -> None:
        """Those of `may_stay` that were loaded from what is there must be desired still."""
        for version in VERSIONS_ALL:
            self.spared.pop((name, version), None)
        for version, generation in may_stay.items():
            if self.born[generation] == self.expected[name][version]:
                self.spared[name, version] = generation

    def picture(self, name: str) -> ModelPicture:
        directory = self.disk[name]
        files = {f"{version}/model.bin": content for version, content in directory.versions.items()}
        if directory.shared:
            files["labels.txt"] = directory.shared
        return assemble(
            ModelLocation("r", name),
            Path("r") / name,
            files=[
                FileFingerprint(path=path, size_bytes=len(content), mtime_ns=0, inode=0, digest=content)
                for path, content in files.items()
            ],
            folders=[str(version) for version in directory.versions],
            config_path="config.pbtxt",
            config_text=directory.settings.text(),
        )

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Put(desired):
                    old = self.store.get(desired.id.name)
                    kept = set() if old is None else {version.generation for version in old.versions.values()}
                    for version in desired.versions.values():
                        assert version.generation in kept or version.generation not in self.born, "a generation came back"
                    self.store[desired.id.name] = desired
                    self.rejected.pop(desired.id.name, None)
                    for version in desired.versions.values():
                        if version.generation not in self.born:
                            directory = self.disk[desired.id.name]
                            origin = Origin(directory.versions[version.version], directory.shared, directory.settings.batch)
                            self.born[version.generation] = origin
                case Reject(model, reason):
                    self.rejected[model.name] = reason
                case Withdraw(model):
                    self.rejected.pop(model.name, None)
                case Remove(model):
                    self.store.pop(model.name, None)
                    self.rejected.pop(model.name, None)

    @invariant()
    def desired_is_what_the_rule_says(self) -> None:
        assert self.store.keys() == self.expected.keys()
        for name, versions in self.expected.items():
            desired = {int(version): entry.generation for version, entry in self.store[name].versions.items()}
            assert {version: self.born[generation] for version, generation in desired.items()} == versions
            assert len(set(desired.values())) == len(desired)
        for (name, version), generation in self.spared.items():
            assert self.store[name].versions[Version(version)].generation == generation, "needlessly loaded anew"

    @invariant()
    def rejections_are_what_was_refused_last(self) -> None:
        assert self.rejected.keys() == self.refused
        assert {model.name for model in self.core.refusals} == self.refused
        assert all(self.rejected.values())


VERSIONS_ALL = range(4)

TestControlCore = ControlMachine.TestCase
TestControlCore.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
