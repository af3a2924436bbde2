"""Models under a memory budget: loaded when requests ask for them, unloaded for others, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.engine.ensembles import CHAIN
from tests.engine.fakes import (
    RecordingSink,
    Rig,
    ScriptedBackend,
    ScriptedInstance,
    ScriptedModel,
    config,
    identity,
    instances,
    request,
    rig,
    values,
)
from tests.engine.sequences import STATE, direct, of, sequence_backend, sequence_config, summing
from tpy.backend import ExecutionBatch, ExecutionResult, InstancePlacement, LoadedModel, ModelContext, ModelInstance
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter
from tpy.errors import Internal, NotFound, Unavailable
from tpy.messages import ModelState, WaitReason
from tpy.testing.loop_guard import LoopGuard
from tpy.units import NS_PER_S
from tpy_data.engine import MemoryBudgetOptions

UNIT = 1 << 30
"""Files are sparse, and so large that what this process itself grows by meanwhile does not matter."""


def model(name: str, **parameters: str) -> ModelConfig:
    given = {key: ModelParameter(string_value=value) for key, value in parameters.items()}
    return config(name, parameters=given, instance_group=instances(1))


@asynccontextmanager
async def budget_of(
    folder: Path, models: dict[str, ModelConfig], *, units: int, wait_s: int = 60, file: Path | None = None, **options: Any
) -> AsyncIterator[Rig]:
    """Models of 4 GiB each, whose files say so, in a budget. A load takes 100 ms, and so does an unload."""
    budget = MemoryBudgetOptions(bytes=units * UNIT, wait_ns_max=wait_s * NS_PER_S, all_on_demand=True, file=file)
    async with rig(memory_budget=budget, load_ms=100, **options) as r:
        for name, each in models.items():
            write(folder / name)
            r.want(each, directory=folder / name)
        await trio.testing.wait_all_tasks_blocked()
        for name in models:
            await r.wait_state(1, 1, ModelState.READY, name)
        yield r


def write(folder: Path, units: int = 4) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    path = folder / "1" / "model.fake"
    if path.exists() and path.stat().st_size == units * UNIT:
        return  # to write it again would make it another one
    with open(path, "wb") as file:
        file.truncate(units * UNIT)


def remark(r: Rig, name: str) -> str:
    return next(seen.remark for key, seen in r.store.snapshot().observed.items() if key.model.name == name)


def loaded(r: Rig) -> list[str]:
    return sorted(name for name, _, _ in r.backend.loaded)


def figures(r: Rig) -> dict[str, float]:
    return {
        "/".join((family.name.removeprefix("tpy_memory_budget_"), *sample.labels.values())): sample.value
        for family in r.plane.budget_families()
        for sample in family.samples
    }


async def test_a_request_loads_its_model_and_others_make_room(
    autojump_clock: MockClock, tmp_path: Path, loop_guard: LoopGuard
) -> None:
    async with budget_of(tmp_path, {name: model(name) for name in "abc"}, units=9) as r:
        assert loaded(r) == [], "all are READY, and none is loaded"
        assert {remark(r, name) for name in "abc"} == {"it is not loaded: a request loads it"}
        assert r.plane.inference.resolve("a").description.inputs[0].name == "IN"
        began = trio.current_time()
        sinks = [r.submit(request(model="a", value=value)) for value in (1, 2)]
        await trio.testing.wait_all_tasks_blocked()
        assert (remark(r, "a"), figures(r)["waiting_requests"]) == ("it is being loaded", 2)
        await trio.sleep(0.05)
        [explained] = r.plane.explain("a")
        assert (explained.activity.queue.waits_for, explained.activity.queue.waiting) == (WaitReason.LOAD, 2)
        assert [level.oldest_ns for level in explained.activity.queue.levels] == [pytest.approx(0.05 * NS_PER_S)]
        assert [values(await sink.wait()) for sink in sinks] == [[1, 1], [2, 2]]
        assert trio.current_time() - began == pytest.approx(0.2), "load, then instances"
        assert (remark(r, "a"), loaded(r)) == ("", ["a"])
        assert values(await r.submit(request(model="b")).wait()) == [1, 1]
        await trio.sleep(1)
        assert values(await r.submit(request(model="a")).wait()) == [1, 1]
        await trio.sleep(1)
        assert values(await r.submit(request(model="c")).wait()) == [1, 1]
        assert loaded(r) == ["a", "c"], "b was the least recently used"
        assert figures(r)["used_bytes"] == 8 * UNIT
        assert (figures(r)["loads_total"], figures(r)["unloads_total/room"]) == (3, 1)
        [row] = r.plane.statistics("a")
        assert row.inference_count == 3


class OwnMemory(ScriptedInstance):
    def host_memory_bytes(self) -> int:
        return 5 * UNIT


class OwnMemoryModel(ScriptedModel):
    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return OwnMemory(self.backend, placement.name)


class OwnMemoryBackend(ScriptedBackend):
    def load(self, context: ModelContext) -> LoadedModel:
        return OwnMemoryModel(self, (context.name, context.version, context.generation))


@pytest.mark.parametrize("when", ["on_demand", "at_start"])
async def test_more_instances_count(autojump_clock: MockClock, tmp_path: Path, when: str) -> None:
    async with budget_of(tmp_path, {"a": model("a", load=when)}, units=30, backend=OwnMemoryBackend()) as r:
        await r.submit(request(model="a")).wait()
        before = figures(r)["used_bytes"] // UNIT
        wanted = msgspec.structs.replace(model("a", load=when), instance_group=instances(3))
        r.want(wanted, {1: 1}, directory=tmp_path / "a")
        await trio.sleep(5)
        assert len(r.backend.instances) == 3
        assert (before, figures(r)["used_bytes"] // UNIT) == (5, 15)


async def test_statistics_go_on_over_an_unload(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with budget_of(tmp_path, {name: model(name) for name in "ab"}, units=5) as r:
        for name in "abab":
            await r.submit(request(model=name)).wait()
        assert [row.inference_count for row in r.plane.statistics()] == [2, 2]
        assert figures(r)["loads_total"] == 4


async def test_what_cannot_fit_is_refused_at_once_with_the_figures(autojump_clock: MockClock, tmp_path: Path) -> None:
    stays = model("stays", load="at_start")
    async with budget_of(tmp_path, {"a": model("a"), "stays": stays}, units=7) as r:
        assert loaded(r) == ["stays"]
        with pytest.raises(Unavailable) as refused:
            r.submit(request(model="a"))
        assert refused.value.message == (
            "model 'a:1' needs 4096.0 MiB, --model-memory-budget is 7168.0 MiB, of which models that stay loaded have 4096.0 MiB"
        )
        assert refused.value.wait_s
        assert figures(r)["refusals_total/cannot_fit"] == 1


async def test_a_model_that_is_to_stay_and_cannot_is_refused(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with budget_of(tmp_path, {"a": model("a")}, units=7) as r:
        write(tmp_path / "large", units=8)
        r.want(model("large", load="at_start"), directory=tmp_path / "large")
        await r.wait_state(1, 1, ModelState.UNAVAILABLE, "large")
        [(_, reason)] = r.states("large").values()
        assert reason == "Unavailable: model 'large:1' needs 8192.0 MiB, --model-memory-budget is 7168.0 MiB"


async def test_waits_are_bounded(autojump_clock: MockClock, tmp_path: Path) -> None:
    """`a` executes for long and is not unloaded before it has answered; a request for `b` waits for it, but not for ever."""
    async with budget_of(tmp_path, {name: model(name) for name in "ab"}, units=5, wait_s=4, latency_ms=60_000) as r:
        slow = r.submit(request(model="a"))
        await trio.sleep(1)
        began = trio.current_time()
        late = r.submit(request(model="b"))
        own = r.submit(request(model="b", timeout_us=1_500_000))
        assert "Request timeout expired" in await failure(own)
        assert trio.current_time() - began == pytest.approx(1.5)
        text = await failure(late)
        assert trio.current_time() - began == pytest.approx(4)
        assert text.startswith(
            "Unavailable: model 'b:1' was not loaded within 4 s: it is unloaded (models ahead of it: 0, being loaded: 0), "
        )
        assert late.response.error is not None
        assert late.response.error.wait_s
        assert late.response.refused
        assert figures(r)["refusals_total/late"] == 2
        assert values(await slow.wait()) == [1, 1], "what has begun is answered"
        assert figures(r)["waiting_requests"] == 0


async def test_one_more_request_for_a_model_that_is_waited_for_decides_nothing(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with budget_of(tmp_path, {name: model(name) for name in "ab"}, units=5, latency_ms=60_000) as r:
        r.submit(request(model="a"))
        await trio.sleep(1)
        assert r.plane.budget is not None
        core, decisions = r.plane.budget.core, []
        decide = core.advance
        monkeypatch.setattr(core, "advance", lambda *about: decisions.append(about) or decide(*about))
        for expected in (1, 1, 1):
            r.submit(request(model="b"))
            await trio.testing.wait_all_tasks_blocked()
            assert len(decisions) == expected
        r.submit(request(model="b", timeout_us=1))
        await trio.testing.wait_all_tasks_blocked()
        assert len(decisions) == 2, "it is to be refused earlier than the others"


async def failure(sink: RecordingSink) -> str:
    await sink.answered.wait()
    return sink.error


async def test_a_request_that_is_cancelled_while_it_waits_is_forgotten(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with budget_of(tmp_path, {name: model(name) for name in "ab"}, units=5, latency_ms=1000) as r:
        busy = r.submit(request(model="a"))
        await trio.sleep(0.5)
        sink = RecordingSink()
        handle = r.submit_for(sink, request(model="b"))
        await trio.sleep(0.1)
        handle.cancel()
        handle.cancel()
        assert figures(r)["waiting_requests"] == 0
        await busy.wait()
        await trio.sleep(5)
        assert (sink.responses, loaded(r)) == ([], ["a"]), "nobody waits for b any more"


async def test_busy_models_take_turns(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Two models that cannot both fit, both asked all the time: each serves in turn, and every request is answered."""
    async with budget_of(tmp_path, {name: model(name) for name in "ab"}, units=5, latency_ms=300) as r:
        async with trio.open_nursery() as clients:
            for name in "ab":
                for _ in range(2):
                    clients.start_soon(ask_often, r, name, 30)
        found = figures(r)
        assert found["unloads_total/turn"] + found["unloads_total/room"] == found["loads_total"] - 1
        assert 4 <= found["loads_total"] <= 20, "60 requests for each of two models"


