"""The pure parts of the control plane: scans, candidates, debouncing, the merged index."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tpy.clock import SystemClock
from tpy.config import ModelConfig, describe
from tpy.config.model_config import (
    EnsembleScheduling,
    VersionPolicy,
    VersionPolicyAll,
    VersionPolicyLatest,
    VersionPolicySpecific,
)
from tpy.ids import Generation, ModelId, Version
from tpy.messages import ModelDescription, ModelState
from tpy.state import DesiredModel, DesiredVersion, ModelStateStore, ObservedKey, ObservedVersion, Snapshot
from tpy_control.core.candidate import select_versions
from tpy_control.core.debounce import Debouncer, PollResult
from tpy_control.core.index import VersionStatus, index_entries, is_settled, load_error, statuses, strictly_ready
from tpy_control.core.scan import DirectoryFingerprint, FileFingerprint, ModelLocation, assemble, is_ignored, version_of

M = ModelId("m")


@pytest.mark.parametrize(("folder", "version"), [("0", 0), ("1", 1), ("10", 10), (str(2**63 - 1), 2**63 - 1)])
def test_folders_that_are_versions(folder: str, version: int) -> None:
    assert version_of(folder) == version


@pytest.mark.parametrize("folder", ["01", "00", "1abc", "abc", "-1", "+1", "1.0", " 1", "\u0661", str(2**63), "1" * 5000])
def test_folders_that_are_not(folder: str) -> None:
    assert f"ignore version directory '{folder}' which " in str(version_of(folder))


def test_passing_names() -> None:
    assert [name for name in (".git", "__pycache__", "a~", "x.swp", "m.pyc", "model.py", "1") if is_ignored(name)] == [
        ".git",
        "__pycache__",
        "a~",
        "x.swp",
        "m.pyc",
    ]


def fingerprint(path: str, *, digest: str = "d", mtime_ns: int = 0, identity: int = 0) -> FileFingerprint:
    return FileFingerprint(path=path, size_bytes=1, mtime_ns=mtime_ns, identity=identity, digest=digest)


def test_a_scan_sorts_files_of_versions_and_shared_files() -> None:
    paths = ["config.pbtxt", "configs/a.pbtxt", "labels.txt", "warmup/w", "1/model.onnx", "1/sub/x", "10/model.onnx", "old/y"]
    scan = assemble(
        ModelLocation("r", "m"),
        Path("r/m"),
        files=[fingerprint(path) for path in paths],
        folders=["configs", "warmup", "1", "10", "9", "old", "02"],
        config_path="config.pbtxt",
        config_text="",
    )
    assert [version.version for version in scan.versions] == [1, 9, 10]
    assert [version.names for version in scan.versions] == [{"model.onnx", "sub/"}, set(), {"model.onnx"}]
    assert [file.path for file in scan.shared] == ["labels.txt", "warmup/w", "old/y"]
    assert scan.first_version_names == frozenset({"model.onnx", "sub/"}), "sorted as text: 1, 10, 9"
    assert [warning.split("'")[1] for warning in scan.warnings] == ["02", "old"]


def test_small_files_are_compared_by_content_and_large_ones_by_their_traces() -> None:
    assert fingerprint("a", mtime_ns=1).content == fingerprint("a", mtime_ns=2, identity=5).content
    assert fingerprint("a", digest="x").content != fingerprint("a", digest="y").content
    assert fingerprint("a", digest="", mtime_ns=1).content != fingerprint("a", digest="", mtime_ns=2).content
    assert fingerprint("a", digest="", identity=1).content != fingerprint("a", digest="", identity=2).content
    assert fingerprint("a", mtime_ns=1).stat_key != fingerprint("a", mtime_ns=2).stat_key


@pytest.mark.parametrize(
    ("policy", "selected"),
    [
        (None, (10,)),
        (VersionPolicy(), (10,)),
        (VersionPolicy(latest=VersionPolicyLatest(num_versions=2)), (3, 10)),
        (VersionPolicy(latest=VersionPolicyLatest(num_versions=9)), (1, 3, 10)),
        (VersionPolicy(latest=VersionPolicyLatest()), ()),
        (VersionPolicy(all=VersionPolicyAll()), (1, 3, 10)),
        (VersionPolicy(specific=VersionPolicySpecific(versions=(3, 7))), (3,)),
        (VersionPolicy(specific=VersionPolicySpecific(versions=(7,))), ()),
    ],
)
def test_version_policies(policy: VersionPolicy | None, selected: tuple[int, ...]) -> None:
    assert select_versions(policy, [Version(10), Version(1), Version(3)]) == selected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=30), st.integers(0, 10))
def test_a_result_is_used_when_it_was_the_same_for_long_enough(looks: list[tuple[int, int]], settle_ns: int) -> None:
    """Against the rule: use a result when all looks since some moment `settle_ns` ago showed it, and it is not the used one."""
    debouncer = Debouncer(settle_ns)
    results = [
        PollResult(),
        *(PollResult((ModelLocation("r", "m"),), DirectoryFingerprint(error=str(number))) for number in range(3)),
    ]
    history: list[tuple[int, PollResult]] = []
    used = PollResult()
    now_ns = 0
    for which, step_ns in looks:
        now_ns += step_ns
        result = results[which]
        history.append((now_ns, result))
        same_since = now_ns
        for when, seen in reversed(history):
            if seen != result:
                break
            same_since = when
        expected = result != used and now_ns - same_since >= settle_ns
        assert debouncer.observe(M, result, now_ns) == expected
        deadline_ns = debouncer.next_deadline_ns()
        assert (deadline_ns is None) == (result == used)
        if deadline_ns is not None:
            assert expected == (deadline_ns <= now_ns)
        if expected:
            debouncer.mark_used(M, result)
            used = result
            history.clear()


class Halves:
    """A store that tests write as both planes."""

    def __init__(self) -> None:
        self.store = ModelStateStore(SystemClock())
        self.desire = self.store.desired_writer()
        self.observe = self.store.observed_writer()

    def want(
        self, versions: dict[int, int], *, revision: int = 1, ensemble_scheduling: EnsembleScheduling | None = None
    ) -> DesiredModel:
        desired = DesiredModel(
            id=M,
            directory=Path("m"),
            config=ModelConfig(name="m", ensemble_scheduling=ensemble_scheduling),
            config_revision=revision,
            versions={
                Version(v): DesiredVersion(version=Version(v), generation=Generation(g), directory=Path("m"))
                for v, g in versions.items()
            },
        )
        self.desire.put(desired)
        return desired

    def see(
        self,
        version: int,
        generation: int,
        *states: ModelState,
        reason: str = "",
        revision: int = 1,
        error: str = "",
        refused: int = 0,
        description: ModelDescription | None = None,
    ) -> None:
        key = ObservedKey(M, Version(version), Generation(generation))
        for state in states:
            told = reason if state is ModelState.UNAVAILABLE else ""
            self.observe.move(
                ObservedVersion(
                    key=key,
                    state=state,
                    reason=told,
                    config_revision=revision,
                    applied_error=error,
                    refused_revision=refused,
                    description=description,
                )
            )

    def snapshot(self) -> Snapshot:
        return self.store.snapshot()


L, R, U, N = ModelState.LOADING, ModelState.READY, ModelState.UNLOADING, ModelState.UNAVAILABLE


def status(version: int, state: ModelState, reason: str = "") -> VersionStatus:
    return VersionStatus(version=Version(version), state=state, reason=reason)


def test_a_version_is_ready_as_long_as_one_generation_serves() -> None:
    halves = Halves()
    desired = halves.want({1: 1})
    assert statuses(halves.snapshot(), M) == [status(1, ModelState.UNKNOWN)]
    assert not is_settled(halves.snapshot(), desired)
    halves.see(1, 1, L)
    assert statuses(halves.snapshot(), M) == [status(1, L)]
    assert not ready(halves)
    halves.see(1, 1, R)
    assert is_settled(halves.snapshot(), desired)
    assert load_error(halves.snapshot(), desired) is None
    newer = halves.want({1: 2})
    halves.see(1, 2, L)
    assert statuses(halves.snapshot(), M) == [status(1, R)]
    assert not is_settled(halves.snapshot(), newer)
    halves.see(1, 2, N, reason="Internal: boom")
    assert statuses(halves.snapshot(), M) == [status(1, R, "Internal: boom")]
    assert ready(halves)
    assert is_settled(halves.snapshot(), newer)
    assert str(load_error(halves.snapshot(), newer)) == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: boom;\n"
    )


def ready(halves: Halves, *, failed_loads: bool = True) -> bool:
    return strictly_ready(halves.snapshot(), refusals=[], failed_loads=lambda _: failed_loads)


def test_an_ensemble_without_its_members_fails_with_its_reason_alone() -> None:
    halves = Halves()
    desired = halves.want({1: 1}, ensemble_scheduling=EnsembleScheduling())
    halves.see(1, 1, L, R)
    halves.see(1, 1, N, reason="unloaded")
    assert ready(halves), "a member was unloaded on purpose"
    halves.see(1, 1, N, reason="Invalid argument: in ensemble m, this and that")
    assert not ready(halves)
    assert ready(halves, failed_loads=False)
    assert str(load_error(halves.snapshot(), desired)) == "load failed for model 'm': in ensemble m, this and that\n"


def test_an_old_generation_that_unloads_beside_a_new_one_does_not_show() -> None:
    halves = Halves()
    halves.want({1: 1})
    halves.see(1, 1, L, R)
    halves.want({1: 2})
    halves.see(1, 2, L, R)
    halves.see(1, 1, U)
    assert statuses(halves.snapshot(), M) == [status(1, R)]
    assert ready(halves)
    halves.see(1, 1, N, reason="unloaded")
    assert statuses(halves.snapshot(), M) == [status(1, R)]


def test_a_load_has_settled_when_nothing_answers_that_it_took_away() -> None:
    """Version 2 is gone from the repository: until it stops answering, requests for the newest version would still meet it."""
    halves = Halves()
    halves.want({1: 1, 2: 1})
    halves.see(1, 1, L, R)
    halves.see(2, 1, L, R)
    desired = halves.want({1: 1})
    assert not is_settled(halves.snapshot(), desired)
    halves.see(2, 1, U)
    assert is_settled(halves.snapshot(), desired)


def test_a_resize_has_settled_when_its_revision_was_applied_or_refused() -> None:
    halves = Halves()
    halves.want({1: 1})
    halves.see(1, 1, L, R)
    desired = halves.want({1: 1}, revision=2)
    assert not is_settled(halves.snapshot(), desired)
    halves.see(1, 1, R, revision=1, error="Invalid argument: no such GPU", refused=2)
    assert is_settled(halves.snapshot(), desired)
    assert "version 1 is at READY state: Invalid argument: no such GPU;" in str(load_error(halves.snapshot(), desired))
    assert statuses(halves.snapshot(), M) == [status(1, R, "Invalid argument: no such GPU")]
    newer = halves.want({1: 1}, revision=3)
    assert not is_settled(halves.snapshot(), newer), "the refusal is of the revision before"
    halves.see(1, 1, R, revision=3, refused=2)
    assert is_settled(halves.snapshot(), newer)
    assert load_error(halves.snapshot(), newer) is None


def test_what_was_unloaded_on_purpose_leaves_the_server_ready() -> None:
    halves = Halves()
    halves.want({1: 1})
    halves.see(1, 1, L, R)
    halves.want({})
    halves.see(1, 1, U)
    assert not ready(halves)
    halves.see(1, 1, N, reason="unloaded")
    assert ready(halves)
    assert statuses(halves.snapshot(), M) == [status(1, N, "unloaded")]


def test_a_dead_version_makes_the_server_unready_until_it_is_back() -> None:
    halves = Halves()
    desired = halves.want({1: 1})
    halves.see(1, 1, L, R)
    description = describe(ModelConfig(name="m"), Version(1), {})
    halves.see(1, 1, N, reason="Internal: the worker died", description=description)
    assert not ready(halves, failed_loads=False)
    assert is_settled(halves.snapshot(), desired)
    halves.see(1, 1, R)
    assert ready(halves)


def test_the_index_leaves_out_what_is_gone_and_goes_on_behind_it() -> None:
    halves = Halves()
    halves.want({1: 1})
    halves.see(1, 1, L, R)
    halves.want({})
    halves.see(1, 1, U)
    halves.see(1, 1, N, reason="unloaded")
    entries = index_entries(halves.snapshot(), locations=[ModelLocation("r", "n")], refusals={}, namespacing=False)
    assert [entry.name for entry in entries] == ["n"], "m was unloaded, and its directory is gone"
