"""The response cache in virtual time: hits, misses, equal requests at the same time, reloads."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from tests.engine.ensembles import MembersBackend, ensemble, plus, step
from tests.engine.fakes import RecordingSink, Rig, ScriptedBackend, config, identity, request, rig, tensor, values
from tests.submitting import submit_to
from tpy.backend import ExecutionBatch, ExecutionResult
from tpy.config.model_config import ModelInput, ResponseCache
from tpy.errors import InvalidArgument, Unavailable
from tpy.limits import CACHE_INLINE_BYTES_MAX
from tpy.messages import CacheStatistics, DataType, InferenceRequest, SequencePosition, Tensor
from tpy_data.cache.options import LocalCacheOptions
from tpy_data.engine.caching import cached_engine

CACHED = config(response_cache=ResponseCache(enable=True))
VARIABLE = config(
    response_cache=ResponseCache(enable=True),
    max_batch_size=0,
    input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),),
)
LOCAL = LocalCacheOptions(size_bytes=1 << 20)


class Counting(ScriptedBackend):
    """Answers with the number of the execution; 13 fails."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self.executed = 0

    def _count(self, batch: ExecutionBatch) -> list[ExecutionResult]:
        return [self._one(each.inputs["IN"]) for each in batch.requests]

    def _one(self, given: Tensor) -> ExecutionResult:
        self.executed += 1
        if given.array.ravel()[0] == 13:
            return ExecutionResult(error=Unavailable("unlucky"))
        return ExecutionResult(
            [Tensor("OUT", DataType.FP32, np.full(given.array.shape, self.executed, np.float32))], parameters={"n": self.executed}
        )


def counts(r: Rig) -> dict[str, int]:
    (stats,) = r.plane.statistics("m")
    inference = stats.inference
    return {
        "success": inference.success.count,
        "fail": inference.fail.count,
        "queue": inference.queue.count,
        "infer": inference.compute_infer.count,
        "hit": inference.cache_hit.count,
        "miss": inference.cache_miss.count,
        "inferences": stats.inference_count,
        "executions": stats.execution_count,
    }


def cache_of(r: Rig) -> CacheStatistics:
    statistics = r.plane.cache_statistics()
    assert statistics is not None
    return statistics


async def test_a_repeated_request_is_answered_without_the_model(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), latency_ms=7, cache=LOCAL) as r:
        await r.serve(CACHED)
        first = await r.submit(request(value=4, id="a")).wait()
        sink = r.submit(request(value=4, id="b", priority=3, timeout_us=5))
        assert sink.at_ms == 7, "inside submit"
        assert (values(sink.response), sink.response.parameters, sink.response.id) == (values(first), {"n": 1}, "b")
        expected = {"success": 2, "fail": 0, "queue": 2, "infer": 1, "hit": 1, "miss": 1, "inferences": 1, "executions": 1}
        assert counts(r) == expected
        assert not sink.response.outputs[0].array.flags.writeable


async def test_a_request_that_has_ended_is_let_go(autojump_clock: MockClock) -> None:
    """Without the garbage collector: the sink may hold regions of clients."""
    async with rig(backend=Counting(), cache=LOCAL) as r:
        await r.serve(CACHED)
        gc.disable()
        try:
            for _ in range(2):  # the model's answer, then the cache's
                sink = RecordingSink()
                submit_to(r.plane.inference, request(value=4), sink)
                await sink.wait()
                await trio.testing.wait_all_tasks_blocked()
                r.backend.batches.clear()  # the fake remembers them
                gone = weakref.ref(sink)
                del sink
                assert gone() is None
        finally:
            gc.enable()


async def test_what_is_kept_is_a_copy(autojump_clock: MockClock) -> None:
    buffer = np.ones((1, 2), np.float32)

    def execute(batch: ExecutionBatch) -> list[ExecutionResult]:
        return [ExecutionResult([Tensor("OUT", DataType.FP32, buffer)])]

    async with rig(backend=ScriptedBackend(execute), cache=LOCAL) as r:
        await r.serve(CACHED)
        await r.submit().wait()
        buffer[:] = 5
        assert values(await r.submit().wait()) == [1, 1]