async def ask_often(r: Rig, name: str, count: int) -> None:
    for _ in range(count):
        assert values(await r.submit(request(model=name)).wait()) == [1, 1]


async def test_a_load_that_fails_fails_what_waits_and_says_so(autojump_clock: MockClock, tmp_path: Path) -> None:
    backend = ScriptedBackend()

    def fails(context: ModelContext) -> None:
        raise Internal("no memory")

    backend.on_load = fails
    async with budget_of(tmp_path, {"a": model("a")}, units=5, backend=backend) as r:
        held = r.plane.inference.resolve("a")
        held.hold()  # as frontends do while they decode a request
        text = await failure(r.submit(request(model="a")))
        assert text == "Unavailable: failed to load model 'a': no memory"
        assert figures(r)["loads_total"] == 1
        with pytest.raises(Unavailable, match="failed to load model 'a': no memory"):
            held.submit(request(model="a"), RecordingSink())
        held.release()
        await r.wait_state(1, 1, ModelState.UNAVAILABLE, "a")
        assert r.states("a") == {(1, 1): ("UNAVAILABLE", "Internal: no memory")}
        with pytest.raises(NotFound, match="no memory"):
            r.submit(request(model="a"))
        assert figures(r)["used_bytes"] == 0


async def test_a_model_that_was_loaded_before_is_tried_again(autojump_clock: MockClock, tmp_path: Path) -> None:
    backend, fails = ScriptedBackend(), [False, False, True, True]

    def load(context: ModelContext) -> None:
        if fails and fails.pop(0):
            raise Internal("no memory")

    backend.on_load = load
    async with budget_of(tmp_path, {name: model(name) for name in "ab"}, units=5, backend=backend) as r:
        for name in "ab":
            await r.submit(request(model=name)).wait()
        for wait_s in (1, 2):
            sink = r.submit(request(model="a"))
            assert await failure(sink) == "Unavailable: failed to load model 'a': no memory"
            assert sink.response.error is not None
            assert sink.response.error.wait_s == wait_s
            with pytest.raises(Unavailable, match="failed to load model 'a': no memory") as refused:
                r.submit(request(model="a"))
            assert refused.value.wait_s == wait_s
            await trio.testing.wait_all_tasks_blocked()
            assert remark(r, "a") == "it is not loaded, its last load failed: a request tries again"
            assert r.states("a") == {(1, 1): ("READY", "")}
            await trio.sleep(wait_s)
        assert values(await r.submit(request(model="a")).wait()) == [1, 1]
        assert figures(r)["loads_total"] == 5


