"""`batching: auto` from the configuration to the explanation, in virtual time: curves that are kept, and what is warned of."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from trio.testing import MockClock

from tests.engine.fakes import Rig, config, dynamic, instances, request, rig
from tpy.backend import ExecutionBatch, ExecutionResult
from tpy.config import validate
from tpy.config.model_config import DynamicBatching, ModelConfig, ModelParameter, SequenceBatching, StrategyDirect
from tpy.config.tuned_batching import TunedBatching, tuned_batching
from tpy.errors import InvalidArgument
from tpy.ids import Generation, ModelId, Version
from tpy.messages import CurvePoint, ModelExplanation, TunedWait, TuningActivity
from tpy.state import DesiredModel, DesiredVersion
from tpy.tenants import TenantRules
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.engine.explanation.core.advice import findings
from tpy_data.engine.tuning.kept_curves import CurvesFile, KeptCurve, KeptCurves, OpenCurve
from tpy_data.schedulers.core import make_core
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.engine_core import EngineCore
from tpy_data.schedulers.core.fair_cores import FairDynamicCore
from tpy_data.schedulers.core.rate_limiter import Supply
from tpy_data.schedulers.core.tenants import tenants_of
from tpy_data.schedulers.core.tuned_cores import TunedDynamicCore, TunedFairCore
from tpy_tools.commands.explain.core.model import lines_of


def tuned_config(batching: str = "auto", target_ms: str = "", **changes: Any) -> ModelConfig:
    """Of a model with this value of `batching`."""
    parameters = {"batching": ModelParameter(string_value=batching)} if batching else {}
    if target_ms:
        parameters["target_p99_ms"] = ModelParameter(string_value=target_ms)
    return config(**{"max_batch_size": 8, "dynamic_batching": dynamic(), "parameters": parameters, **changes})


def tuning(r: Rig) -> TuningActivity:
    (explanation,) = r.plane.explain("m")
    found = explanation.activity.queue.tuning
    assert found is not None
    return found


async def convoy(r: Rig, rounds: int, clients: int = 4) -> None:
    """Clients that each wait for their answer, and come back at the same time."""
    for _ in range(rounds):
        for sink in [r.submit(request(1, 2)) for _ in range(clients)]:
            await sink.wait()


# the configuration


@pytest.mark.parametrize(
    ("changes", "warnings"),
    [
        ({}, []),
        ({"target_ms": "20"}, []),
        ({"batching": ""}, []),
        (
            {"batching": "none"},
            ["batching of m has the unexpected value 'none', expected auto: batches are formed as without it"],
        ),
        ({"batching": "", "target_ms": "20"}, ["target_p99_ms of m has no effect without the parameter batching: auto"]),
        (
            {"target_ms": "-1"},
            ["target_p99_ms of m has the unexpected value '-1', expected milliseconds above 0, at most 1e9: no target is set"],
        ),
        (
            {"target_ms": "1e305"},
            ["target_p99_ms of m has the unexpected value '1e305', expected milliseconds above 0, at most 1e9: no target is set"],
        ),
        (
            {"target_ms": "soon"},
            ["target_p99_ms of m has the unexpected value 'soon', expected milliseconds above 0, at most 1e9: no target is set"],
        ),
        ({"dynamic_batching": None}, ["batching of m has no effect: it needs dynamic_batching { }"]),
        (
            {"max_batch_size": 1},
            ["batching of m has no effect: max_batch_size is 1, so no batch has more than one row"],
        ),
        (
            {"dynamic_batching": DynamicBatching(preferred_batch_size=(4,), max_queue_delay_microseconds=5)},
            [
                (
                    "batching of m chooses sizes and waits itself: preferred_batch_size and max_queue_delay_microseconds of "
                    "dynamic_batching are not used"
                )
            ],
        ),
    ],
)
def test_what_has_no_effect_is_warned_of(changes: dict[str, Any], warnings: list[str]) -> None:
    found = [each for each in validate(tuned_config(**changes)) if "batching of" in each.message or "target" in each.message]
    assert [each.message.removeprefix("parameter ") for each in found] == warnings


def test_the_tuning_of_a_model() -> None:
    assert tuned_batching(tuned_config()) == TunedBatching(0)
    assert tuned_batching(tuned_config(target_ms="2.5")) == TunedBatching(2_500_000)
    assert tuned_batching(tuned_config(target_ms="nan")) == TunedBatching(0)
    sequences = {"dynamic_batching": None, "sequence_batching": SequenceBatching(direct=StrategyDirect())}
    assert tuned_batching(tuned_config(**sequences)) is None


def test_the_core_of_a_model() -> None:
    tenants = tenants_of([TenantRules(name="a")])
    assert isinstance(make_core(tuned_config()), TunedDynamicCore)
    assert isinstance(make_core(tuned_config(), tenants=tenants), TunedFairCore)
    assert not isinstance(make_core(tuned_config("off")), TunedDynamicCore)
    assert isinstance(make_core(tuned_config("off")), DynamicCore)
    assert isinstance(make_core(tuned_config("off"), tenants=tenants), FairDynamicCore)
    assert isinstance(make_core(tuned_config(), engine=True), EngineCore)


# a model


async def test_a_convoy_is_seen_and_held_together(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(tuned_config())
        await convoy(r, 10)
        assert await _rows_of_the_next(r) == [4]
        found = tuning(r)
        (explanation,) = r.plane.explain("m")
    assert found.may_wait
    assert [(each.rows, each.goal) for each in found.waits] == [(1, 4)]
    assert found.curve[0].mean_ns == 10 * NS_PER_MS
    text = "\n".join(lines_of(explanation))
    assert "  wait        1 row that came to an idle instance: up to 312 us, until there are 4; that saves" in text
    assert "  cost        1 row: 10 ms, give or take 0 ns" in text


async def test_batches_that_fail_as_a_whole_say_nothing_about_costs(autojump_clock: MockClock) -> None:
    def refuse(batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        raise InvalidArgument("not this one")

    async with rig(latency_ms=10) as r:
        await r.serve(tuned_config())
        execute, r.backend.execute = r.backend.execute, refuse
        await convoy(r, 5)
        assert tuning(r).curve == ()
        r.backend.execute = execute
        await convoy(r, 5)
        assert {point.mean_ns for point in tuning(r).curve} == {10 * NS_PER_MS}


async def _rows_of_the_next(r: Rig) -> list[int]:
    """The sizes of the batches of one more convoy."""
    (before,) = r.plane.explain("m")
    await convoy(r, 1)
    (after,) = r.plane.explain("m")
    return [size for size, count in after.batch_sizes.items() for _ in range(count - before.batch_sizes.get(size, 0))]


async def test_of_several_instances_the_last_idle_one_waits(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(tuned_config(instance_group=instances(2)))
        await convoy(r, 10)
        assert sorted(await _rows_of_the_next(r)) == [1, 3]
        found = tuning(r)
    assert found.may_wait
    assert [(each.rows, each.goal) for each in found.waits] == [(1, 3)]


async def test_a_model_without_the_parameter_has_no_tuning(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await r.serve(tuned_config(""))
        (explanation,) = r.plane.explain("m")
    assert explanation.activity.queue.tuning is None


@pytest.mark.parametrize("rate_limit", [None, Supply()])
async def test_a_target_that_cannot_be_met_is_warned_of_once(
    rate_limit: Supply | None, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(latency_ms=10, rate_limit=rate_limit) as r:
        await r.serve(tuned_config(target_ms="4"))
        await convoy(r, 10)
        (explanation,) = r.plane.explain("m")
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == ["target_p99_ms of 'm' is 4, and its smallest batch takes 10 ms: no batching can meet the target"]
    (finding,) = [each for each in findings(explanation) if each.limit == "target_p99_ms"]
    assert finding.sentence == "target_p99_ms is 4 ms, and the smallest batch takes 10 ms: no batching can meet it."
    tuning = explanation.activity.queue.tuning
    assert tuning is not None
    assert tuning.may_wait is (rate_limit is None), "under a rate limiter no batch waits for company"


async def test_the_choices_and_late_requests_are_measured(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10) as r:
        assert r.plane.batching_families() == ()
        await r.serve(tuned_config(target_ms="15"))
        await convoy(r, 10)
        sinks = [r.submit(request(1, 2)) for _ in range(9)]  # the ninth waits for the batch of the others
        for sink in sinks:
            await sink.wait()
        found = {family.name: [sample.value for sample in family.samples] for family in r.plane.batching_families()}
        tuned = tuning(r)
    assert tuned.batch_rows == 8
    assert found["tpy_batching_rows"] == [tuned.batch_rows]
    assert found["tpy_batching_expected_seconds"] == [tuned.batch_ns / NS_PER_S]
    assert found["tpy_batching_wait_seconds"] == [max(wait.wait_ns for wait in tuned.waits) / NS_PER_S]
    assert found["tpy_batching_target_seconds"] == [0.015]
    assert found["tpy_batching_late_total"] == [tuned.late]
    assert tuned.late > 0
    assert found["tpy_batching_padding_ratio"] == []


async def test_curves_are_kept_as_long_as_the_model_is_the_same(autojump_clock: MockClock, tmp_path: Path) -> None:
    file, folder = tmp_path / "curves.json", tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    async with rig(latency_ms=10, curves_file=file) as r:
        await r.serve(tuned_config(), directory=folder)
        await convoy(r, 4)
    kept = msgspec.json.decode(file.read_bytes(), type=CurvesFile)
    assert [(name, curve.points[0].mean_ns) for name, curve in kept.models.items()] == [("m:1", 10 * NS_PER_MS)]
    async with rig(latency_ms=10, curves_file=file) as r:
        await r.serve(tuned_config(), directory=folder)
        assert tuning(r).curve[0].mean_ns == 10 * NS_PER_MS
    (folder / "1" / "model.py").write_text("another model")
    async with rig(latency_ms=10, curves_file=file) as r:
        await r.serve(tuned_config(), directory=folder)
        assert tuning(r).curve == ()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not used: Input data was truncated; curves are learned anew"),
        ('{"format": 1, "models": {"m:1": 3}}', "is not used: Expected `object`, got `int`"),
        ('{"format": 9}', "has format 9, expected 1: curves are learned anew"),
        ('{"format": 9, "models": [1]}', "has format 9, expected 1: curves are learned anew"),
    ],
)
async def test_a_file_that_cannot_be_used_is_warned_of_and_written_over(
    content: str, reason: str, autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, folder = tmp_path / "curves.json", tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    file.write_text(content)
    async with rig(latency_ms=10, curves_file=file) as r:
        await r.serve(tuned_config(), directory=folder)
        await convoy(r, 2)
    assert f"--batching-curves-file {file} {reason}" in caplog.text
    assert msgspec.json.decode(file.read_bytes(), type=CurvesFile).models


async def test_a_file_that_cannot_be_written_is_an_error_in_the_log(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    async with rig(latency_ms=10, curves_file=tmp_path / "not there" / "curves.json") as r:
        await r.serve(tuned_config(), directory=folder)
        await convoy(r, 2)
    assert "curves.json cannot be written: " in caplog.text


# what is late


@pytest.mark.parametrize("with_tenants", [False, True])
def test_only_answers_are_late(with_tenants: bool) -> None:
    all_tenants = tenants_of([TenantRules(name="a")])
    tenants, owner = all_tenants if with_tenants else None, all_tenants.of("a")
    core = make_core(tuned_config(target_ms="10"), tenants=tenants)
    core.add_instance(0, 0)

    def late() -> int:
        found = core.explain(0).tuning
        assert found is not None
        return found.late

    def submit(ticket: Ticket, now_ns: int) -> Ticket:
        ticket.tenant, ticket.size_bytes = owner, 0
        core.submit(ticket, now_ns)
        return ticket

    submit(Ticket(deadline_ns=20 * NS_PER_MS), 0)
    core.done(0, 50 * NS_PER_MS, (50 * NS_PER_MS,))
    assert late() == 0
    core.cancel(submit(Ticket(), 50 * NS_PER_MS), 60 * NS_PER_MS)
    core.done(0, 100 * NS_PER_MS, (50 * NS_PER_MS,))
    assert late() == 0
    core.reschedule(submit(Ticket(), 100 * NS_PER_MS), 105 * NS_PER_MS)
    core.done(0, 150 * NS_PER_MS, (50 * NS_PER_MS,))
    assert late() == 0
    core.done(0, 160 * NS_PER_MS, (10 * NS_PER_MS,))
    assert late() == 1


# its explanation


def explanation_of(found: TuningActivity) -> ModelExplanation:
    queue = msgspec.structs.replace(ModelExplanation(name="m", version=1).activity.queue, tuning=found)
    activity = msgspec.structs.replace(ModelExplanation(name="m", version=1).activity, queue=queue)
    return ModelExplanation(name="m", version=1, activity=activity)


def test_a_long_curve_is_shown_in_part() -> None:
    points = tuple(CurvePoint(rows, rows * NS_PER_MS, 0, 9) for rows in range(1, 65))
    text = "\n".join(lines_of(explanation_of(TuningActivity(curve=points, trial_rows=8, may_wait=True))))
    assert text.count("  cost  ") == 12
    assert "cost        1 row: 1 ms" in text
    assert "cost        64 rows: 64 ms, give or take 0 ns, 1 ms for a row" in text
    assert "size        8 rows are tried" in text
    assert "no wait would have saved" in text


def test_waits_and_a_target_are_shown() -> None:
    found = TuningActivity(
        target_ns=20 * NS_PER_MS, may_wait=True, waits=(TunedWait(1, True, NS_PER_MS // 2, 8, 314),), arrivals_per_s=70
    )
    text = "\n".join(lines_of(explanation_of(found)))
    assert "tuning      target_p99_ms 20 ms, 70 rows arrive in a second" in text
    assert "wait        1 row that came to an idle instance: up to 500 us, until there are 8; that saves 31 %" in text


def test_the_curves_kept_longest_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpy_data.engine.tuning.kept_curves.CURVES_KEPT_MAX", 3)
    curves = KeptCurves(tmp_path / "curves.json")
    for name in ("a:1", "b:1", "c:1", "a:1", "d:1"):
        curves.keep(name, KeptCurve("", ()))
    assert list(msgspec.json.decode((tmp_path / "curves.json").read_bytes(), type=CurvesFile).models) == ["c:1", "a:1", "d:1"]


def test_many_curves_are_written_together(tmp_path: Path) -> None:
    file = tmp_path / "curves.json"
    curves = KeptCurves(file)

    def written() -> int:
        return len(msgspec.json.decode(file.read_bytes(), type=CurvesFile).models)

    writes, before = 0, 0
    for count in range(1, 401):
        curves.keep(f"{count}:1", KeptCurve("", ()))
        writes += written() != before
        before = written()
    assert writes < 100
    assert 400 - before <= 400 // 16
    curves.close()
    assert written() == 400
    curves.keep("late:1", KeptCurve("", ()))
    assert written() == 401


def test_curves_that_could_not_be_written_are_written_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "folder" / "curves.json"
    curves = KeptCurves(file)
    curves.keep("a:1", KeptCurve("", ()))
    assert "curves.json cannot be written: " in caplog.text
    file.parent.mkdir()
    curves.close()
    assert list(msgspec.json.decode(file.read_bytes(), type=CurvesFile).models) == ["a:1"]


async def test_a_disk_that_hangs_does_not_hold_up_the_end(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = tmp_path / "curves.json", tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    failed, begun, goes_on, ended = (threading.Event() for _ in range(4))

    def replace(file: Path, content: bytes) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError("no space left")
        begun.set()
        goes_on.wait(10)
        ended.set()

    monkeypatch.setattr("tpy_data.engine.tuning.kept_curves.replace_file", replace)
    try:
        async with rig(latency_ms=10, curves_file=file) as r:
            await r.serve(tuned_config(), directory=folder)
            await convoy(r, 2)
        assert begun.wait(10)
        assert not ended.is_set()
    finally:
        goes_on.set()


def test_the_curves_of_a_file_can_be_read_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    version = DesiredVersion(version=Version(1), generation=Generation(1), directory=tmp_path / "m" / "1")
    model = DesiredModel(
        id=ModelId(name="m"), directory=tmp_path / "m", config=tuned_config(), config_revision=1, versions={Version(1): version}
    )
    curves = KeptCurves(tmp_path / "curves.json")
    opened: list[OpenCurve | None] = []

    def replace(file: Path, content: bytes) -> None:
        reader = threading.Thread(target=lambda: opened.append(curves.open(model, version)), daemon=True)
        reader.start()
        reader.join(10)

    monkeypatch.setattr("tpy_data.engine.tuning.kept_curves.replace_file", replace)
    curves.keep("a:1", KeptCurve("", ()))
    assert len(opened) == 1


async def test_files_that_cannot_be_read_keep_no_model_from_loading(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(latency_ms=10, curves_file=tmp_path / "curves.json") as r:
        await r.serve(tuned_config(), directory=tmp_path / "gone")
        await convoy(r, 2)
    assert "the batching curve of 'm:1' is learned anew, and not kept: " in caplog.text
    assert not (tmp_path / "curves.json").exists()
