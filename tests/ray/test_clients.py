"""Stock clients against Ray's own ports: the whole API, through HAProxy and through the Python proxy."""

from __future__ import annotations

import json
import queue
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from openai import NotFoundError, OpenAI
from tritonclient.utils import InferenceServerException

from .repository import build
from .serving import HAPROXY, configure, environment, serving

HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:8001"
MODELS = {"simple", "repeat", "sum", "writer", "embedder"}
ROW = np.arange(16, dtype=np.int32).reshape(1, 16)


@pytest.fixture(scope="module", params=["haproxy", "python proxy"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("cluster")
    repositories = f"{build(folder / 'models')},docs/examples/openai/models"
    words = (f"repository={repositories}", "cpus=0.1", "http_max_input_size=1000000", "allow_openai=true")
    environ = environment(folder / "home", **(HAPROXY if request.param == "haproxy" else {}))
    with serving(configure(folder / "serve.yaml", *words), folder / "log", environ, f"http://{HTTP}/v2/health/ready"):
        yield


@pytest.fixture
def http(cluster: None) -> Iterator[httpclient.InferenceServerClient]:
    with httpclient.InferenceServerClient(HTTP) as client:
        yield client


@pytest.fixture
def grpc(cluster: None) -> Iterator[grpcclient.InferenceServerClient]:
    with grpcclient.InferenceServerClient(GRPC) as client:
        yield client


def inputs(module: Any, **options: Any) -> list[Any]:
    found = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, ROW.shape, "INT32")
        tensor.set_data_from_numpy(ROW, **options)
        found.append(tensor)
    return found


def post(path: str, body: object) -> tuple[int, bytes, str]:
    request = urllib.request.Request(f"http://{HTTP}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        return reply.status, reply.read(), reply.headers["Content-Type"]


@pytest.mark.parametrize("binary", [True, False])
def test_inference_over_http(http: httpclient.InferenceServerClient, binary: bool) -> None:
    outputs = [httpclient.InferRequestedOutput("OUTPUT0", binary_data=binary)]
    found = http.infer("simple", inputs(httpclient, binary_data=binary), outputs=outputs, request_id="r1")
    assert (found.as_numpy("OUTPUT0") == 2 * ROW).all()
    assert found.get_response()["id"] == "r1"


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_inference_over_http(http: httpclient.InferenceServerClient, algorithm: str) -> None:
    given = inputs(httpclient, binary_data=True)
    found = http.infer("simple", given, request_compression_algorithm=algorithm, response_compression_algorithm=algorithm)
    assert (found.as_numpy("OUTPUT0") == 2 * ROW).all()


def test_the_rest_of_http(http: httpclient.InferenceServerClient) -> None:
    assert http.is_server_live()
    assert http.is_server_ready()
    assert http.is_model_ready("simple")
    assert not http.is_model_ready("none")
    assert http.get_server_metadata()["name"] == "triton"
    assert http.get_model_metadata("simple")["versions"] == ["1"]
    assert http.get_model_config("simple")["max_batch_size"] == 8
    assert http.get_trace_settings()["trace_level"] == ["OFF"]
    assert {each["name"] for each in http.get_model_repository_index()} == MODELS
    assert http.get_inference_statistics("simple")["model_stats"][0]["name"] == "simple"


def test_errors_over_http_are_those_of_the_server(http: httpclient.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as raised:
        http.infer("none", inputs(httpclient))
    assert (raised.value.status(), raised.value.message()) == ("404", "Request for unknown model: 'none' is not found")
    big = httpclient.InferInput("INPUT0", [20000, 16], "INT32")
    big.set_data_from_numpy(np.zeros((20000, 16), np.int32))
    with pytest.raises(InferenceServerException, match="exceeds the maximum allowed input size of 1000000 bytes"):
        http.infer("simple", [big])


def test_generate_and_its_stream(cluster: None) -> None:
    status, body, _ = post("/v2/models/simple/generate", {"INPUT0": [1] * 16, "INPUT1": [2] * 16})
    assert (status, json.loads(body)["OUTPUT0"]) == (200, [3] * 16)
    status, body, kind = post("/v2/models/repeat/generate_stream", {"N": 3})
    events = [json.loads(line.removeprefix(b"data: ")) for line in body.split(b"\n\n") if line]
    assert (status, kind.partition(";")[0]) == (200, "text/event-stream")
    assert [event["OUT"] for event in events] == [0, 1, 2]


def test_kserve_v1(cluster: None) -> None:
    row = {"INPUT0": [1] * 16, "INPUT1": [2] * 16}
    _, body, _ = post("/v1/models/simple:predict", {"instances": [row]})
    assert json.loads(body)["predictions"][0]["OUTPUT0"] == [3] * 16


def test_openai(cluster: None) -> None:
    with OpenAI(base_url=f"http://{HTTP}/v1", api_key="none", max_retries=0) as client:
        assert {each.id for each in client.models.list()} == {"writer", "embedder"}
        assert client.models.retrieve("writer").id == "writer"
        whole = client.completions.create(model="writer", prompt="every request", max_tokens=5, seed=1)
        stream = client.completions.create(model="writer", prompt="every request", max_tokens=5, seed=1, stream=True)
        pieces = [piece.choices[0].text for piece in stream]
        assert len(pieces) > 1
        assert "".join(pieces) == whole.choices[0].text
        chat = client.chat.completions.create(model="writer", messages=[{"role": "user", "content": "Who?"}], max_tokens=4)
        assert chat.choices[0].message.role == "assistant"
        assert len(client.embeddings.create(model="embedder", input="a request").data[0].embedding) == 16
        with pytest.raises(NotFoundError):
            client.completions.create(model="none", prompt="x")


def test_inference_over_grpc(grpc: grpcclient.InferenceServerClient) -> None:
    found = grpc.infer("simple", inputs(grpcclient), request_id="r1")
    assert (found.as_numpy("OUTPUT0") == 2 * ROW).all()
    assert found.get_response().id == "r1"


def test_the_rest_of_grpc(grpc: grpcclient.InferenceServerClient) -> None:
    assert grpc.is_server_live()
    assert grpc.is_server_ready()
    assert grpc.is_model_ready("simple")
    assert grpc.get_server_metadata().name == "triton"
    assert list(grpc.get_model_metadata("simple").versions) == ["1"]
    assert grpc.get_model_config("simple").config.max_batch_size == 8
    assert {each.name for each in grpc.get_model_repository_index().models} == MODELS
    assert grpc.get_inference_statistics("simple").model_stats[0].name == "simple"
    assert grpc.get_log_settings().settings["log_verbose_level"].uint32_param == 0


def test_errors_over_grpc_are_those_of_the_server(grpc: grpcclient.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as raised:
        grpc.infer("none", inputs(grpcclient))
    assert (raised.value.status(), raised.value.message()) == (
        "StatusCode.NOT_FOUND",
        "Request for unknown model: 'none' is not found",
    )


def test_a_stream_of_many_requests_and_of_many_responses(grpc: grpcclient.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(40):
        grpc.async_stream_infer("simple", inputs(grpcclient), request_id=str(number))
    found = [answers.get(timeout=20) for _ in range(40)]
    assert [result.get_response().id for result, error in found if error is None] == [str(number) for number in range(40)]
    count = grpcclient.InferInput("N", [1], "INT32")
    count.set_data_from_numpy(np.array([100], np.int32))
    grpc.async_stream_infer("repeat", [count])
    assert [answers.get(timeout=20)[0].as_numpy("OUT")[0] for _ in range(100)] == list(range(100))
    grpc.async_stream_infer("none", inputs(grpcclient))
    assert "unknown model: 'none'" in str(answers.get(timeout=20)[1])
    grpc.stop_stream()


def test_a_sequence_on_one_replica(http: httpclient.InferenceServerClient) -> None:
    x = httpclient.InferInput("X", [1, 1], "INT32")
    x.set_data_from_numpy(np.array([[5]], np.int32))
    sums = [
        int(http.infer("sum", [x], sequence_id=7, sequence_start=at == 0, sequence_end=at == 2).as_numpy("SUM")[0, 0])
        for at in range(3)
    ]
    assert sums == [5, 10, 15]
    with pytest.raises(InferenceServerException, match="must specify the START flag on the first request of the sequence"):
        http.infer("sum", [x], sequence_id=8)


def test_a_client_that_leaves_cancels_its_stream(grpc: grpcclient.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc.start_stream(lambda result, error: answers.put((result, error)))
    count = grpcclient.InferInput("N", [1], "INT32")
    count.set_data_from_numpy(np.array([1_000_000], np.int32))
    grpc.async_stream_infer("repeat", [count])
    answers.get(timeout=20)
    grpc.stop_stream(cancel_requests=True)
    again: queue.Queue[tuple[Any, Any]] = queue.Queue()
    grpc.start_stream(lambda result, error: again.put((result, error)))
    count.set_data_from_numpy(np.array([1], np.int32))
    grpc.async_stream_infer("repeat", [count])  # its only instance is free again
    assert again.get(timeout=30)[0].as_numpy("OUT")[0] == 0
    grpc.stop_stream()
