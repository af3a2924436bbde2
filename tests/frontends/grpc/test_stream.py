"""ModelStreamInfer on calls without a transport: order, errors, ends, back-pressure."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing
from grpclib.const import Status
from tritonclient.grpc import service_pb2 as pb

from tests.frontends.http.fakes import Submitted
from tpy import limits
from tpy.errors import Internal
from tpy.messages import DataType, InferenceResponse, Tensor

from .fakes import FakePort, FakeStreamCall, infer_request, port


def shown(call: FakeStreamCall) -> list[tuple[str, str, bool | None]]:
    """Of every response: id, error, and what it says about being the last one."""
    found = []
    for message in call.responses:
        response = pb.ModelStreamInferResponse.FromString(message)
        inner = response.infer_response
        final = inner.parameters["triton_final_response"].bool_param if "triton_final_response" in inner.parameters else None
        found.append((inner.id, response.error_message, final))
    return found


def answer(submitted: Submitted, *, final: bool, size: int = 1, error: Internal | None = None) -> None:
    """One response of a decoupled model; `size` 0: no outputs."""
    outputs = (Tensor("OUTPUT0", DataType.FP32, np.zeros(size, np.float32)),) if size and error is None else ()
    request = submitted.request
    submitted.sink.deliver(
        InferenceResponse(
            model_name=request.model_name, model_version=1, id=request.id, outputs=outputs, error=error, final=final
        )
    )


async def submitted(server: FakePort, *requests: pb.ModelInferRequest, call: FakeStreamCall) -> list[Submitted]:
    """Send requests to an engine that does not answer by itself."""
    inference = server.services.inference
    inference.immediate = False
    before = len(inference.submitted)
    for request in requests:
        call.request(request.SerializeToString())
    await inference.wait_submitted(before + len(requests))
    return inference.submitted[before:]


async def test_requests_are_answered_and_half_close_ends_the_call() -> None:
    async with port() as server:
        call = server.open()
        for name in "ab":
            call.request(infer_request(id=name).SerializeToString())
        call.half_close()
        await call.ended.wait()
        assert call.status is Status.OK
        assert shown(call) == [("a", "", True), ("b", "", True)]
        response = pb.ModelStreamInferResponse.FromString(call.responses[0]).infer_response
        assert (response.model_name, response.model_version, len(response.raw_output_contents[0])) == ("m", "1", 16)


async def test_a_stream_without_requests_ends_with_ok() -> None:
    async with port() as server:
        call = server.open()
        call.half_close()
        await call.ended.wait()
        assert (call.status, call.responses) == (Status.OK, [])


async def test_answers_of_ordinary_models_keep_the_order_of_the_requests() -> None:
    async with port() as server:
        call = server.open()
        first, second = await submitted(server, infer_request(id="1"), infer_request(id="2"), call=call)
        call.request(infer_request("x", id="3").SerializeToString())
        [fourth] = await submitted(server, infer_request(id="4"), call=call)
        second.answer()
        fourth.answer()
        assert call.responses == []
        first.answer()
        assert [entry[0] for entry in shown(call)] == ["1", "2", "3", "4"]
        assert shown(call)[2] == ("3", "Request for unknown model: 'x' is not found", None)


async def test_answers_of_decoupled_models_come_as_they_are() -> None:
    async with port() as server:
        call = server.open()
        ordinary, flow = await submitted(server, infer_request(id="o"), infer_request("flow", id="f"), call=call)
        answer(flow, final=False)
        answer(flow, final=True)
        ordinary.answer()
        assert shown(call) == [("f", "", False), ("f", "", True), ("o", "", True)]


@pytest.mark.parametrize("asked", [False, True])
async def test_the_empty_final_response_is_sent_when_asked_for(asked: bool) -> None:
    request = infer_request("flow", id="f")
    request.model_version = "1"
    if asked:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    async with port() as server:
        call = server.open()
        [flow] = await submitted(server, request, call=call)
        answer(flow, final=False)
        answer(flow, final=True, size=0)
        call.half_close()
        await call.ended.wait()
        assert shown(call) == [("f", "", False), ("f", "", True)][: 1 + asked]
        if asked:
            last = pb.ModelStreamInferResponse.FromString(call.responses[1]).infer_response
            assert (last.model_name, last.model_version, len(last.outputs)) == ("flow", "1", 0)


async def test_failures_are_messages_and_the_stream_goes_on() -> None:
    async with port() as server:
        call = server.open()
        wrong = infer_request(id="w", data=bytes(8))
        call.request(wrong.SerializeToString())
        [failing] = await submitted(server, infer_request(id="f"), call=call)
        failing.answer(Internal("model broke"))
        [flow] = await submitted(server, infer_request("flow", id="d"), call=call)
        answer(flow, final=False, error=Internal("in the middle"))
        answer(flow, final=True)
        text = "[request id: w] input byte size mismatch for input 'INPUT0' for model 'm'. Expected 16, got 8"
        assert shown(call) == [("w", text, None), ("f", "model broke", True), ("d", "in the middle", False), ("d", "", True)]
        late = pb.ModelStreamInferResponse.FromString(call.responses[1]).infer_response
        assert (late.model_name, late.model_version) == ("m", "")


async def test_a_client_may_want_failures_as_the_status_of_the_call() -> None:
    async with port() as server:
        call = server.open(metadata=[("triton_grpc_error", "true")])
        first, second = await submitted(server, infer_request(id="1"), infer_request(id="2"), call=call)
        second.answer(Internal("model broke"))
        assert call.status is None
        [third] = await submitted(server, infer_request(id="3"), call=call)
        first.answer()
        await call.ended.wait()
        assert (call.status, call.message) == (Status.INTERNAL, "model broke")
        assert shown(call) == [("1", "", True)]
        await third.ended.wait()
        assert third.cancelled


async def test_a_bug_is_a_failure_of_its_request_only(caplog: pytest.LogCaptureFixture) -> None:
    async with port() as server:
        call = server.open()
        server.services.inference.raises = RuntimeError("a secret")
        call.request(infer_request(id="1").SerializeToString())
        await call.wait_responses(1)
        server.services.inference.raises = None
        call.request(infer_request(id="2").SerializeToString())
        await call.wait_responses(2)
        assert shown(call) == [("1", "unexpected error in the server, its log has the details", None), ("2", "", True)]
        assert "a secret" in caplog.text


async def test_what_is_no_request_ends_the_call_and_cancels_the_others() -> None:
    async with port() as server:
        call = server.open()
        [pending] = await submitted(server, infer_request(), call=call)
        call.request(b"\xff\xff")
        await call.ended.wait()
        assert (call.status, call.message) == (Status.INTERNAL, "Unable to parse request")
        await pending.ended.wait()
        assert pending.cancelled


async def test_a_client_that_goes_away_cancels_all_its_requests() -> None:
    async with port() as server:
        call = server.open()
        pending = await submitted(server, infer_request(), infer_request("flow"), call=call)
        call.cancel()
        for each in pending:
            await each.ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert not server.nursery.child_tasks
        assert call.responses == []


async def test_half_close_waits_for_what_is_outstanding() -> None:
    async with port() as server:
        call = server.open(window=0)
        [pending] = await submitted(server, infer_request(), call=call)
        call.half_close()
        await trio.testing.wait_all_tasks_blocked()
        pending.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert call.status is None
        call.read(1)
        await call.ended.wait()
        assert (call.status, len(call.responses)) == (Status.OK, 1)


async def test_a_slow_reader_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRPC_STREAM_WAITING_BYTES_MAX", 7 * 1024)
    async with port() as server:
        call = server.open(window=2)
        for number in range(20):
            call.request(infer_request(id=str(number)).SerializeToString())
        await trio.testing.wait_all_tasks_blocked()
        assert len(call.responses) == 2
        assert call.taken == 9  # two sent, and as many as wait until the bound is passed
        call.half_close()
        for _ in range(20):
            call.read(1)
            await trio.testing.wait_all_tasks_blocked()
        await call.ended.wait()
        assert [entry[0] for entry in shown(call)] == [str(number) for number in range(20)]


async def test_errors_that_a_slow_reader_does_not_take_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no tensors, and still cost memory."""
    monkeypatch.setattr(limits, "GRPC_STREAM_WAITING_BYTES_MAX", 7 * 1024)
    async with port() as server:
        call = server.open(window=2)
        for _ in range(20):
            call.request(b"")
        await trio.testing.wait_all_tasks_blocked()
        assert call.taken == 10


