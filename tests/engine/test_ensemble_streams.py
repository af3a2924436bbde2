"""Ensembles of decoupled members: every response goes its own way through the steps, a slow caller slows the member down."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.submitting import submit_to
from tpy.backend import ExecutionRequest, ExecutionResult
from tpy.errors import Internal
from tpy.limits import DECOUPLED_RESPONSES_WAITING_MAX, ENSEMBLE_FRAMES_MAX
from tpy.messages import DataType, Tensor
from tpy_data.executors.executor import ThreadExecutor

from .ensembles import DECOUPLED, MembersBackend, Stream, ensemble, inputs, outputs, plus, serve_all, step, submit
from .fakes import Rig, config, request, rig

Sends = Callable[[ExecutionRequest], None]

FLOW = ensemble("e", step("many", "IN", "A"), step("b", "A", "OUT"))
"""A member that answers many times, and one that takes each."""


def number(value: float) -> ExecutionResult:
    return ExecutionResult([Tensor("OUT", DataType.FP32, np.full((1, 2), value, np.float32))])


def counts(upto: int, *, final_with_data: bool = False) -> Sends:
    def answer(request: ExecutionRequest) -> None:
        assert request.sender is not None
        for value in range(upto):
            request.sender.send(number(value), final=final_with_data and value == upto - 1)
        if not final_with_data or not upto:
            request.sender.send(None, final=True)

    return answer


async def serve(r: Rig) -> None:
    await serve_all(r, config("many", model_transaction_policy=DECOUPLED), config("b"), FLOW)


async def test_none_one_and_several_responses() -> None:
    for upto in (0, 1, 3):
        for final_with_data in (False, True):
            backend = MembersBackend({"many": counts(upto, final_with_data=final_with_data), "b": plus(10)})
            async with rig(backend=backend) as r:
                await serve(r)
                assert r.plane.inference.config("e").decoupled
                assert r.plane.inference.resolve("e").description.decoupled
                stream = submit(r, id="i")
                await wait_all_tasks_blocked()
                assert stream.values == [10.0 + value for value in range(upto)]
                assert stream.ended
                assert not stream.errors


async def test_responses_that_overtake_each_other_keep_their_tensors_together(autojump_clock: MockClock) -> None:
    """Two branches behind one response take different times; what is joined comes from the same response."""
    joined = ensemble(
        "e",
        step("many", "IN", "A"),
        step("b", "A", "B"),
        step("pair", {"IN0": "A", "IN1": "B"}, {"OUT0": "OUT", "OUT1": "OTHER"}),
        output=outputs("OUT", "OTHER"),
    )
    pair = config("pair", input=inputs("IN0", "IN1"), output=outputs("OUT0", "OUT1"))
    backend = MembersBackend({"many": counts(5)})
    async with rig(backend=backend, latency_ms=7) as r:
        await serve_all(r, config("many", model_transaction_policy=DECOUPLED), config("b"), pair, joined)
        stream = submit(r)
        await trio.sleep(1)
        assert stream.ended
        assert sorted(stream.values) == [0, 1, 2, 3, 4]
        for response in stream.responses:
            if response.outputs:
                assert (response.outputs[0].array == response.outputs[1].array).all()


async def test_decoupled_steps_in_a_row() -> None:
    backend = MembersBackend({"many": counts(3), "more": counts(2)})
    twice = ensemble("e", step("many", "IN", "A"), step("more", "A", "OUT"))
    async with rig(backend=backend) as r:
        both = [config(name, model_transaction_policy=DECOUPLED) for name in ("many", "more")]
        await serve_all(r, *both, twice, ensemble("outer", step("e", "IN", "OUT")))
        stream, outer = submit(r), submit(r, "outer")
        await wait_all_tasks_blocked()
        assert (stream.values, outer.values) == ([0, 1] * 3, [0, 1] * 3)
        assert stream.ended
        assert outer.ended


async def test_an_error_in_the_middle_is_the_last_response(autojump_clock: MockClock) -> None:
    def answer(request: ExecutionRequest) -> ExecutionResult:
        value = float(request.inputs["IN"].array.ravel()[0])
        return ExecutionResult(error=Internal("broke")) if value == 1 else number(value)

    backend = MembersBackend({"many": counts(4), "b": answer})
    async with rig(backend=backend) as r:
        await serve(r)
        stream = submit(r)
        await wait_all_tasks_blocked()
        assert stream.values in ([0], [0, 2], [0, 2, 3])
        assert stream.errors == ["Internal: in ensemble 'e', broke"]
        assert stream.ended


async def test_an_error_from_the_decoupled_member_itself() -> None:
    def answer(request: ExecutionRequest) -> None:
        assert request.sender is not None
        request.sender.send(number(1), final=False)
        request.sender.send(ExecutionResult(error=Internal("no more")), final=True)

    async with rig(backend=MembersBackend({"many": answer})) as r:
        await serve(r)
        stream = submit(r)
        await wait_all_tasks_blocked()
        assert stream.errors == ["Internal: in ensemble 'e', no more"]
        assert stream.ended


async def test_a_slow_caller_slows_the_member_down() -> None:
    sent: list[int] = []
    waits = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def answer(request: ExecutionRequest) -> None:
        assert request.sender is not None
        for value in range(1000):
            if value == DECOUPLED_RESPONSES_WAITING_MAX:
                token.run_sync_soon(waits.set)
            request.sender.send(number(value), final=False)
            sent.append(value)
        request.sender.send(None, final=True)

    async with rig(backend=MembersBackend({"many": answer}), executor=ThreadExecutor()) as r:
        await serve(r)
        stream = Stream()
        stream.pause_after = 1
        stream.handle = submit_to(r.plane.inference, request(model="e"), stream)
        with trio.fail_after(10):
            await waits.wait()
            await wait_all_tasks_blocked(0.05)
            assert len(stream.responses) == 1
            assert len(sent) <= 2 * DECOUPLED_RESPONSES_WAITING_MAX + ENSEMBLE_FRAMES_MAX
            stream.handle.resume()
            await stream.final.wait()
        assert stream.values == list(range(1000))


async def test_max_inflight_requests_bounds_each_step(autojump_clock: MockClock) -> None:
    most = 0
    backend = MembersBackend({"many": counts(10)})
    bounded = ensemble("e", step("many", "IN", "A"), step("b", "A", "OUT"), inflight_max=2)
    async with rig(backend=backend, latency_ms=lambda worker: 10 if worker.startswith("b") else 0) as r:
        await serve_all(r, config("many", model_transaction_policy=DECOUPLED), config("b"), bounded)
        streams = [submit(r), submit(r)]
        for _ in range(60):
            await trio.sleep(0.005)
            most = max(most, r.plane.statistics("b")[0].pending_requests)
        assert all(stream.values == list(range(10)) for stream in streams)
        assert all(stream.ended for stream in streams)
        assert most <= 1, "of two in flight one runs"


async def test_cancelling_notifies_the_member() -> None:
    requests: list[ExecutionRequest] = []
    backend = MembersBackend({"many": requests.append})
    async with rig(backend=backend) as r:
        await serve(r)
        stream = submit(r)
        await wait_all_tasks_blocked()
        assert stream.handle is not None
        stream.handle.cancel()
        assert requests[0].is_cancelled()
        assert r.plane.statistics("e")[0].failures.canceled == 1
