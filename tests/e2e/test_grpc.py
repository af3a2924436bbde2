"""Features that only gRPC has, against `tpy serve`: health that tells changes, reflection, streams and the stop, its flags."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tpy._proto import message_class

from .repositories import ModelFolder
from .server import ServerProcess, run_tpy

HealthRequest, HealthResponse = (message_class(f"grpc.health.v1.HealthCheck{kind}") for kind in ("Request", "Response"))
ReflectionRequest, ReflectionResponse = (
    message_class(f"grpc.reflection.v1.ServerReflection{kind}") for kind in ("Request", "Response")
)
SERVING, NOT_SERVING = 1, 2
MODELS = (("a", ""), ("a", "9"), ("a", "0"), ("nosuch", ""))
"""Names and versions; only the first is there."""


def _input(value: int) -> triton.InferInput:
    given = triton.InferInput("INPUT0", [1, 1], "INT32")
    given.set_data_from_numpy(np.array([[value]], np.int32))
    return given


def _watch(channel: grpc.Channel, service: str) -> Iterator[int]:
    request = HealthRequest(service=service).SerializeToString()
    for response in channel.unary_stream("/grpc.health.v1.Health/Watch")(request, timeout=60):
        yield HealthResponse.FromString(response).status


def test_models_are_polled_for(repository: Path) -> None:
    """As Triton's simple_grpc_model_control.py, Model Analyzer and others do: ask until a model is ready, or no more."""
    ModelFolder(repository, "a").identity()

    async def ask(address: str) -> list[bool]:
        async with triton_aio.InferenceServerClient(address) as client:
            return [await client.is_model_ready(name, version) for name, version in MODELS]

    with (
        ServerProcess("--model-control-mode=explicit", repositories=[repository]) as server,
        triton.InferenceServerClient(server.grpc) as client,
        triton_http.InferenceServerClient(server.http) as over_http,
    ):
        for ready in (False, True, False):
            expected = [ready, False, False, False]
            assert [client.is_model_ready(name, version) for name, version in MODELS] == expected
            assert [over_http.is_model_ready(name, version) for name, version in MODELS] == expected
            assert asyncio.run(ask(server.grpc)) == expected
            (client.unload_model if ready else client.load_model)("a")


def test_health_watch_sends_changes(repository: Path) -> None:
    for name in ("a", "b"):
        ModelFolder(repository, name).identity()
    with (
        ServerProcess("--model-control-mode=explicit", "--load-model=a", repositories=[repository]) as server,
        grpc.insecure_channel(server.grpc) as channel,
        triton.InferenceServerClient(server.grpc) as client,
    ):
        whole, first, second = (_watch(channel, service) for service in ("", "a", "b/1"))
        assert [next(whole), next(first)] == [SERVING, SERVING]
        assert next(second) in (NOT_SERVING, 3)  # whether an unloaded model is known depends on the listing
        client.load_model("b")
        while next(second) != SERVING:  # it may be told as known first
            pass
        client.unload_model("a")
        assert next(first) == NOT_SERVING
        server.process.terminate()
        assert list(whole)[-1] == NOT_SERVING
        assert server.wait_end(within_s=20) == 0  # the two other streams do not hold it up


def test_reflection(repository: Path) -> None:
    with ServerProcess(repositories=[repository]) as server, grpc.insecure_channel(server.grpc) as channel:
        for version in ("v1", "v1alpha"):
            ask = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
            requests = [ReflectionRequest(list_services=""), ReflectionRequest(file_containing_symbol="inference.ModelConfig")]
            answers = ask(iter([request.SerializeToString() for request in requests]), timeout=30)
            services, files = (ReflectionResponse.FromString(answer) for answer in answers)
            assert "inference.GRPCInferenceService" in [row.name for row in services.list_services_response.service]
            assert len(files.file_descriptor_response.file_descriptor_proto) == 1


