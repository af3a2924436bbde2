"""Triton's own clients and grpcio against the port: every method, streams, cancellation, deadlines."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterable, Iterator

import grpc
import numpy as np
import pytest
import trio
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tpy.errors import Internal
from tpy.frontends.grpc import GrpcServiceOptions

from .fakes import infer_request
from .harness import running


def _input(*values: float) -> triton.InferInput:
    given = triton.InferInput("INPUT0", [1, len(values)], "FP32")
    given.set_data_from_numpy(np.array([values], np.float32))
    return given


def _text(*values: bytes) -> triton.InferInput:
    given = triton.InferInput("INPUT0", [1, len(values)], "BYTES")
    given.set_data_from_numpy(np.array([values], object))
    return given


async def test_tritonclient_infers() -> None:
    def use(url: str) -> None:
        with triton.InferenceServerClient(url) as client:
            result = client.infer("m", [_input(1, 2, 3)], request_id="seven", outputs=[triton.InferRequestedOutput("OUTPUT0")])
            assert result.as_numpy("OUTPUT0").tolist() == [[1, 2, 3]]
            assert result.get_response().id == "seven"
            assert client.infer("text", [_text(b"a", b"\xff", b"")]).as_numpy("OUTPUT0").tolist() == [[b"a", b"\xff", b""]]
            top = triton.InferRequestedOutput("OUTPUT0", class_count=2)
            classes = client.infer("m", [_input(0.5, 2, 1)], outputs=[top]).as_numpy("OUTPUT0")
            assert classes.tolist() == [[b"2.000000:1:one", b"1.000000:2:two"]]
            with pytest.raises(InferenceServerException) as caught:
                client.infer("nosuch", [_input(1)])
            assert caught.value.message() == "Request for unknown model: 'nosuch' is not found"
            assert caught.value.status() == "StatusCode.NOT_FOUND"
            large = np.random.default_rng(7).random((3, 1_000_000), np.float32)  # 12 MB each way
            given = triton.InferInput("INPUT0", list(large.shape), "FP32")
            given.set_data_from_numpy(large)
            np.testing.assert_array_equal(client.infer("m", [given]).as_numpy("OUTPUT0"), large)
            for compression in ("gzip", "deflate"):
                result = client.infer("m", [_input(*range(1000))], compression_algorithm=compression)
                assert result.as_numpy("OUTPUT0").size == 1000

    async with running() as server:
        await server.using(use)


async def test_tritonclient_controls() -> None:
    def use(url: str) -> None:
        with triton.InferenceServerClient(url) as client:
            assert client.is_server_live()
            assert client.is_server_ready()
            assert client.is_model_ready("m")
            assert client.get_server_metadata().extensions == ["statistics", "logging"]
            assert client.get_model_metadata("m").inputs[0].name == "INPUT0"
            assert client.get_model_config("m").config.max_batch_size == 8
            assert client.get_inference_statistics("m").model_stats[0].inference_count == 3
            assert [entry.name for entry in client.get_model_repository_index().models] == ["broken", "m", "never"]
            client.load_model("m", config='{"backend": "identity"}', files={"file:1/model.bin": b"content"})
            client.unload_model("m", unload_dependents=True)
            assert client.get_log_settings().settings["log_info"].bool_param
            settings = client.update_log_settings({"log_verbose_level": 1})
            assert settings.settings["log_verbose_level"].uint32_param == 1
            assert client.get_trace_settings().settings["trace_level"].value == ["OFF"]
            assert client.update_trace_settings(settings={"trace_level": "OFF"}).settings["trace_level"].value == ["OFF"]
            assert client.update_trace_settings("m", {"trace_rate": "7"}).settings["trace_rate"].value == ["7"]
            assert client.update_trace_settings("m", {"trace_rate": None}).settings["trace_rate"].value == ["1000"]
            assert not client.is_model_ready("x")
            assert not client.get_system_shared_memory_status().regions
            assert not client.get_cuda_shared_memory_status().regions
            for forbidden in (
                lambda: client.register_system_shared_memory("r", "/k", 8),
                lambda: client.register_cuda_shared_memory("r", b"", 0, 8),
                lambda: client.unregister_system_shared_memory(),
                lambda: client.unregister_cuda_shared_memory("r"),
                lambda: client.update_trace_settings(settings={"trace_file": "x"}),
            ):
                with pytest.raises(InferenceServerException) as caught:
                    forbidden()
                assert caught.value.status() == "StatusCode.UNIMPLEMENTED"

    async with running() as server:
        await server.using(use)
        assert server.services.repository.loads[0].files == {"1/model.bin": b"content"}
        assert server.services.repository.unloads == [("m", True)]


async def test_tritonclient_calls_back() -> None:
    def use(url: str) -> None:
        answers: queue.SimpleQueue[tuple[object, object]] = queue.SimpleQueue()

        def done(result: object, error: object) -> None:
            answers.put((result, error))

        with triton.InferenceServerClient(url) as client:
            for value in range(20):
                client.async_infer("m", [_input(value)], done, request_id=str(value))
            seen = {}
            for _ in range(20):
                result, error = answers.get(timeout=10)
                assert error is None
                assert isinstance(result, triton.InferResult)
                seen[result.get_response().id] = result.as_numpy("OUTPUT0").item()
            assert seen == {str(value): value for value in range(20)}

    async with running() as server:
        await server.using(use)


async def test_tritonclient_streams() -> None:
    def use(url: str) -> None:
        answers: queue.SimpleQueue[tuple[object, object]] = queue.SimpleQueue()
        with triton.InferenceServerClient(url) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for value in range(50):
                client.async_stream_infer("m" if value != 25 else "nosuch", [_input(value)], request_id=str(value))
            for value in range(50):
                result, error = answers.get(timeout=10)
                if value == 25:
                    assert isinstance(error, InferenceServerException)
                    assert error.message() == "Request for unknown model: 'nosuch' is not found"
                else:
                    assert isinstance(result, triton.InferResult)
                    assert result.get_response().id == str(value)
                    assert result.get_response().parameters["triton_final_response"].bool_param
            client.stop_stream()

    async with running() as server:
        await server.using(use)


async def test_tritonclient_under_asyncio() -> None:
    async def talk(url: str) -> None:
        async with triton_aio.InferenceServerClient(url) as client:
            assert await client.is_server_ready()
            results = await asyncio.gather(*(client.infer("m", [_input(value)]) for value in range(10)))
            assert [result.as_numpy("OUTPUT0").item() for result in results] == list(range(10))

            async def requests() -> object:
                for value in range(5):
                    yield {"model_name": "m", "inputs": [_input(value)], "request_id": str(value)}

            seen = [result.get_response().id async for result, error in client.stream_infer(requests()) if error is None]
            assert seen == [str(value) for value in range(5)]

    async with running() as server:
        await server.using(lambda url: asyncio.run(talk(url)))


def _stub(url: str) -> tuple[grpc.Channel, service_pb2_grpc.GRPCInferenceServiceStub]:
    channel = grpc.insecure_channel(url)
    return channel, service_pb2_grpc.GRPCInferenceServiceStub(channel)


def _read(call: Iterable[pb.ModelStreamInferResponse]) -> tuple[list[str], grpc.RpcError | None]:
    """The ids of all responses of a stream, and the error that ended it."""
    ids = []
    try:
        for response in call:
            ids.append(response.infer_response.id)
    except grpc.RpcError as error:
        return ids, error
    return ids, None


async def test_grpcio_cancels_a_call() -> None:
    async with running() as server:
        server.services.inference.immediate = False
        began = threading.Event()

        def use(url: str) -> None:
            channel, stub = _stub(url)
            with channel:
                future = stub.ModelInfer.future(infer_request())
                assert began.wait(10)
                future.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.using, use)
            await server.services.inference.wait_submitted(1)
            began.set()
            await server.services.inference.submitted[0].ended.wait()
        assert server.services.inference.submitted[0].cancelled


async def test_grpcio_sets_a_deadline() -> None:
    def use(url: str) -> grpc.StatusCode:
        channel, stub = _stub(url)
        with channel, pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(infer_request(), timeout=0.2)
        code: grpc.StatusCode = caught.value.code()
        return code

    async with running() as server:
        server.services.inference.immediate = False
        assert await server.using(use) is grpc.StatusCode.DEADLINE_EXCEEDED
        [submitted] = server.services.inference.submitted
        await submitted.ended.wait()
        assert submitted.request.deadline_ns is not None


async def test_metadata_values_may_have_spaces_around_them() -> None:
    """grpcio sends them as they are, and Triton takes them so."""
    sent = (("x-a", " lead"), ("x-b", "trail "), ("x-c", " both "), ("x-d", ""), ("other", "1"))

    def use(url: str) -> None:
        channel, stub = _stub(url)
        with channel:
            stub.ModelInfer(infer_request(), metadata=sent, timeout=30)

    async with running(GrpcServiceOptions(header_forward_pattern="X-")) as server:
        await server.using(use)
        [submitted] = server.services.inference.submitted
        assert submitted.request.parameters == dict(sent[:-1])


async def test_grpcio_cancels_a_stream() -> None:
    async with running() as server:
        server.services.inference.immediate = False
        began = threading.Event()

        def use(url: str) -> None:
            channel, stub = _stub(url)
            ended = threading.Event()

            def requests() -> Iterator[pb.ModelInferRequest]:
                for name in "abc":
                    yield infer_request(id=name)
                ended.wait(10)

            with channel:
                call = stub.ModelStreamInfer(requests())
                assert began.wait(10)
                call.cancel()
                ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.using, use)
            await server.services.inference.wait_submitted(3)
            began.set()
            for submitted in server.services.inference.submitted:
                await submitted.ended.wait()


async def test_grpcio_gets_the_status_of_the_first_failure_when_it_asks() -> None:
    def use(url: str) -> tuple[list[str], grpc.StatusCode, str]:
        channel, stub = _stub(url)
        requests = [infer_request(id="a"), infer_request("nosuch", id="b"), infer_request(id="c")]
        with channel:
            ids, error = _read(stub.ModelStreamInfer(iter(requests), metadata=[("triton_grpc_error", "true")]))
        assert error is not None
        return ids, error.code(), error.details()

    async with running() as server:
        text = "Request for unknown model: 'nosuch' is not found"
        assert await server.using(use) == (["a"], grpc.StatusCode.NOT_FOUND, text)


async def test_texts_of_errors_survive_the_wire() -> None:
    text = "Grüße: 100 % of\nit — „broken“"

    def use(url: str) -> str:
        channel, stub = _stub(url)
        with channel, pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(infer_request())
        details: str = caught.value.details()
        return details

    async with running() as server:
        server.services.inference.raises = Internal(text)
        assert await server.using(use) == text


async def test_grpcio_asks_for_health_and_what_is_not_there() -> None:
    def raw(channel: grpc.Channel, path: str, message: bytes) -> bytes:
        answer: bytes = channel.unary_unary(path)(message, timeout=10)
        return answer

    def use(url: str) -> None:
        with grpc.insecure_channel(url) as channel:
            assert raw(channel, "/grpc.health.v1.Health/Check", b"") == b"\x08\x01"
            watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert next(iter(watch)) == b"\x08\x01"
            watch.cancel()
            for path in ("/inference.GRPCInferenceService/NoSuch", "/nosuch.Service/Method"):
                with pytest.raises(grpc.RpcError) as caught:
                    raw(channel, path, b"")
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            with pytest.raises(grpc.RpcError) as caught:
                raw(channel, "/inference.GRPCInferenceService/ModelInfer", b"\xff\xff\xff")
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INTERNAL, "Unable to parse request")

    async with running() as server:
        await server.using(use)


async def test_a_stop_finishes_calls_and_ends_streams() -> None:
    async with running() as server:
        server.services.inference.immediate = False
        outcome: list[object] = []

        def infer(url: str) -> None:
            channel, stub = _stub(url)
            with channel:
                outcome.append(stub.ModelInfer(infer_request(id="i"), timeout=10).id)

        def stream(url: str) -> None:
            channel, stub = _stub(url)
            hold = threading.Event()

            def requests() -> Iterator[pb.ModelInferRequest]:
                yield infer_request(id="s")
                hold.wait(10)

            with channel:
                ids, error = _read(stub.ModelStreamInfer(requests()))
            hold.set()
            assert error is not None
            outcome.extend([*ids, (error.code(), error.details())])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.using, infer)
            nursery.start_soon(server.using, stream)
            await server.services.inference.wait_submitted(2)
            server.stop.set()
            for submitted in server.services.inference.submitted:
                submitted.answer()
        text = "GRPC server is shutting down and has stopped accepting new requests."
        assert {"i", "s", (grpc.StatusCode.UNAVAILABLE, text)} == set(outcome)
