"""ModelInfer on calls without a transport."""

from __future__ import annotations

import errno
import logging

import numpy as np
import pytest
import trio
import trio.lowlevel
import trio.testing
from grpclib.const import Status
from tritonclient.grpc import service_pb2 as pb

from tests.frontends.loads import Loads
from tpy import limits
from tpy.clock import SystemClock
from tpy.errors import Internal, Unavailable
from tpy.frontends.grpc import GrpcServiceOptions, create_handlers
from tpy.frontends.restrictions import parse_restricted
from tpy.units import NS_PER_S

from .fakes import FakeServices, infer_request, port


def answer_of(reply: bytes) -> pb.ModelInferResponse:
    return pb.ModelInferResponse.FromString(reply)


async def test_a_request_is_answered_before_the_handler_returns() -> None:
    async with port() as server:
        call = server.begin("ModelInfer", infer_request(id="seven", data=np.float32([1, 2, 3, 4]).tobytes()).SerializeToString())
        assert call.status is Status.OK
        answer = answer_of(call.reply_bytes)
        assert (answer.model_name, answer.model_version, answer.id) == ("m", "1", "seven")
        assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [1, 2, 3, 4]
        assert "triton_final_response" not in answer.parameters


async def test_no_task_is_needed_for_a_unary_call() -> None:
    async with port() as server:
        server.services.inference.immediate = False
        tasks = len(server.nursery.child_tasks)
        call = server.begin("ModelInfer", infer_request().SerializeToString(), deadline_ns=77)
        assert len(server.nursery.child_tasks) == tasks
        [submitted] = server.services.inference.submitted
        assert submitted.request.deadline_ns == 77
        submitted.answer()
        assert call.status is Status.OK


async def test_a_cancelled_call_cancels_its_request() -> None:
    async with port() as server:
        server.services.inference.immediate = False
        call = server.begin("ModelInfer", infer_request().SerializeToString())
        call.cancel()
        [submitted] = server.services.inference.submitted
        assert submitted.cancelled
        assert call.status is None


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        (b"\xff\xff", Status.INTERNAL, "Unable to parse request"),
        (infer_request("x").SerializeToString(), Status.NOT_FOUND, "Request for unknown model: 'x' is not found"),
        (
            infer_request("flow").SerializeToString(),
            Status.UNIMPLEMENTED,
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
        (
            infer_request(data=bytes(8), id="a").SerializeToString(),
            Status.INVALID_ARGUMENT,
            "[request id: a] input byte size mismatch for input 'INPUT0' for model 'm'. Expected 16, got 8",
        ),
    ],
)
async def test_refusals(message: bytes, status: Status, text: str) -> None:
    async with port() as server:
        call = server.begin("ModelInfer", message)
        assert (call.status, call.message) == (status, text)
        assert not server.services.inference.submitted


@pytest.mark.parametrize(("passed", "status"), [(True, Status.DEADLINE_EXCEEDED), (False, Status.UNAVAILABLE)])
async def test_a_timeout_with_the_call_is_its_deadline(passed: bool, status: Status) -> None:
    async with port() as server:
        server.services.inference.immediate = False
        deadline_ns = SystemClock().now_ns() + (0 if passed else 3600 * NS_PER_S)
        call = server.begin("ModelInfer", infer_request().SerializeToString(), deadline_ns=deadline_ns)
        [submitted] = server.services.inference.submitted
        submitted.answer(Unavailable("Request timeout expired"))
        assert call.status is status


async def test_refusals_on_arrival_and_failures_of_models() -> None:
    async with port() as server:
        server.services.inference.raises = Unavailable("Exceeds maximum queue size")
        call = server.begin("ModelInfer", infer_request().SerializeToString())
        assert (call.status, call.message) == (Status.UNAVAILABLE, "Exceeds maximum queue size")
        assert call.trailing_metadata == ()
        server.services.inference.raises.wait_s = 7
        call = server.begin("ModelInfer", infer_request().SerializeToString())
        assert call.trailing_metadata == (("retry-after", "7"),)
        server.services.inference.raises = None
        server.services.inference.immediate = False
        call = server.begin("ModelInfer", infer_request().SerializeToString())
        server.services.inference.submitted[-1].answer(Internal("model broke"))
        assert (call.status, call.message) == (Status.INTERNAL, "model broke")


@pytest.mark.parametrize("form", ["text", "bin"])
async def test_the_load_is_in_the_trailers_where_it_is_asked_for(form: str) -> None:
    async with port() as server:
        server.services.metrics = loads = Loads()
        call = server.begin("ModelInfer", infer_request().SerializeToString(), (("endpoint-load-metrics-format", form),))
        await call.ended.wait()
        assert call.status is Status.OK
        said = ("endpoint-load-metrics", "TEXT application_utilization=0.5, named_metrics.tpy_load=0.25")
        assert (call.trailing_metadata, loads.asked) == (((said,), [("m", 1)]) if form == "text" else ((), []))
        plain = server.begin("ModelInfer", infer_request().SerializeToString())
        assert (plain.reply_bytes, plain.trailing_metadata) == (call.reply_bytes, ())


