"""Decoupled models: every accepted request ends exactly once, its responses come in order, and a slow caller slows the model."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import trio

from tests.submitting import submit_to
from tpy.backend import BackendCapabilities, ExecutionBatch, ExecutionRequest, ExecutionResult
from tpy.config.model_config import TransactionPolicy, Warmup, WarmupInput
from tpy.errors import InvalidArgument
from tpy.limits import DECOUPLED_RESPONSES_WAITING_MAX, RESPONSE_STATISTICS_MAX
from tpy.messages import DataType, InferenceResponse, ModelStatistics, Tensor
from tpy.services import RequestHandle
from tpy_data.engine.requests.statistics import ResponseCounters, ResponseKind
from tpy_data.executors.executor import ThreadExecutor

from .fakes import Rig, ScriptedBackend, config, dynamic, request, rig, values

DECOUPLED = TransactionPolicy(decoupled=True)
Plan = Callable[[ExecutionRequest], None]


def word(*numbers: float) -> ExecutionResult:
    return ExecutionResult([Tensor("OUT", DataType.FP32, np.array([numbers], np.float32))])


def sends(plan: Plan) -> Callable[[ExecutionBatch], Sequence[ExecutionResult]]:
    """An execute that does this for each request."""

    def execute(batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        for each in batch.requests:
            plan(each)
        return []

    return execute


def decoupled_backend(plan: Plan) -> ScriptedBackend:
    backend = ScriptedBackend(sends(plan))
    backend.capabilities = BackendCapabilities(name="fake", default_model_filename="model.fake", decoupled=True)
    return backend


class StreamSink:
    """Remembers responses; checks that nothing comes after the final one."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.handle: RequestHandle | None = None
        self.pause_after = -1
        self.final = trio.Event()

    def deliver(self, response: InferenceResponse) -> None:
        assert not self.final.is_set(), "a response after the final one"
        self.responses.append(response)
        if len(self.responses) == self.pause_after and self.handle is not None:
            self.handle.pause()
        if response.final:
            self.final.set()

    @property
    def told(self) -> list[Any]:
        """Values, error texts, and "end" for an empty final."""
        return [
            response.error.message if response.error is not None else values(response)[0] if response.outputs else "end"
            for response in self.responses
        ]


def submit(served: Rig, **fields: Any) -> StreamSink:
    sink = StreamSink()
    sink.handle = submit_to(served.plane.inference, request(**fields), sink)
    return sink


def statistics(served: Rig) -> ModelStatistics:
    (row,) = served.plane.statistics("m")
    return row


async def answers(plan: Plan, **changes: Any) -> tuple[StreamSink, ModelStatistics]:
    backend = decoupled_backend(plan)
    async with rig(backend=backend) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED, **changes))
        sink = submit(served)
        await sink.final.wait()
        await trio.testing.wait_all_tasks_blocked()
        return sink, statistics(served)


async def test_no_one_and_many_responses(autojump_clock: object) -> None:
    def none(each: ExecutionRequest) -> None:
        assert each.sender is not None
        each.sender.send(None, final=True)

    def one(each: ExecutionRequest) -> None:
        assert each.sender is not None
        each.sender.send(word(7), final=True)

    def many(each: ExecutionRequest) -> None:
        assert each.sender is not None
        for number in range(5):
            each.sender.send(word(number), final=False)
        each.sender.send(None, final=True)

    for plan, told in ((none, ["end"]), (one, [7.0]), (many, [0.0, 1.0, 2.0, 3.0, 4.0, "end"])):
        sink, row = await answers(plan)
        assert sink.told == told
        assert [response.final for response in sink.responses] == [False] * (len(told) - 1) + [True]
        assert (row.inference.success.count, row.inference.fail.count, row.inference_count) == (1, 0, 1)