def _requests() -> Mapping[str, InferenceRequest]:
    flat = tensor(4)
    return {
        "plain": InferenceRequest(model_name="m", inputs=(flat,)),
        "value": InferenceRequest(model_name="m", inputs=(tensor(4, value=2),)),
        "parameters": InferenceRequest(model_name="m", inputs=(flat,), parameters={"a": 1}),
        "parameters of another type": InferenceRequest(model_name="m", inputs=(flat,), parameters={"a": True}),
        "outputs": InferenceRequest(model_name="m", inputs=(flat,), requested_outputs=("OUT",)),
        "sequence": InferenceRequest(model_name="m", inputs=(flat,), sequence=SequencePosition(correlation_id=3)),
        "shorter": InferenceRequest(model_name="m", inputs=(tensor(2),)),
    }


async def test_whatever_may_change_the_answer_is_another_request(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), cache=LOCAL) as r:
        await r.serve(VARIABLE)
        for _ in range(2):
            for sent in _requests().values():
                await r.submit(sent).wait()
        assert counts(r)["hit"] == counts(r)["miss"] == len(_requests())


async def test_shapes_with_the_same_bytes_are_not_mixed_up(autojump_clock: MockClock) -> None:
    """As Triton does."""
    pairs = config(response_cache=ResponseCache(enable=True), input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),))
    async with rig(backend=Counting(), cache=LOCAL) as r:
        await r.serve(pairs)
        wide, tall = await r.submit(request(1, 4)).wait(), await r.submit(request(2, 2)).wait()
        assert (wide.outputs[0].array.shape, tall.outputs[0].array.shape) == ((1, 4), (2, 2))


async def test_errors_are_not_kept_and_do_not_count_as_misses(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), cache=LOCAL) as r:
        await r.serve(CACHED)
        for _ in range(2):
            assert r.submit(request(value=13)) is not None
            await trio.sleep(1)
        assert (r.backend.executed, counts(r)["fail"], counts(r)["miss"], cache_of(r).entries) == (2, 2, 0, 0)  # type: ignore[attr-defined]


async def test_a_reloaded_model_does_not_answer_from_what_it_was(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), cache=LOCAL) as r:
        await r.serve(CACHED)
        assert values(await r.submit().wait()) == [1, 1]
        await r.serve(CACHED)
        assert values(await r.submit().wait()) == [2, 2]
        r.want(CACHED, ())
        await trio.sleep(1)
        assert (cache_of(r).entries, cache_of(r).bytes_used, cache_of(r).evictions) == (0, 0, 0)


async def test_equal_requests_at_the_same_time_are_executed_once(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), latency_ms=10, cache=LOCAL) as r:
        await r.serve(CACHED)
        sinks = [r.submit(request(id=str(index))) for index in range(5)]
        other = r.submit(request(value=2))
        assert r.plane.statistics("m")[0].pending_requests == 5
        answers = [await sink.wait() for sink in sinks]
        assert [values(answer) for answer in answers] == [[1, 1]] * 5
        assert [answer.id for answer in answers] == list("01234")
        assert {sink.at_ms for sink in sinks} == {10}
        await other.wait()
        assert (counts(r)["executions"], counts(r)["hit"], counts(r)["miss"]) == (2, 4, 2)
        queue = r.plane.statistics("m")[0].inference.queue
        assert queue.ns == 5 * 10_000_000, "four waited for the first, one for the instance"


async def test_who_waits_keeps_its_own_time_limit(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), latency_ms=100, cache=LOCAL) as r:
        await r.serve(CACHED)
        leader, hurried, patient = r.submit(), r.submit(request(timeout_us=30_000)), r.submit()
        await hurried.wait()
        assert (hurried.at_ms, hurried.error) == (30, "Unavailable: Request timeout expired")
        await leader.wait()
        await patient.wait()
        assert (leader.at_ms, patient.at_ms, counts(r)["executions"], counts(r)["fail"]) == (100, 100, 1, 1)


async def test_the_time_limits_of_all_who_wait_are_kept(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), latency_ms=100, cache=LOCAL) as r:
        await r.serve(CACHED)
        leader = r.submit()
        hurried = [r.submit(request(timeout_us=after_ms * 1000)) for after_ms in (60, 30, 45)]
        await leader.wait()
        assert [sink.at_ms for sink in hurried] == [60, 30, 45]