async def test_an_update_fails_no_request_that_waits(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with budget_of(tmp_path, {"a": model("a"), "b": model("b")}, units=9) as r:
        waits = r.submit(request(model="a"))
        await trio.sleep(0.05)
        r.want(model("a"), directory=tmp_path / "a")
        await r.wait_state(1, 2, ModelState.READY, "a")
        assert values(await waits.wait()) == [1, 1], "by the copy that it was decoded for"
        await r.store.wait_for(lambda _: (1, 1) not in r.states("a"))
        assert values(await r.submit(request(model="a")).wait()) == [1, 1]
        assert r.backend.loaded == [("a", 1, 2)]
        r.want(model("a"), (), directory=tmp_path / "a")
        await r.wait_state(1, 2, ModelState.UNAVAILABLE, "a")
        assert loaded(r) == []


async def test_models_that_nobody_uses_go_and_warm_ones_are_there(autojump_clock: MockClock, tmp_path: Path) -> None:
    models = {"a": model("a", keep_alive_seconds="5"), "warm": model("warm", load="warm")}
    async with budget_of(tmp_path, models, units=9) as r:
        await trio.sleep(1)
        assert loaded(r) == ["warm"]
        await r.submit(request(model="a")).wait()
        await trio.sleep(4)
        assert loaded(r) == ["a", "warm"]
        await r.submit(request(model="a")).wait()
        await trio.sleep(4.9)
        assert loaded(r) == ["a", "warm"]
        await trio.sleep(1)
        assert loaded(r) == ["warm"]


async def test_steps_of_an_ensemble_load_what_they_need(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Two members that cannot both be loaded: a request loads one after the other."""
    async with budget_of(tmp_path, {name: model(name) for name in "ab"}, units=5) as r:
        r.want(CHAIN)
        await r.wait_state(1, 1, ModelState.READY, "e")
        for _ in range(3):
            assert values(await r.submit(request(model="e")).wait()) == [1, 1]
        assert figures(r)["loads_total"] == 6


async def test_a_file_that_is_written_makes_nobody_late(autojump_clock: MockClock, tmp_path: Path) -> None:
    autojump_clock.autojump_threshold = 0.03  # time stands still while the file is written
    models = {name: model(name) for name in "ab"}
    async with budget_of(tmp_path, models, units=9, file=tmp_path / "sizes.json") as r:
        first = r.submit(request(model="a"))
        await trio.sleep(0.05)
        second = r.submit(request(model="b", timeout_us=10_000_000))
        assert [values(await sink.wait()) for sink in (first, second)] == [[1, 1], [1, 1]]


async def test_a_disk_that_hangs_holds_up_no_load(autojump_clock: MockClock, tmp_path: Path) -> None:
    threads, slow = trio.to_thread.current_default_thread_limiter(), object()
    async with budget_of(tmp_path / "models", {name: model(name) for name in "ab"}, units=9, file=tmp_path / "sizes.json") as r:
        total, threads.total_tokens = threads.total_tokens, 1
        await threads.acquire_on_behalf_of(slow)
        try:
            with trio.move_on_after(30):
                assert [values(await r.submit(request(model=name)).wait()) for name in "ab"] == [[1, 1], [1, 1]]
            assert figures(r)["loads_total"] == 2
        finally:
            threads.release_on_behalf_of(slow)
            threads.total_tokens = total


async def test_sizes_are_kept_for_the_next_start(autojump_clock: MockClock, tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    async with budget_of(tmp_path / "models", {"a": model("a")}, units=100, file=file) as r:
        await r.submit(request(model="a")).wait()
        await trio.testing.wait_all_tasks_blocked(0.1)
        kept = msgspec.json.decode(file.read_bytes())
    assert kept["format"] == 1
    assert kept["models"]["a:1"]["bytes"] == 4 * UNIT
    kept["models"]["a:1"]["bytes"] = 200 * UNIT
    file.write_bytes(msgspec.json.encode(kept))
    async with budget_of(tmp_path / "models", {"a": model("a")}, units=100, file=file) as r:
        with pytest.raises(Unavailable, match=r"model 'a:1' needs 204800.0 MiB, --model-memory-budget is 102400.0 MiB"):
            r.submit(request(model="a"))
    file.write_text('{"format": 1, "models": []}')
    with pytest.RaisesGroup(pytest.RaisesExc(Unavailable, match="cannot be read: Expected `object`, got `array`")):
        async with budget_of(tmp_path / "models", {"a": model("a")}, units=100, file=file):
            pass


@pytest.mark.parametrize(("remembered", "corrected"), [(1, [4, 4]), (16, [8, 4])])
async def test_a_size_that_was_remembered_wrong_is_corrected(
    autojump_clock: MockClock, tmp_path: Path, remembered: int, corrected: list[int]
) -> None:
    """A larger measurement counts at once. A smaller one (nothing, beside sparse files) counts half, as an earlier model may have
    left memory in the process."""
    file = tmp_path / "sizes.json"
    for expected in (4, *corrected):
        async with budget_of(tmp_path / "models", {"a": model("a")}, units=20, file=file) as r:
            await r.submit(request(model="a")).wait()
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert figures(r)["used_bytes"] == pytest.approx(expected * UNIT, rel=0.01)
        kept = msgspec.json.decode(file.read_bytes())
        assert kept["models"]["a:1"]["bytes"] == pytest.approx(expected * UNIT, rel=0.01)
        if remembered:
            kept["models"]["a:1"]["bytes"], remembered = remembered * UNIT, 0
            file.write_bytes(msgspec.json.encode(kept))


async def test_an_instance_that_fails_is_seen_from_outside(autojump_clock: MockClock, tmp_path: Path) -> None:
    backend = ScriptedBackend()
    fails = [True]

    def execute(batch: ExecutionBatch) -> list[ExecutionResult]:
        if fails.pop():
            raise RuntimeError("it broke")
        return identity(batch)

    backend.execute = execute
    async with budget_of(tmp_path, {"a": model("a")}, units=5, backend=backend) as r:
        assert "it broke" in await failure(r.submit(request(model="a")))
        fails.extend([False] * 3)
        await r.wait_state(1, 1, ModelState.READY, "a")
        assert values(await r.submit(request(model="a")).wait()) == [1, 1]


async def test_a_live_sequence_ends_in_the_copy_that_is_being_unloaded(autojump_clock: MockClock, tmp_path: Path) -> None:
    models = {name: sequence_config(direct(idle_ms=60_000, state=(STATE,)), name=name) for name in "ab"}
    async with budget_of(tmp_path, models, units=5, backend=sequence_backend(summing)) as r:
        assert values(await r.submit(of(1, 1, start=True, model="a")).wait()) == [1, 1]
        other = r.submit(of(2, 10, start=True, end=True, model="b"))
        await trio.sleep(1)
        assert remark(r, "a") == "", "its turn is not over"
        await trio.sleep(2)
        assert remark(r, "a") == "it is being unloaded"
        assert values(await r.submit(of(1, 2, model="a")).wait()) == [3, 3]
        later = r.submit(of(3, 5, start=True, end=True, model="a"))
        assert values(await r.submit(of(1, 4, end=True, model="a")).wait()) == [7, 7]
        assert values(await other.wait()) == [10, 10]
        assert values(await later.wait()) == [5, 5]


async def test_the_log_says_once_that_a_model_was_unloaded(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with budget_of(tmp_path, {name: model(name) for name in "ab"}, units=5) as r:
        await r.submit(request(model="a")).wait()
    said = [each for each in caplog.messages if "successfully unloaded" in each]
    assert sorted(said) == ["successfully unloaded 'a' version 1", "successfully unloaded 'b' version 1"]


async def test_a_stop_does_not_wait_for_the_files_of_a_model_that_stays(autojump_clock: MockClock, tmp_path: Path) -> None:
    budget = MemoryBudgetOptions(bytes=UNIT)
    async with rig(memory_budget=budget, load_ms=100_000_000, exit_timeout_ms=60_000) as r:
        r.want(model("a", load="at_start"), directory=tmp_path / "a")
        await trio.sleep(1)
        began = trio.current_time()
    assert trio.current_time() - began < 60


async def test_a_stop_refuses_what_waits_and_unloads_the_rest(autojump_clock: MockClock, tmp_path: Path) -> None:
    async with budget_of(tmp_path, {name: model(name) for name in "ab"}, units=5) as r:
        await r.submit(request(model="a")).wait()
        waits = r.submit(request(model="b"))
    assert "Server is stopping" in waits.error
    assert r.backend.loaded == []


async def test_without_a_budget_the_parameter_is_told_to_have_no_effect(
    autojump_clock: MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig() as r:
        await r.serve(model("m", load="on_demand"))
        assert r.backend.loaded == [("m", 1, 1)]
    assert "its parameter load needs --model-memory-budget" in caplog.text