async def test_errors_come_in_order_and_fail_the_request(autojump_clock: object) -> None:
    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        each.sender.send(word(1), final=False)
        each.sender.send(ExecutionResult(error=InvalidArgument("in the middle")), final=False)
        each.sender.send(word(2), final=True)

    sink, row = await answers(plan)
    assert sink.told == [1.0, "in the middle", 2.0]
    assert (row.inference.success.count, row.inference.fail.count, row.failures.backend) == (0, 1, 1)
    assert [(each.success.count, each.fail.count) for each in row.responses] == [(1, 0), (0, 1), (1, 0)]


async def test_execute_that_raises_ends_what_has_not_ended(autojump_clock: object) -> None:
    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        each.sender.send(word(1), final=False)
        raise InvalidArgument("no more")

    sink, row = await answers(plan)
    assert sink.told == [1.0, "no more"]
    assert (row.inference.success.count, row.inference.fail.count) == (0, 1)


async def test_nothing_after_the_final_one(autojump_clock: object) -> None:
    raised: list[str] = []

    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        with pytest.raises(ValueError, match="must be the final one"):
            each.sender.send(None, final=False)
        each.sender.send(word(1), final=True)
        for _ in range(2):
            try:
                each.sender.send(word(2), final=False)
            except ValueError as error:
                raised.append(str(error))

    sink, _ = await answers(plan)
    assert sink.told == [1.0]
    assert raised == ["the final response was sent already"] * 2


async def test_malformed_results_are_errors(autojump_clock: object) -> None:
    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        each.sender.send("text", final=False)  # type: ignore[arg-type]  # what a careless backend may do
        each.sender.send(ExecutionResult([Tensor("OUT", DataType.INT8, np.zeros(1, np.float32))]), final=True)

    sink, _ = await answers(plan)
    assert sink.told == ["the model sent a result of type str", "the model sent output 'OUT' as INT8 with dtype float32"]


class Later:
    """Keeps its requests; the test answers them when `execute` has long returned."""

    def __init__(self) -> None:
        self.requests: list[ExecutionRequest] = []

    def __call__(self, each: ExecutionRequest) -> None:
        self.requests.append(each)

    def send(self, at: int, result: ExecutionResult | None, *, final: bool) -> None:
        sender = self.requests[at].sender
        assert sender is not None
        sender.send(result, final=final)


async def test_the_instance_is_free_when_execute_returned(autojump_clock: object) -> None:
    later = Later()
    async with rig(backend=decoupled_backend(later)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sinks = [submit(served) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        assert len(later.requests) == 3
        assert statistics(served).inference.success.count == 0
        for number in range(2):
            for at in (2, 0, 1):
                later.send(at, word(10 * at + number), final=False)
        for at in (1, 2, 0):
            later.send(at, None, final=True)
        for sink in sinks:
            await sink.final.wait()
        assert [sink.told for sink in sinks] == [[0.0, 1.0, "end"], [10.0, 11.0, "end"], [20.0, 21.0, "end"]]
        assert statistics(served).inference.success.count == 3


async def test_cancel_notifies_the_model_and_drops_its_responses(autojump_clock: object) -> None:
    later = Later()
    ended: list[str] = []
    async with rig(backend=decoupled_backend(later)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served)
        await trio.testing.wait_all_tasks_blocked()
        (seen,) = later.requests
        assert seen.sender is not None
        assert sink.handle is not None
        seen.sender.watch(lambda count: None, lambda: ended.append("ended"))
        later.send(0, word(1), final=False)
        await trio.testing.wait_all_tasks_blocked()
        assert not seen.is_cancelled()
        sink.handle.cancel()
        sink.handle.cancel()
        assert seen.is_cancelled()
        assert ended == ["ended"]
        later.send(0, word(2), final=False)
        later.send(0, None, final=True)
        with pytest.raises(ValueError, match="sent already"):
            later.send(0, None, final=True)
        await trio.testing.wait_all_tasks_blocked()
        assert sink.told == [1.0]
        row = statistics(served)
        assert (row.inference.success.count, row.failures.canceled) == (0, 1)
        assert [each.cancel.count for each in row.responses] == [0, 1]


async def test_watching_a_request_that_is_over(autojump_clock: object) -> None:
    later = Later()
    told: list[str] = []
    async with rig(backend=decoupled_backend(later)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served)
        await trio.testing.wait_all_tasks_blocked()
        assert later.requests[0].sender is not None
        assert sink.handle is not None
        sink.handle.cancel()
        later.requests[0].sender.watch(lambda count: None, lambda: told.append("ended"))
        assert told == ["ended"]


async def test_deadline_after_execute(autojump_clock: object) -> None:
    later = Later()
    async with rig(backend=decoupled_backend(later)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served, timeout_us=50_000)
        await trio.testing.wait_all_tasks_blocked()
        later.send(0, word(1), final=False)
        before = trio.current_time()
        await sink.final.wait()
        assert trio.current_time() - before == pytest.approx(0.05)
        assert sink.told == [1.0, "Request timeout expired"]
        assert later.requests[0].is_cancelled()
        assert statistics(served).failures.rejected == 1


async def test_deadline_inside_execute(autojump_clock: object) -> None:
    later = Later()
    async with rig(backend=decoupled_backend(later), latency_ms=100) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served, timeout_us=50_000)
        await sink.final.wait()
        assert sink.told == ["Request timeout expired"]
        await trio.sleep(0.1)
        later.send(0, word(1), final=True)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sink.responses) == 1