async def test_when_the_first_runs_out_of_time_the_next_one_leads(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), latency_ms=100, cache=LOCAL) as r:
        await r.serve(CACHED)
        leader = r.submit(request(timeout_us=50_000))
        others = [r.submit(request(timeout_us=400_000)), r.submit(), r.submit(request(timeout_us=120_000))]
        await leader.wait()
        assert leader.at_ms == 50
        for sink in others:
            await sink.wait()
        assert [sink.at_ms for sink in others] == [200, 200, 120]
        assert "expired" in others[2].error


async def test_when_the_first_is_cancelled_the_next_one_leads(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), latency_ms=100, cache=LOCAL) as r:
        await r.serve(CACHED)
        gone, late = RecordingSink(), RecordingSink()
        handle = submit_to(r.plane.inference, request(), gone)
        sink, last = r.submit(), r.submit()
        waiting = submit_to(r.plane.inference, request(), late)
        await trio.sleep(0.03)
        handle.cancel()
        waiting.cancel()
        waiting.cancel()
        await sink.wait()
        await last.wait()
        assert (sink.at_ms, last.at_ms, gone.responses, late.responses) == (200, 200, [], [])
        assert counts(r)["fail"] == 2


async def test_when_the_model_fails_all_that_wait_try_for_themselves(autojump_clock: MockClock) -> None:
    calls = []

    def execute(batch: ExecutionBatch) -> list[ExecutionResult]:
        calls.append(len(batch.requests))
        return [ExecutionResult(error=Unavailable("unlucky"))] if len(calls) == 1 else identity(batch)

    async with rig(backend=ScriptedBackend(execute), latency_ms=10, cache=LOCAL) as r:
        await r.serve(CACHED)
        sinks = [r.submit() for _ in range(3)]
        for sink in sinks:
            await sink.answered.wait()
        assert [sink.response.error is None for sink in sinks] == [False, True, True]
        assert [sink.at_ms for sink in sinks] == [10, 20, 30]


async def test_who_has_another_priority_does_not_wait_behind(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), latency_ms=10, cache=LOCAL) as r:
        await r.serve(CACHED)
        r.submit(request())
        await r.submit(request(priority=1)).wait()
        assert counts(r)["executions"] == 2


async def test_large_requests_are_hashed_elsewhere(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_engine, "CACHE_JOBS_MAX", 4)  # as many as come here at once; each gives its place back
    large = CACHE_INLINE_BYTES_MAX // 4 + 1
    async with rig(backend=Counting(), latency_ms=10, load_ms=3, cache=LocalCacheOptions(size_bytes=1 << 22)) as r:
        await r.serve(VARIABLE)
        began_ms = trio.current_time() * 1000
        sinks = [r.submit(InferenceRequest(model_name="m", inputs=(tensor(large),))) for _ in range(2)]
        gone = RecordingSink()
        submit_to(r.plane.inference, InferenceRequest(model_name="m", inputs=(tensor(large),)), gone).cancel()
        hurried = r.submit(InferenceRequest(model_name="m", inputs=(tensor(large),), timeout_us=1000))
        for sink in (*sinks, hurried):
            await sink.answered.wait()
        assert [sink.at_ms - began_ms for sink in sinks] == pytest.approx([13, 13])
        assert (hurried.at_ms - began_ms, gone.responses, counts(r)["executions"]) == (pytest.approx(1), [], 1)
        await trio.sleep(1)  # the copy is made elsewhere, too
        again = r.submit(InferenceRequest(model_name="m", inputs=(tensor(large),)))
        await again.wait()
        assert counts(r)["hit"] == 2
        with pytest.raises(InvalidArgument, match="unexpected shape"):
            r.submit(InferenceRequest(model_name="m", inputs=(tensor(large, 1),)))


async def test_a_response_larger_than_the_cache_is_not_kept_and_logged_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(backend=Counting(), cache=LocalCacheOptions(size_bytes=100)) as r:
        await r.serve(CACHED)
        for _ in range(3):
            await r.submit().wait()
        assert (counts(r)["executions"], counts(r)["miss"], cache_of(r).bytes_used) == (3, 3, 0)
    assert sum("Failed to insert key [" in record.message for record in caplog.records) == 1


