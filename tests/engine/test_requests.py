"""Requests in virtual time: answers, deadlines, cancellation, batch mates, order, errors."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.engine.fakes import (
    RecordingSink,
    ScriptedBackend,
    config,
    dynamic,
    identity,
    instances,
    request,
    rig,
    tensor,
    values,
)
from tests.submitting import submit_to
from tpy.backend import ExecutionBatch, ExecutionResult
from tpy.config import RequestTimeout
from tpy.config.model_config import ModelInput, ModelOutput, ModelParameter, QueuePolicy, TensorReshape
from tpy.errors import Internal, NotFound, Unavailable
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Tensor
from tpy.testing.loop_guard import LoopGuard
from tpy.units import NS_PER_MS


async def test_an_idle_instance_answers(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=7) as r:
        await r.serve(config())
        sink = r.submit(request(3, 2, value=4, id="abc"))
        response = await sink.wait()
        assert values(response) == [4.0] * 6
        assert response.outputs[0].array.shape == (3, 2)
        assert (response.id, response.model_name, response.model_version, response.final) == ("abc", "m", 1, True)
        assert sink.at_ms == 7


async def test_the_timeout_is_kept_to_the_millisecond_in_the_queue(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=1000) as r:
        await r.serve(config())
        first = r.submit()
        late = r.submit(request(timeout_us=123_000))
        await late.wait()
        assert late.at_ms == 123
        assert late.error == "Unavailable: Request timeout expired"
        await first.wait()
        assert first.at_ms == 1000
    assert len(r.backend.batches) == 1, "a request that expired in the queue never runs"


async def test_the_timeout_is_kept_while_executing_and_the_late_answer_dropped(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with rig(latency_ms=1000) as r:
        await r.serve(config())
        sink = r.submit(request(timeout_us=50_000))
        behind = r.submit()
        await sink.wait()
        assert sink.at_ms == 50
        assert r.backend.batches == []
        await behind.wait()
        assert behind.at_ms == 2000
        assert len(sink.responses) == 1
        assert r.backend.batches[0].requests[0].is_cancelled()
        assert not r.backend.batches[1].requests[0].is_cancelled()


async def test_the_transports_deadline_counts_like_a_timeout(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=1000) as r:
        await r.serve(config())
        sink = r.submit(request(timeout_us=90_000, deadline_ns=30 * NS_PER_MS))
        await sink.wait()
        assert sink.at_ms == 30


async def test_by_default_a_timeout_belongs_to_the_queue_that_allows_it(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    allowing = QueuePolicy(default_timeout_microseconds=10_000_000, allow_timeout_override=True)
    async with rig(latency_ms=1000, request_timeout=RequestTimeout.QUEUE) as r:
        await r.serve(config())
        sinks = [r.submit(request(timeout_us=1)) for _ in range(2)]
        for sink in sinks:
            assert values(await sink.wait())
        await r.serve(config(max_batch_size=1, dynamic_batching=dynamic(default_queue_policy=allowing)))
        running, waiting = (r.submit(request(timeout_us=20_000)) for _ in range(2))
        began_ms = trio.current_time() * 1000
        await waiting.wait()
        assert waiting.error == "Unavailable: Request timeout expired"
        assert waiting.at_ms == pytest.approx(began_ms + 20)
        assert values(await running.wait()), "it executes"


@pytest.mark.parametrize(("flag", "parameter"), [(RequestTimeout.QUEUE, "enforce"), (RequestTimeout.ENFORCE, "queue")])
async def test_a_model_parameter_sets_the_meaning_of_timeouts(
    autojump_clock: MockClock, loop_guard: LoopGuard, flag: RequestTimeout, parameter: str
) -> None:
    async with rig(latency_ms=1000, request_timeout=flag) as r:
        await r.serve(config(parameters={"TPY_REQUEST_TIMEOUT": ModelParameter(string_value=parameter)}))
        sink = r.submit(request(timeout_us=20_000))
        await sink.wait()
        assert sink.at_ms == (20 if parameter == "enforce" else 1000)


async def test_a_batch_that_takes_long_is_told_in_the_log(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(latency_ms=50_000) as r:
        await r.serve(config())
        await r.submit().wait()
        told = [record.getMessage() for record in caplog.records if "still executing" in record.getMessage()]
        assert [text.partition(" is ")[2].partition(":")[0] for text in told] == [
            "still executing after 10 s",
            "still executing after 20 s",
            "still executing after 40 s",
        ]


async def test_a_loop_that_is_held_up_meanwhile_costs_no_model(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is paused while the log is written: the time of the next line is over already."""

    class Pauses(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "still executing after 10 s" in record.getMessage():
                autojump_clock.jump(30)

    monkeypatch.setattr(logging.getLogger(), "handlers", [*logging.getLogger().handlers, Pauses()])
    async with rig(latency_ms=100_000) as r:
        await r.serve(config())
        assert values(await r.submit().wait())
        assert "still executing after 40 s" in caplog.text


async def test_an_idle_instance_needs_no_timer(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(latency_ms=15_000) as r:
        await r.serve(config())
        await r.submit().wait()
        await trio.sleep(60)
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf
        caplog.clear()
        sink = r.submit()
        await trio.sleep(11)
        assert "still executing after 10 s" in caplog.text
        await sink.wait()


async def test_the_queue_policys_default_timeout(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    policy = QueuePolicy(default_timeout_microseconds=20_000)
    async with rig(latency_ms=1000) as r:
        await r.serve(config(dynamic_batching=dynamic(50, preferred_batch_size=(8,), default_queue_policy=policy)))
        sink = r.submit()
        await sink.wait()
        assert sink.at_ms == 20


async def test_many_deadlines_each_on_time(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10_000) as r:
        await r.serve(config())
        r.submit()
        # Given in an order in which the next deadline moves both ways.
        sinks = {ms: r.submit(request(timeout_us=ms * 1000)) for ms in (500, 20, 900, 21, 10, 600, 22)}
        for ms, sink in sinks.items():
            await sink.wait()
            assert sink.at_ms == ms


async def test_a_batch_waits_its_delay_and_no_longer(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=5) as r:
        await r.serve(config(dynamic_batching=dynamic(100, preferred_batch_size=(8,))))
        one = r.submit()
        await trio.sleep(0.04)
        two = r.submit(request(2, 2))
        await two.wait()
        assert (one.at_ms, two.at_ms) == (105, 105)
        assert [len(batch.requests) for batch in r.backend.batches] == [2]


@pytest.mark.parametrize(("preferred", "halves"), [((), True), ((4, 16), False)])
async def test_clients_that_fall_into_step_get_half_of_them_at_a_time(
    autojump_clock: MockClock, loop_guard: LoopGuard, preferred: tuple[int, ...], halves: bool
) -> None:
    """The time of a batch comes from the instance to the rule that decides that: 10 ms of 35 between two large ones."""
    async with rig(latency_ms=10) as r:
        await r.serve(config(max_batch_size=16, dynamic_batching=dynamic(preferred_batch_size=preferred)))
        for _ in range(8):
            for sink in [r.submit() for _ in range(17)]:
                await sink.wait()
            await trio.sleep(0.025)
        sizes = [len(batch.requests) for batch in r.backend.batches]
        whole = [1, 16] * 8
        assert sizes == ([1, 16] * 5 + [1, 9, 7] * 3 if halves else whole)


async def test_cancelling_one_of_a_batch_leaves_the_others(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config(dynamic_batching=dynamic(10, preferred_batch_size=(3,))))
        sinks = [RecordingSink() for _ in range(3)]
        handles = [submit_to(r.plane.inference, request(value=i), sink) for i, sink in enumerate(sinks)]
        await trio.sleep(0.05)
        handles[1].cancel()
        handles[1].cancel()
        await sinks[2].wait()
        assert [len(sink.responses) for sink in sinks] == [1, 0, 1]
        assert values(sinks[2].response) == [2.0, 2.0]
        assert [asked.is_cancelled() for asked in r.backend.batches[0].requests] == [False, True, False]
        handles[0].cancel()  # after the end: nothing
        (statistics,) = r.plane.statistics("m")
        assert (statistics.failures.canceled, statistics.inference.success.count) == (1, 2)


@pytest.mark.parametrize(("latency_ms", "count", "wait_s"), [(100, 1, 1), (2000, 1, 8), (2000, 2, 4), (100_000, 1, 120)])
async def test_a_full_queue_says_when_it_will_have_been_worked_off(
    autojump_clock: MockClock, loop_guard: LoopGuard, latency_ms: int, count: int, wait_s: int
) -> None:
    policy = QueuePolicy(max_queue_size=4)
    async with rig(latency_ms=latency_ms) as r:
        await r.serve(
            config(max_batch_size=1, dynamic_batching=dynamic(default_queue_policy=policy), instance_group=instances(count))
        )
        for _ in range(count):
            await r.submit().wait()
        for _ in range(count + 4):
            r.submit()
        with pytest.raises(Unavailable, match="Exceeds maximum queue size") as caught:
            r.submit()
        assert caught.value.wait_s == wait_s


async def test_a_cancelled_request_leaves_its_queue_at_once(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    policy = QueuePolicy(max_queue_size=1)
    async with rig(latency_ms=100) as r:
        await r.serve(config(max_batch_size=1, dynamic_batching=dynamic(default_queue_policy=policy)))
        r.submit()
        handle = submit_to(r.plane.inference, request(), RecordingSink())
        with pytest.raises(Unavailable, match=r"^\[request id: x\] Exceeds maximum queue size$"):
            r.submit(request(id="x"))
        handle.cancel()
        sink = r.submit()
        await sink.wait()
        assert sink.at_ms == 200
        (statistics,) = r.plane.statistics("m")
        assert (statistics.failures.refused_queue_full, statistics.failures.refused_admission) == (1, 1)
        assert statistics.inference.fail.count == 1


async def test_answers_keep_the_order_of_arrival_when_asked_to(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    order: list[float] = []

    class Ordered(RecordingSink):
        def deliver(self, response: InferenceResponse) -> None:
            super().deliver(response)
            order.append(values(response)[0])

    slow_then_fast = iter([300, 20, 20, 20])
    async with rig(latency_ms=lambda worker: next(slow_then_fast)) as r:
        await r.serve(config(max_batch_size=1, dynamic_batching=dynamic(preserve_ordering=True), instance_group=instances(2)))
        sinks = [Ordered() for _ in range(4)]
        for number, sink in enumerate(sinks):
            submit_to(r.plane.inference, request(value=number), sink)
        await sinks[-1].wait()
        assert order == [0, 1, 2, 3]
        assert sinks[1].at_ms == 300


async def test_a_sink_may_submit_and_a_sink_that_raises_hurts_only_itself(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(config())
        second = RecordingSink()

        class Chain(RecordingSink):
            def deliver(self, response: InferenceResponse) -> None:
                submit_to(r.plane.inference, request(value=2), second)
                raise ValueError("not allowed")

        submit_to(r.plane.inference, request(), Chain())
        assert values(await second.wait()) == [2, 2]
        assert second.at_ms == 20


@pytest.mark.parametrize("preserve_ordering", [False, True])
async def test_a_sink_may_cancel_a_batch_mate(autojump_clock: MockClock, loop_guard: LoopGuard, preserve_ordering: bool) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(config(dynamic_batching=dynamic(5, preserve_ordering=preserve_ordering)))
        mate = RecordingSink()

        class Canceller(RecordingSink):
            def deliver(self, response: InferenceResponse) -> None:
                super().deliver(response)
                handle.cancel()

        first = Canceller()
        submit_to(r.plane.inference, request(), first)
        handle = submit_to(r.plane.inference, request(), mate)
        assert values(await first.wait()) == [1, 1]
        assert mate.responses == []
        assert values(await r.submit().wait()) == [1, 1]


def boom(batch: ExecutionBatch) -> list[ExecutionResult]:
    raise ValueError("nope")


def exit_now(batch: ExecutionBatch) -> list[ExecutionResult]:
    raise SystemExit(3)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise Unspeakable


def unspeakable(batch: ExecutionBatch) -> list[ExecutionResult]:
    raise Unspeakable


@pytest.mark.parametrize(
    ("execute", "reason"),
    [
        (boom, "Internal: Failed to process the request(s) for model 'm_0', message: ValueError: nope"),
        (exit_now, "Internal: Failed to process the request(s) for model 'm_0', message: SystemExit: 3"),
        (lambda batch: [], "Internal: instance 'm_0' gave 0 results for 1 requests"),
        (lambda batch: [ExecutionResult(error=NotFound("gone"))], "Not found: gone"),
        (
            unspeakable,
            "Internal: Failed to process the request(s) for model 'm_0', message: Unspeakable: <its text cannot be read>",
        ),
        (lambda batch: [{}], "Internal: instance 'm_0' gave a result of type dict"),
        (lambda batch: [None], "Internal: instance 'm_0' gave a result of type NoneType"),
        (lambda batch: [ExecutionResult(error="gone")], "Internal: instance 'm_0' gave an error of type str"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda batch: [ExecutionResult([np.zeros(2)])], "Internal: instance 'm_0' gave an output of type ndarray"),  # type: ignore[list-item]  # wrong on purpose
        (
            lambda batch: [ExecutionResult([Tensor("OUT", DataType.FP32, np.zeros(2))])],
            "Internal: instance 'm_0' gave output 'OUT' as FP32 with dtype float64",
        ),
    ],
)
async def test_an_error_of_the_model_is_the_requests_and_the_instance_goes_on(
    autojump_clock: MockClock, loop_guard: LoopGuard, execute: object, reason: str
) -> None:
    backend = ScriptedBackend(execute)  # type: ignore[arg-type]  # parametrize hands objects
    async with rig(backend=backend) as r:
        await r.serve(config())
        sink = r.submit()
        await sink.wait()
        assert sink.error == reason
        backend.execute = identity
        assert values(await r.submit().wait()) == [1, 1]


async def test_only_requested_outputs_in_the_configurations_order(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    def three(batch: ExecutionBatch) -> list[ExecutionResult]:
        return [ExecutionResult([tensor(1, 2, name=name) for name in ("C", "UNKNOWN", "A", "B")])]

    outputs = tuple(ModelOutput(name=name, data_type=DataType.FP32, dims=(2,)) for name in ("A", "B", "C", "NOT_MADE"))
    async with rig(backend=ScriptedBackend(three)) as r:
        await r.serve(config(output=outputs))
        everything = await r.submit().wait()
        assert [output.name for output in everything.outputs] == ["A", "B", "C"]
        some = await r.submit(request(requested_outputs=("C", "A", "NOT_MADE"))).wait()
        assert [output.name for output in some.outputs] == ["A", "C"]


async def test_reshape_there_and_back(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    seen: list[tuple[int, ...]] = []

    def watch(batch: ExecutionBatch) -> list[ExecutionResult]:
        array = batch.requests[0].inputs["IN"].array
        seen.append(array.shape)
        made = array if len(seen) == 1 else np.zeros((1, 5), np.float32)
        return [ExecutionResult([Tensor("OUT", DataType.FP32, made)])]

    reshape = TensorReshape(shape=(-1, 2, 2))
    entry = {"data_type": DataType.FP32, "dims": (-1, 4), "reshape": reshape}
    async with rig(backend=ScriptedBackend(watch)) as r:
        await r.serve(config(input=(ModelInput(name="IN", **entry),), output=(ModelOutput(name="OUT", **entry),)))  # type: ignore[arg-type]  # mixed values
        response = await r.submit(request(1, 3, 4)).wait()
        assert response.outputs[0].array.shape == (1, 3, 4)
        wrong = r.submit(request(1, 3, 4))
        await wrong.wait()
        assert wrong.error == (
            "Internal: output 'OUT' of model 'm' cannot be returned: "
            "shape [1, 5] does not fit the configured reshape [-1, -1, 2, 2]"
        )
    assert seen == [(1, 3, 2, 2)] * 2


async def test_the_answers_to_whom_nothing_is_known(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig() as r:
        await r.serve(config())
        inference = r.plane.inference
        with pytest.raises(NotFound, match=r"^Request for unknown model: 'x' is not found$"):
            submit_to(inference, request(model="x"), RecordingSink())
        with pytest.raises(NotFound, match=r"^Request for unknown model: 'm' version 7 is not found$"):
            submit_to(inference, request(model_version=7), RecordingSink())
        assert inference.resolve("m").description.version == 1
        assert inference.config("m", 1).instance_group[0].count == 1
        assert inference.ready_versions("m") == (1,)
        r.want(config(), ())
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NotFound, match=r"^Request for unknown model: 'm' has no available versions$"):
            inference.resolve("m")
        with pytest.raises(Unavailable, match=r"^Request for unknown model: 'm' version 1 is not at ready state$"):
            inference.resolve("m", 1)
        assert inference.ready_versions("m") == ()
        with pytest.raises(NotFound):
            inference.ready_versions("x")


async def test_statistics_identities(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    def some_fail(batch: ExecutionBatch) -> list[ExecutionResult]:
        batch.times.input_end_ns = batch.times.start_ns + 10
        batch.times.output_start_ns = batch.times.start_ns + 30
        return [
            ExecutionResult(error=Internal("neg")) if asked.inputs["IN"].array[0, 0] < 0 else good
            for asked, good in zip(batch.requests, identity(batch), strict=True)
        ]

    async with rig(backend=ScriptedBackend(some_fail), latency_ms=40) as r:
        await r.serve(config(dynamic_batching=dynamic(10, preferred_batch_size=(4,))))
        sinks = [r.submit(request(2, 2, value=value)) for value in (1, -1)]
        for sink in sinks:
            await sink.wait()
        await r.submit(request(4, 2)).wait()
        with pytest.raises(Exception, match="batch-size"):
            r.submit(request(9, 2))
        (s,) = r.plane.statistics("m", 1)
    inference = s.inference
    assert inference.success.count == inference.queue.count == inference.compute_infer.count == 2
    assert inference.fail.count == s.failures.backend == 1
    assert s.failures.refused_admission == 1
    assert s.inference_count == 2 + 4
    assert s.execution_count == sum(row.compute_infer.count for row in s.batches) == 2
    assert [row.batch_size for row in s.batches] == [4]
    # Of a batch of two, one answered well: the batch's time counts once for it, and once in the batch's own row.
    assert inference.compute_input.ns == s.batches[0].compute_input.ns == 20
    assert inference.compute_infer.ns == s.batches[0].compute_infer.ns == 40
    assert inference.compute_output.ns == 2 * (40 * NS_PER_MS - 30)
    assert inference.success.ns == inference.queue.ns + 2 * 40 * NS_PER_MS
    assert inference.fail.ns == 40 * NS_PER_MS
    assert s.last_inference_ms == 80
    assert s.pending_requests == 0


async def test_statistics_of_the_queue_and_of_nobody(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=1000) as r:
        await r.serve(config())
        await r.serve(config("other"))
        for _ in range(4):
            r.submit()
        assert r.plane.statistics("m")[0].pending_requests == 3
        assert [(s.name, s.version) for s in r.plane.statistics()] == [("m", 1), ("other", 1)]
        with pytest.raises(Exception, match=r"^requested model 'x' is not available$"):
            r.plane.statistics("x")
        with pytest.raises(Exception, match=r"^requested model version is not available for model 'm'$"):
            r.plane.statistics("m", 2)


async def test_a_request_beyond_any_deadline_does_not_keep_the_loop_busy(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with rig(latency_ms=3_600_000) as r:
        await r.serve(config())
        sink = r.submit(InferenceRequest(model_name="m", inputs=(tensor(1, 2),), timeout_us=10**15))
        before = loop_guard.steps
        await sink.wait()
        assert sink.at_ms == 3_600_000
        assert loop_guard.steps - before < 40, "some for each line about a batch that takes long"