async def test_final_inside_execute_frees_the_deadline(autojump_clock: object) -> None:
    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        each.sender.send(word(1), final=True)

    async with rig(backend=decoupled_backend(plan)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served, timeout_us=50_000)
        await trio.sleep(1)
        assert sink.told == [1.0]
        assert statistics(served).inference.fail.count == 0


async def test_unload_waits_for_open_requests(autojump_clock: object) -> None:
    later = Later()
    backend = decoupled_backend(later)
    async with rig(backend=backend) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served)
        await trio.testing.wait_all_tasks_blocked()
        served.want(config(model_transaction_policy=DECOUPLED), ())
        await trio.sleep(10)
        assert backend.instances
        later.send(0, word(1), final=True)
        await sink.final.wait()
        await trio.sleep(0.1)
        assert sink.told == [1.0]
        assert not backend.instances
        assert not backend.loaded


async def test_server_exit_ends_open_requests(autojump_clock: object) -> None:
    later = Later()
    async with rig(backend=decoupled_backend(later), exit_timeout_ms=1000) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served)
        await trio.testing.wait_all_tasks_blocked()
        later.send(0, word(1), final=False)
    assert sink.told[0] == 1.0
    assert "Server is stopping" in sink.told[1]
    assert len(sink.told) == 2


async def test_paused_responses_wait_and_go_on_in_order(autojump_clock: object) -> None:
    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        for number in range(6):
            each.sender.send(word(number), final=number == 5)

    async with rig(backend=decoupled_backend(plan)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served)
        sink.pause_after = 2
        await trio.testing.wait_all_tasks_blocked()
        assert sink.handle is not None
        assert sink.told == [0.0, 1.0]
        sink.pause_after = 4
        sink.handle.resume()
        assert sink.told == [0.0, 1.0, 2.0, 3.0]
        assert statistics(served).inference.success.count == 0
        sink.handle.resume()
        assert sink.told == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        sink.handle.resume()
        assert statistics(served).inference.success.count == 1


async def test_deadline_of_a_paused_request(autojump_clock: object) -> None:
    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        for number in range(3):
            each.sender.send(word(number), final=number == 2)

    async with rig(backend=decoupled_backend(plan)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served, timeout_us=50_000)
        sink.pause_after = 1
        await sink.final.wait()
        assert sink.told == [0.0, "Request timeout expired"]


async def test_a_batch_of_decoupled_requests(autojump_clock: object) -> None:
    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        each.sender.send(ExecutionResult([Tensor("OUT", DataType.FP32, each.inputs["IN"].array)]), final=False)
        each.sender.send(None, final=True)

    async with rig(backend=decoupled_backend(plan)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED, dynamic_batching=dynamic(1)))
        sinks = [submit(served) for _ in range(3)]
        for sink in sinks:
            await sink.final.wait()
        assert all(len(sink.told) == 2 and sink.told[1] == "end" for sink in sinks)
        assert statistics(served).inference.success.count == 3


