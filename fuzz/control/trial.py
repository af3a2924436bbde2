"""ControlTrial: the control core beside a naive rule, in any order of events.

The rule: what is desired of a model are the versions that its policy selected at the last good look, and the one that answers
while a newer one is rolled out, if a policy of the latest ones left that out, each in a generation that was loaded from exactly
what was there then. A generation is replaced only when what it was loaded from has changed, when its load
has failed and is asked for again, or when the version was not desired in between.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from fuzz.target import Violation
from tpy.ids import Generation, ModelId, Version
from tpy.state import DesiredModel
from tpy_control.core.candidate import Candidate, Refused, interpret
from tpy_control.core.control import Action, ControlCore, Put, Reject, Remove, Withdraw
from tpy_control.core.scan import FileFingerprint, ModelLocation, ModelScan, assemble

INVARIANT = (
    "whatever happens on disk, whatever is loaded, unloaded, fails or restarts, what is desired of a model are the versions that"
    " its policy selected at the last good look, and the one that answers while a newer one is rolled out, if it is older, each"
    " in a generation loaded from what was there then; a generation is replaced only for a reason, and never comes back; what was"
    " refused last, and nothing else, is rejected with a reason"
)
VERSIONS = range(4)


class Settings(NamedTuple):
    """A configuration of these tests. `policy`: "all", a count, or listed versions."""

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


class Directory:
    """A model directory of the naive repository."""

    def __init__(self, versions: dict[int, str] | None = None) -> None:
        self.settings = Settings()
        self.versions = versions or {}
        self.shared = ""


class Origin(NamedTuple):
    """The files of which a version was loaded, as far as they matter."""

    content: str
    shared: str
    batch: int


class ControlTrial:
    """Core and rule side by side. The caller calls the rules; a rule raises Violation when anything is wrong."""

    def __init__(self, core_of: type[ControlCore] = ControlCore, taken: Counter[str] | None = None) -> None:
        self.core_of = core_of
        self.taken: Counter[str] = Counter() if taken is None else taken
        self.steps: list[tuple[object, ...]] = []
        self.generations = 0
        self.disk: dict[str, Directory] = {"a": Directory({1: "x", 2: "x"}), "b": Directory({0: "x"})}
        self.restart()

    def restart(self) -> None:
        """The process starts anew: nothing is remembered but the disk."""
        self.core = self.core_of(next_generation=self.next_generation, auto_complete=True)
        self.store: dict[str, DesiredModel] = {}
        self.rejected: dict[str, str] = {}
        self.expected: dict[str, dict[int, Origin]] = {}
        self.found: dict[str, tuple[Settings, dict[int, Origin]]] = {}  # at the last good look
        self.answering: dict[str, int] = {}
        self.refused: set[str] = set()
        self.born: dict[int, Origin] = {}
        self.failed: set[int] = set()
        self.spared: dict[tuple[str, int], int] = {}

    def next_generation(self, model: ModelId) -> Generation:
        self.generations += 1
        return Generation(self.generations)

    def change(self, name: str, change: tuple[object, ...], then: str) -> None:
        """Somebody writes to the disk; it may be seen at once, or only after further changes."""
        self.taken[f"disk: {change[0]}"] += 1
        self.steps.append(("change", name, change))
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

    def act(self, name: str, what: str) -> None:
        """Everything that happens without a change on disk."""
        self.taken[what] += 1
        self.steps.append((what, name))
        match what:
            case "look":
                self.look(name)
            case "load":
                self.load(name)
            case "unload":
                self.unload(name)
            case "restart":
                self.restart()
            case "newest answers":
                self.answers(name, None)
            case "fail" | "fail and load":
                self.load_fails(name)
                if what == "fail and load":
                    self.load(name)
        self.check()

    def answer(self, name: str, version: int) -> None:
        """The data plane says that a version answers until a newer one is promoted."""
        self.taken["answer"] += 1
        self.steps.append(("answer", name, version))
        self.answers(name, version)
        self.check()

    def answers(self, name: str, version: int | None) -> None:
        self.answering.pop(name, None)
        if version is not None:
            self.answering[name] = version
        before = dict(self.store[name].versions) if name in self.store else {}
        self.perform(self.core.keep_answering(ModelId(name), None if version is None else Version(version)))
        if self.expected.get(name):
            self.expect(name)
            self.keep_generations(name, {int(v): d.generation for v, d in before.items() if int(v) in self.expected[name]})

    def expect(self, name: str) -> None:
        """Write down what is to be desired: the versions that the policy selects, and the one that answers."""
        settings, found = self.found[name]
        versions = settings.selected(set(found))
        answering = self.answering.get(name)
        if isinstance(settings.policy, int) and answering in found and answering not in versions:
            versions = {answering, *versions}
            self.taken["kept beyond the policy"] += 1
        self.expected[name] = {version: found[version] for version in versions}

    def load_fails(self, name: str) -> None:
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
        self.perform(self.core.unload(ModelId(name), why="test", components=False))
        if name in self.expected:
            self.expected[name] = {}
        self.refused.discard(name)
        self.keep_generations(name, {})

    def take(self, name: str, *, retry: bool) -> None:
        directory = self.disk[name]
        before = dict(self.store[name].versions) if name in self.store else {}
        failed = [v for v, desired in before.items() if desired.generation in self.failed] if retry else []
        outcome = _look(name, directory.settings, tuple(sorted(directory.versions.items())), directory.shared)
        selected = directory.settings.selected(set(directory.versions))
        if directory.settings.broken or not selected:
            assert not isinstance(outcome, Candidate)
            self.perform(self.core.refuse(outcome))
            self.refused.add(name)
            self.taken["refused"] += 1
            return
        assert isinstance(outcome, Candidate)
        config = self.store[name].config if name in self.store else None
        revision = self.store[name].config_revision if name in self.store else 0
        self.found[name] = (
            directory.settings,
            {
                version: Origin(content, directory.shared, directory.settings.batch)
                for version, content in directory.versions.items()
            },
        )
        answering = self.answering.get(name)
        self.perform(
            self.core.apply(outcome, why="test", failed=failed, answering=None if answering is None else Version(answering))
        )
        self.refused.discard(name)
        self.expect(name)
        selected = set(self.expected[name])
        self.keep_generations(name, {int(v): d.generation for v, d in before.items() if v not in failed and int(v) in selected})
        for version in failed:
            if version in self.store[name].versions:
                self._must(self.store[name].versions[version].generation != before[version].generation, "not tried again")
        changed = self.store[name].config != config
        self._must(self.store[name].config_revision == revision + changed, "the revision follows the configuration")

    def keep_generations(self, name: str, may_stay: dict[int, int]) -> None:
        """Those of `may_stay` that were loaded from what is there must be desired still."""
        for version in VERSIONS:
            self.spared.pop((name, version), None)
        for version, generation in may_stay.items():
            if self.born[generation] == self.expected[name][version]:
                self.spared[name, version] = generation

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Put(desired):
                    old = self.store.get(desired.id.name)
                    kept = set() if old is None else {version.generation for version in old.versions.values()}
                    for version in desired.versions.values():
                        self._must(version.generation in kept or version.generation not in self.born, "a generation came back")
                    self.store[desired.id.name] = desired
                    self.rejected.pop(desired.id.name, None)
                    for version in desired.versions.values():
                        if version.generation not in self.born:
                            self.born[version.generation] = self.found[desired.id.name][1][version.version]
                case Reject(model, reason):
                    self.rejected[model.name] = reason
                case Withdraw(model):
                    self.rejected.pop(model.name, None)
                case Remove(model):
                    self.store.pop(model.name, None)
                    self.rejected.pop(model.name, None)

    def _check_desired(self) -> None:
        self._must(self.store.keys() == self.expected.keys(), "other models are desired")
        for name, versions in self.expected.items():
            desired = {int(version): entry.generation for version, entry in self.store[name].versions.items()}
            self._must(
                {version: self.born[generation] for version, generation in desired.items()} == versions,
                "other versions are desired",
            )
            self._must(len(set(desired.values())) == len(desired), "two versions share a generation")
        for (name, version), generation in self.spared.items():
            self._must(self.store[name].versions[Version(version)].generation == generation, "needlessly loaded anew")

    def _check_rejections(self) -> None:
        self._must(self.rejected.keys() == self.refused, "other models are rejected")
        self._must({model.name for model in self.core.refusals} == self.refused, "other models are rejected")
        self._must(all(self.rejected.values()), "a rejection without a reason")

    def check(self) -> None:
        """Check the invariants that hold between any two events."""
        self._check_desired()
        self._check_rejections()

    def _must(self, holds: bool, text: str) -> None:
        if not holds:
            history = "\n".join(f"  {step}" for step in self.steps)
            raise Violation(f"{text}\ndesired {self.store}\nexpected {self.expected}\n{history}")


@functools.lru_cache(maxsize=100_000)
def _look(name: str, settings: Settings, versions: tuple[tuple[int, str], ...], shared: str) -> Candidate | Refused:
    """The outcome of a scan of the directory: a pure function, whose parsing of the configuration takes most of a history's
    time."""
    files = {f"{version}/model.bin": content for version, content in versions}
    if shared:
        files["labels.txt"] = shared
    scan: ModelScan = assemble(
        ModelLocation("r", name),
        Path("r") / name,
        files=[
            FileFingerprint(path=path, size_bytes=len(content), mtime_ns=0, identity=0, digest=content)
            for path, content in files.items()
        ],
        folders=[str(version) for version, _ in versions],
        config_path="config.pbtxt",
        config_text=settings.text(),
    )
    return interpret(scan, ModelId(name), auto_complete=True)