async def test_requests_that_nobody_answers_are_bounded() -> None:
    async with port() as server:
        call = server.open()
        server.services.inference.immediate = False
        for number in range(limits.GRPC_STREAM_REQUESTS_MAX + 5):
            call.request(infer_request(id=str(number)).SerializeToString())
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.services.inference.submitted) == limits.GRPC_STREAM_REQUESTS_MAX
        server.services.inference.submitted[0].answer()
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.services.inference.submitted) == limits.GRPC_STREAM_REQUESTS_MAX + 1


async def test_requests_whose_answers_are_large_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first answer on each that is due counts as the largest one."""
    monkeypatch.setattr(limits, "GRPC_STREAM_ANSWERS_BYTES_MAX", 8 * 1024)
    async with port() as server:
        call = server.open()
        inference = server.services.inference
        inference.immediate = False
        call.request(infer_request().SerializeToString())
        await trio.testing.wait_all_tasks_blocked()
        inference.submitted[0].answer()  # a KiB besides its tensors
        for _ in range(20):
            call.request(infer_request().SerializeToString())
        await trio.testing.wait_all_tasks_blocked()
        assert len(inference.submitted) == 1 + 8
        inference.submitted[1].answer()
        await trio.testing.wait_all_tasks_blocked()
        assert len(inference.submitted) == 1 + 9


async def test_a_stream_is_read_on_while_sequences_may_wait_for_what_comes() -> None:
    async with port() as server:
        call = server.open()
        inference = server.services.inference
        inference.immediate = False
        first = infer_request()
        first.parameters["sequence_id"].int64_param = 1
        call.request(first.SerializeToString())
        for number in range(limits.GRPC_STREAM_REQUESTS_MAX + 5):
            call.request(infer_request(id=str(number)).SerializeToString())
        await trio.testing.wait_all_tasks_blocked()
        assert len(inference.submitted) == limits.GRPC_STREAM_REQUESTS_MAX + 6
        inference.submitted[0].answer()  # now nothing of a sequence is left
        for _ in range(2):
            call.request(infer_request().SerializeToString())
        await trio.testing.wait_all_tasks_blocked()
        assert len(inference.submitted) == limits.GRPC_STREAM_REQUESTS_MAX + 7  # it was waiting for the first of them
        for each in inference.submitted[1:]:
            each.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert len(inference.submitted) == limits.GRPC_STREAM_REQUESTS_MAX + 8


async def test_what_sequences_send_ahead_on_a_stream_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = infer_request()
    first.parameters["sequence_id"].string_param = "a"
    message = first.SerializeToString()
    monkeypatch.setattr(limits, "GRPC_STREAM_SEQUENCE_BYTES_MAX", (limits.GRPC_STREAM_REQUESTS_MAX + 2) * len(message))
    async with port() as server:
        call = server.open()
        server.services.inference.immediate = False
        for _ in range(limits.GRPC_STREAM_REQUESTS_MAX + 10):
            call.request(message)
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.services.inference.submitted) == limits.GRPC_STREAM_REQUESTS_MAX + 3


async def test_decoupled_models_are_paused_while_answers_wait_for_the_client() -> None:
    async with port() as server:
        call = server.open(window=1)
        first, second = await submitted(server, infer_request("flow", id="1"), infer_request("flow", id="2"), call=call)
        answer(first, final=False)
        assert not first.paused
        answer(first, final=False)
        assert first.paused
        assert not second.paused
        answer(second, final=False)
        assert second.paused
        call.read(1)
        await trio.testing.wait_all_tasks_blocked()
        assert first.paused
        call.read(1)
        await trio.testing.wait_all_tasks_blocked()
        assert not first.paused
        assert not second.paused
        call.read(2)
        answer(first, final=True)
        answer(second, final=True)
        call.half_close()
        await call.ended.wait()
        assert shown(call) == [("1", "", False), ("1", "", False), ("2", "", False), ("1", "", True), ("2", "", True)]


async def test_large_texts_are_encoded_in_a_thread_and_keep_their_order(loop_guard: object) -> None:
    count = 400_000
    large = pb.ModelInferRequest(model_name="text", id="large")
    large.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, count])
    large.raw_input_contents.append(b"\1\0\0\0x" * count)
    message = large.SerializeToString()
    await trio.lowlevel.checkpoint()
    async with port() as server:
        call = server.open()
        call.request(message)
        call.request(infer_request(id="small").SerializeToString())
        call.half_close()
        await call.ended.wait()
        assert [(len(response) > count) for response in call.responses] == [True, False]


async def test_when_the_server_stops_idle_streams_end_and_busy_ones_finish() -> None:
    text = "GRPC server is shutting down and has stopped accepting new requests."
    async with port() as server:
        idle, busy = server.open(), server.open()
        [pending] = await submitted(server, infer_request(id="1"), call=busy)
        server.stop.set()
        await idle.ended.wait()
        assert (idle.status, idle.message) == (Status.UNAVAILABLE, text)
        busy.request(infer_request(id="2").SerializeToString())
        await trio.testing.wait_all_tasks_blocked()
        assert busy.status is None
        pending.answer()
        await busy.ended.wait()
        assert shown(busy) == [("1", "", True), ("2", text, None)]
        assert (busy.status, busy.message) == (Status.UNAVAILABLE, text)