def test_an_open_stream_does_not_hold_up_the_stop(repository: Path) -> None:
    ModelFolder(repository, "m").identity()
    ended = threading.Event()
    answers: queue.SimpleQueue[tuple[triton.InferResult | None, InferenceServerException | None]] = queue.SimpleQueue()

    def take(result: triton.InferResult | None, error: InferenceServerException | None) -> None:
        answers.put((result, error))
        if error is not None:
            ended.set()

    with ServerProcess(repositories=[repository]) as server, triton.InferenceServerClient(server.grpc) as client:
        client.start_stream(take)
        for value in range(3):
            client.async_stream_infer("m", [_input(value)], request_id=str(value))
        for value in range(3):
            result, _ = answers.get(timeout=30)
            assert result is not None
            assert result.as_numpy("OUTPUT0").item() == value
        assert server.stop() == 0
        assert ended.wait(30)
        error = answers.get()[1]
        assert error is not None
        assert error.message() == "GRPC server is shutting down and has stopped accepting new requests."
        client.stop_stream()


def test_restricted_protocols_and_forwarded_metadata(repository: Path) -> None:
    ModelFolder(repository, "m").identity()
    flags = ("--grpc-restricted-protocol=inference:key=secret", "--grpc-header-forward-pattern=x-.*|priority")
    with ServerProcess(*flags, repositories=[repository]) as server, triton.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("m", [_input(1)])
        assert caught.value.message() == "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        key = {"triton-grpc-protocol-key": "secret"}
        assert client.infer("m", [_input(1)], headers={**key, "x-a": "1"}).as_numpy("OUTPUT0").item() == 1
        with pytest.raises(InferenceServerException) as caught:
            client.infer("m", [_input(1)], headers={**key, "priority": "1"})
        assert caught.value.message() == "Header 'priority' is reserved for Triton usage and cannot be forwarded."


def test_a_unix_socket_and_no_http(repository: Path, tmp_path: Path) -> None:
    ModelFolder(repository, "m").identity()
    path = tmp_path / "grpc.sock"
    flags = ("--allow-http=false", f"--grpc-address=unix:{path}", "--grpc-infer-response-compression-level=high")
    with ServerProcess(*flags, repositories=[repository]), triton.InferenceServerClient(f"unix:{path}") as client:
        assert client.infer("m", [_input(5)], compression_algorithm="gzip").as_numpy("OUTPUT0").item() == 5
    assert not path.exists()


def test_the_size_of_messages_is_bounded(repository: Path) -> None:
    ModelFolder(repository, "m").identity(batch=8192)
    with ServerProcess("--grpc-max-input-size=10000", repositories=[repository]) as server:
        given = triton.InferInput("INPUT0", [3000, 1], "INT32")
        given.set_data_from_numpy(np.zeros((3000, 1), np.int32))
        with triton.InferenceServerClient(server.grpc) as client:
            assert client.infer("m", [_input(5)]).as_numpy("OUTPUT0").item() == 5
            for compression in (None, "gzip"):
                with pytest.raises(InferenceServerException, match="10000") as caught:
                    client.infer("m", [given], compression_algorithm=compression)
                assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--grpc-port=8123", "--http-port=8123"], "GRPC requests and HTTP requests at the same address and port 0.0.0.0:8123"),
        (
            ["--grpc-port=8123", "--metrics-port=8123"],
            "METRICS requests at the same address and port 0.0.0.0:8123",
        ),
        (["--grpc-restricted-protocol=x"], "--grpc-restricted-protocol expects '<api>[,<api>...]:<header>=<value>', got: 'x'"),
        (
            ["--grpc-infer-response-compression-level=x"],
            "--grpc-infer-response-compression-level: x (expected one of none, low",
        ),
        (["--grpc-max-input-size=2147483648"], "Got 2147483648 (expected at most 2147483647)"),
        (["--grpc-keepalive-time=0"], "--grpc-keepalive-time must be greater than 0, got 0"),
    ],
)
def test_wrong_flags(repository: Path, flags: list[str], text: str) -> None:
    outcome = run_tpy("serve", f"--model-repository={repository}", *flags)
    assert outcome.code != 0
    assert text in outcome.err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--grpc-header-forward-pattern=("], "--grpc-header-forward-pattern is not a regular expression"),
        (["--grpc-use-ssl=true"], "certificate"),
    ],
)
def test_options_that_cannot_be_served(repository: Path, flags: list[str], text: str) -> None:
    ports = [f"--{port}-port=0" for port in ("http", "grpc", "metrics")]
    outcome = run_tpy("serve", f"--model-repository={repository}", *ports, *flags)
    assert outcome.code == 1
    assert text in outcome.err
    assert "Traceback" not in outcome.err