async def test_invalid_requests_are_refused_as_without_a_cache(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), cache=LOCAL) as r:
        await r.serve(CACHED)
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="unexpected shape"):
                r.submit(request(1, 3))
        assert r.plane.statistics("m")[0].failures.refused_admission == 2


async def test_stopping_refuses_who_waits(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), latency_ms=60_000, exit_timeout_ms=1000, cache=LOCAL) as r:
        await r.serve(CACHED)
        sinks = [r.submit(), r.submit()]
        await trio.sleep(0.1)
    assert "stopping" in sinks[1].error.lower()


async def test_unloading_waits_for_who_waits(autojump_clock: MockClock) -> None:
    async with rig(backend=Counting(), latency_ms=100, load_ms=5, cache=LOCAL) as r:
        await r.serve(CACHED)
        sinks = [r.submit(request(timeout_us=50_000)), r.submit(), r.submit()]
        r.want(CACHED, ())
        for sink in sinks:
            await sink.answered.wait()
        assert [sink.response.error is None for sink in sinks] == [False, True, True]


async def test_without_the_flag_a_model_is_not_cached_with_a_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(backend=Counting()) as r:
        await r.serve(CACHED)
        await r.submit().wait()
        await r.submit().wait()
        assert (counts(r)["executions"], r.plane.cache_statistics()) == (2, None)
        assert not r.plane.statistics("m")[0].caches
    assert any("response_cache has no effect" in record.message for record in caplog.records)


async def test_a_random_history_leaks_nothing(autojump_clock: MockClock) -> None:
    chance = np.random.default_rng(7)
    async with rig(backend=Counting(), latency_ms=3, cache=LocalCacheOptions(size_bytes=5000)) as r:
        await r.serve(CACHED)
        sinks: list[RecordingSink] = []
        cancelled: list[RecordingSink] = []
        for _ in range(300):
            sink = RecordingSink()
            limit = int(chance.choice([0, 0, 2000, 8000]))
            handle = submit_to(r.plane.inference, request(value=int(chance.integers(8, 16)), timeout_us=limit), sink)
            sinks.append(sink)
            if chance.random() < 0.2:
                await trio.sleep(chance.random() * 0.004)
                if not sink.responses:
                    handle.cancel()
                    cancelled.append(sink)
            elif chance.random() < 0.5:
                await trio.sleep(chance.random() * 0.003)
        await trio.sleep(10)
        assert all(len(sink.responses) == (sink not in cancelled) for sink in sinks)
        totals = counts(r)
        assert totals["success"] + totals["fail"] == 300
        assert totals["hit"] + totals["miss"] == totals["success"] == totals["queue"]
        snapshot = r.plane.statistics("m")[0]
        assert (snapshot.pending_requests, cache_of(r).bytes_used <= 5000) == (0, True)
        assert cache_of(r).evictions > 0


async def test_an_ensemble_is_cached_until_a_member_changes(autojump_clock: MockClock) -> None:
    backend = MembersBackend({"a": plus(1)})
    async with rig(backend=backend, latency_ms=5, cache=LOCAL) as r:
        await r.serve(config("a"))
        await r.serve(config("b"))
        steps = (step("a", "IN", "A"), step("b", "A", "OUT"))
        await r.serve(ensemble("m", *steps, response_cache=ResponseCache(enable=True)))
        for _ in range(3):
            response = await r.submit(request(value=1)).wait()
            assert values(response) == [2, 2]
            assert response.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
        assert (len(backend.seen), counts(r)["hit"], counts(r)["miss"], counts(r)["executions"]) == (2, 2, 1, 1)
        together = [r.submit(request(value=5)) for _ in range(4)]
        assert {values(await sink.wait())[0] for sink in together} == {6}
        assert len(backend.seen) == 4
        backend.answers["a"] = plus(10)
        await r.serve(config("a"))
        assert values(await r.submit(request(value=1)).wait()) == [11, 11]
        assert cache_of(r).entries == 1, "what it gave before is forgotten"