async def test_a_slow_caller_makes_the_model_wait() -> None:
    """With real threads: what was sent and not taken never exceeds the bound."""
    total = 3 * DECOUPLED_RESPONSES_WAITING_MAX
    sent: list[int] = []
    done = threading.Event()

    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        for number in range(total):
            each.sender.send(word(number), final=number == total - 1)
            sent.append(number)
        done.set()

    async with rig(backend=decoupled_backend(plan), executor=ThreadExecutor()) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served)
        assert sink.handle is not None
        sink.handle.pause()
        while len(sent) < DECOUPLED_RESPONSES_WAITING_MAX:
            await trio.lowlevel.checkpoint()
        while not sink.final.is_set():
            assert len(sent) - len(sink.responses) <= DECOUPLED_RESPONSES_WAITING_MAX
            sink.handle.resume()
            sink.handle.pause()
            await trio.lowlevel.checkpoint()
        await trio.to_thread.run_sync(done.wait)
        assert sink.told == [float(number) for number in range(total)]


async def test_cancel_frees_a_model_that_waits() -> None:
    done = threading.Event()
    sent: list[int] = []

    def plan(each: ExecutionRequest) -> None:
        assert each.sender is not None
        for number in range(10 * DECOUPLED_RESPONSES_WAITING_MAX):
            each.sender.send(word(number), final=False)
            sent.append(number)
        each.sender.send(None, final=True)
        done.set()

    async with rig(backend=decoupled_backend(plan), executor=ThreadExecutor()) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        sink = submit(served)
        assert sink.handle is not None
        sink.handle.pause()
        while len(sent) < DECOUPLED_RESPONSES_WAITING_MAX:
            await trio.lowlevel.checkpoint()
        assert not done.is_set()
        sink.handle.cancel()
        await trio.to_thread.run_sync(done.wait)
        assert sink.told == []


async def test_warm_up_of_a_decoupled_model(autojump_clock: object) -> None:
    def plan(each: ExecutionRequest) -> None:
        seen.append(each)
        assert each.sender is not None
        each.sender.watch(lambda count: None, lambda: None)
        each.sender.send(word(1), final=False)
        each.sender.send(None, final=True)

    seen: list[ExecutionRequest] = []
    warmup = Warmup(name="w", batch_size=1, inputs={"IN": WarmupInput(data_type=DataType.FP32, dims=(2,), zero_data=True)})
    async with rig(backend=decoupled_backend(plan)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED, model_warmup=(warmup,)))
        assert len(seen) == 1
        assert statistics(served).inference.success.count == 0


async def test_a_request_that_has_ended_is_let_go(autojump_clock: object) -> None:
    """Without the garbage collector, also while the model keeps its sender: the sink may hold regions of clients."""
    kept: list[object] = []

    def one(each: ExecutionRequest) -> None:
        assert each.sender is not None
        kept.append(each.sender)
        each.sender.send(word(7), final=True)

    async with rig(backend=decoupled_backend(one)) as served:
        await served.serve(config(model_transaction_policy=DECOUPLED))
        gc.disable()
        try:
            sink = StreamSink()
            submit_to(served.plane.inference, request(), sink)
            await sink.final.wait()
            await trio.testing.wait_all_tasks_blocked()
            served.backend.batches.clear()  # the fake remembers them
            gone = weakref.ref(sink)
            del sink
            assert gone() is None
        finally:
            gc.enable()


def test_response_statistics_are_bounded() -> None:
    counters = ResponseCounters()
    for index in range(RESPONSE_STATISTICS_MAX + 10):
        counters.add(ResponseKind.SUCCESS, index, 1, 2)
    counters.add(ResponseKind.EMPTY, 0, 5, 6)
    rows = counters.snapshot()
    assert len(rows) == RESPONSE_STATISTICS_MAX
    assert (rows[-1].success.count, rows[-1].success.ns) == (11, 33)
    assert (rows[0].compute_infer.ns, rows[0].compute_output.ns, rows[0].empty_response.ns) == (1, 2, 11)