async def test_a_bug_is_an_internal_error_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with port() as server:
        server.services.inference.raises = RuntimeError("a secret")
        with caplog.at_level(logging.ERROR):
            call = server.begin("ModelInfer", infer_request().SerializeToString())
        assert (call.status, call.message) == (Status.INTERNAL, "unexpected error in the server, its log has the details")
        assert "a secret" in caplog.text


@pytest.mark.parametrize("raised", [MemoryError(), OSError(errno.ENOMEM, "x"), RuntimeError("can't start new thread")])
async def test_memory_that_is_used_up_is_unavailable(caplog: pytest.LogCaptureFixture, raised: Exception) -> None:
    async with port() as server:
        server.services.inference.raises = raised
        with caplog.at_level(logging.ERROR):
            call = server.begin("ModelInfer", infer_request().SerializeToString())
        assert (call.status, call.message) == (Status.UNAVAILABLE, "the server has no memory for this request")
        assert "no memory" in caplog.text
        assert "Traceback" not in caplog.text


def _many_texts(count: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="text")
    request.inputs.add(name="INPUT0", datatype="BYTES", shape=[1, count])
    return request


@pytest.mark.parametrize("typed", [False, True])
async def test_many_elements_do_not_hold_up_the_loop(typed: bool, loop_guard: object) -> None:
    count = 400_000
    request = _many_texts(count)
    if typed:
        request.inputs[0].contents.bytes_contents.extend([b"x"] * count)
    else:
        request.raw_input_contents.append(b"\1\0\0\0x" * count)
    message = request.SerializeToString()
    await trio.lowlevel.checkpoint()
    async with port() as server:
        call = await server.call("ModelInfer", message)
        assert (call.status, call.message) == (Status.OK, "")
        assert len(call.reply_bytes) > 5 * count


async def test_a_call_that_is_cancelled_while_it_is_read_submits_nothing() -> None:
    request = _many_texts(100_000)
    request.raw_input_contents.append(b"\1\0\0\0x" * 100_000)
    async with port() as server:
        call = server.begin("ModelInfer", request.SerializeToString())
        assert call.status is None
        call.cancel()
        await trio.testing.wait_all_tasks_blocked()
        while server.nursery.child_tasks:
            await trio.lowlevel.checkpoint()
        assert not server.services.inference.submitted


async def test_a_refusal_in_a_thread_is_answered() -> None:
    request = _many_texts(7)
    request.raw_input_contents.append(b"\1\0\0\0x" * (limits.GRPC_INLINE_BYTES_MAX // 5 + 1))
    async with port() as server:
        call = await server.call("ModelInfer", request.SerializeToString())
        assert call.status is Status.INVALID_ARGUMENT
        assert "unexpected number of string elements 8" in call.message


async def test_restricted_protocols_need_their_key() -> None:
    restricted = parse_restricted(["inference,health:Key=secret"], flag="grpc-restricted-protocol", kind="protocol")
    text = "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'"
    message = infer_request().SerializeToString()
    async with port(GrpcServiceOptions(restricted=restricted)) as server:
        for metadata in ((), (("triton-grpc-protocol-key", "wrong"),), (("key", "secret"),)):
            call = server.begin("ModelInfer", message, metadata)
            assert (call.status, call.message) == (Status.UNAVAILABLE, text)
            live = await server.call("ServerLive", metadata=metadata)
            assert (live.status, live.message) == (Status.UNAVAILABLE, text)
            stream = server.open(metadata=metadata)
            await stream.ended.wait()
            assert (stream.status, stream.message) == (Status.UNAVAILABLE, text)
            watch = server.open("/grpc.health.v1.Health/Watch", metadata=metadata)
            await watch.ended.wait()
            assert (watch.status, watch.message) == (Status.UNAVAILABLE, text)
        assert server.begin("ModelInfer", message, (("triton-grpc-protocol-key", "secret"),)).status is Status.OK
        assert (await server.call("ServerMetadata")).status is Status.OK


async def test_metadata_become_parameters_when_asked_for() -> None:
    message = infer_request().SerializeToString()
    async with port(GrpcServiceOptions(header_forward_pattern="^X-|timeout|triton_y")) as server:
        server.begin("ModelInfer", message, (("x-a", "1"), ("user-agent", "u"), ("x-b-bin", b"\0"), ("x-c", "2")))
        assert server.services.inference.submitted[0].request.parameters == {"x-a": "1", "x-c": "2"}
        for name in ("timeout", "triton_y"):
            call = server.begin("ModelInfer", message, ((name, "1"),))
            text = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
            assert (call.status, call.message) == (Status.INVALID_ARGUMENT, text)


async def test_a_pattern_that_is_none_is_refused_at_the_start() -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(Exception, match=r"^--grpc-header-forward-pattern is not a regular expression: "):
            create_handlers(
                GrpcServiceOptions(header_forward_pattern="("),
                FakeServices(),
                SystemClock(),
                nursery=nursery,
                stop=trio.Event(),
            )
