"""Everything that the stock client can ask, sync and aio, on small models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http.aio
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput, InferRequestedOutput, InferResult

from tests.backends import onnx_models
from tests.conformance.repository import IDENTITY, PARAMETERS

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess

SHM_DISABLED = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
ROWS = np.array([[1, -2, 3], [0.5, 0, 1e20]], np.float32)
ALL_TYPES = {
    "BOOL": np.array([[True, False]]),
    **{
        name: np.array([[np.iinfo(name.lower()).min, np.iinfo(name.lower()).max]], name.lower())
        for name in ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
    },
    "FP16": np.array([[1.5, -65504]], np.float16),
    "FP32": np.array([[0.1, -3e38]], np.float32),
    "FP64": np.array([[0.1, -1e300]], np.float64),
    "BYTES": np.array([["pläin".encode(), b"x" * 70_000]], np.object_),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("client") / "models"
    labelled = AFFINE_CONFIG.replace('"OUTPUT" data_type', '"OUTPUT" label_filename: "labels.txt" data_type')
    affine = ModelFolder(repository, "affine").config(labelled + "version_policy { all { } }\n")
    affine.affine(1, scale=2).affine(2, scale=10).file("labels.txt", "cat\ndog\nbird\n")
    ModelFolder(repository, "bf16").file("1/model.onnx", onnx_models.bf16_sum())
    ModelFolder(repository, "parameters").config(
        'backend: "python"\ninput [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
        'output [ { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
    ).python(PARAMETERS)
    ModelFolder(repository, "bare").file("1/model.onnx", onnx_models.matmul())
    for name in ALL_TYPES:
        config = "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"
        ModelFolder(repository, f"copy_{name}").config(
            f'backend: "python"\nmax_batch_size: 4\ninput [ {{ name: "INPUT" data_type: {config} dims: [ -1 ] }} ]\n'
            f'output [ {{ name: "OUTPUT" data_type: {config} dims: [ -1 ] }} ]\nparameters {{ key: "TPY_PYTHON_ISOLATION" '
            'value { string_value: "thread" } }\n'
        ).python(IDENTITY)
    with ServerProcess("--http-header-forward-pattern=x-for-.*", repositories=[repository]) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.http, concurrency=4) as client:
        yield client


def rows(array: np.ndarray = ROWS, *, binary: bool = True) -> list[InferInput]:
    tensor = InferInput("INPUT", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    return [tensor]


def output(answer: InferResult | None, name: str = "OUTPUT") -> np.ndarray:
    assert answer is not None
    array = answer.as_numpy(name)
    assert array is not None
    return array


# Inference


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("request_encoding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_encoding", [None, "gzip", "deflate"])
def test_every_way_to_send_and_receive(
    client: InferenceServerClient, binary_in: bool, binary_out: bool, request_encoding: str | None, response_encoding: str | None
) -> None:
    answer = client.infer(
        "affine",
        rows(binary=binary_in),
        outputs=[InferRequestedOutput("OUTPUT", binary_data=binary_out)],
        request_compression_algorithm=request_encoding,
        response_compression_algorithm=response_encoding,
    )
    np.testing.assert_array_equal(output(answer), ROWS * 10)


@pytest.mark.parametrize("datatype", ALL_TYPES)
@pytest.mark.parametrize("binary", [True, False])
def test_every_datatype_comes_back(client: InferenceServerClient, datatype: str, binary: bool) -> None:
    array = ALL_TYPES[datatype]
    tensor = InferInput("INPUT", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    wanted = [InferRequestedOutput("OUTPUT", binary_data=binary)]
    if datatype == "FP16" and not binary:
        with pytest.raises(InferenceServerException, match="receiving FP16 data via JSON is not supported"):
            client.infer(f"copy_{datatype}", [tensor], outputs=wanted)
        return
    answer = output(client.infer(f"copy_{datatype}", [tensor], outputs=wanted))
    if datatype == "BYTES" and not binary:
        answer = np.array([[text.encode() for text in row] for row in answer], np.object_)
    np.testing.assert_array_equal(answer, array)


def test_bf16_is_a_float_without_its_low_half(client: InferenceServerClient) -> None:
    """The model file says BF16; sent and answered as binary."""
    left, right = InferInput("A", [1, 2], "BF16"), InferInput("B", [1, 2], "FP32")
    left.set_data_from_numpy(np.array([[1.5, -2]], ml_dtypes.bfloat16))
    right.set_data_from_numpy(np.array([[0.25, 1]], np.float32))
    answer = client.infer("bf16", [left, right])
    np.testing.assert_array_equal(output(answer, "SUM"), [[1.75, -1]])
    np.testing.assert_array_equal(output(answer, "WIDE"), [[1.75, -1]])


def test_versions_and_ids(client: InferenceServerClient) -> None:
    first = client.infer("affine", rows(), model_version="1", request_id="my-id")
    np.testing.assert_array_equal(output(first), ROWS * 2)
    response: dict[str, Any] = first.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("my-id", "affine", "1")
    newest: dict[str, Any] = client.infer("affine", rows()).get_response()
    assert newest["model_version"] == "2"
    assert "id" not in newest
    with pytest.raises(InferenceServerException, match=r"^\[404\] Request for unknown model: 'affine' version 3 is not found$"):
        client.infer("affine", rows(), model_version="3")


def test_only_requested_outputs_come(client: InferenceServerClient) -> None:
    answer = client.infer("affine", rows(), outputs=[InferRequestedOutput("OUTPUT")])
    response: dict[str, Any] = answer.get_response()
    assert [entry["name"] for entry in response["outputs"]] == ["OUTPUT"]
    with pytest.raises(InferenceServerException, match="unexpected inference output 'NOPE' for model 'affine'"):
        client.infer("affine", rows(), outputs=[InferRequestedOutput("NOPE")])


def test_classification_has_labels(client: InferenceServerClient) -> None:
    answer = output(client.infer("affine", rows(), outputs=[InferRequestedOutput("OUTPUT", class_count=2)]))
    assert answer[0].tolist() == [b"30.000000:2:bird", b"10.000000:0:cat"]
    assert [text.split(b":")[2] for text in answer[1]] == [b"bird", b"cat"]


def test_parameters_headers_and_priority_reach_the_model(client: InferenceServerClient) -> None:
    tensor = InferInput("INPUT0", [1], "INT32")
    tensor.set_data_from_numpy(np.array([1], np.int32))
    answer = client.infer(
        "parameters",
        [tensor],
        request_id="r",
        sequence_id=7,
        sequence_start=True,
        priority=3,
        timeout=9_000_000,
        parameters={"text": "t", "number": 4, "truth": True, "ratio": 0.5},
        headers={"X-For-Model": "header", "X-Other": "not"},
        query_params={"q": 1, "again": ["a", "b"]},
    )
    seen = json.loads(output(answer, "SEEN")[0])
    assert seen["id"] == "r"
    assert (seen["correlation"], seen["flags"], seen["timeout"]) == (7, 1, 9_000_000)
    free = {key: seen["parameters"][key] for key in ("text", "number", "truth", "ratio")}
    assert free == {"text": "t", "number": 4, "truth": True, "ratio": 0.5}
    headers = {key.lower(): value for key, value in seen["parameters"].items() if key.lower().startswith("x-")}
    assert headers == {"x-for-model": "header"}
    assert seen["outputs"] == ["SEEN"]


def test_async_infer_of_the_sync_client(client: InferenceServerClient) -> None:
    pending = [client.async_infer("affine", rows(ROWS[:1] + number), request_id=str(number)) for number in range(20)]
    for number, request in enumerate(pending):
        answer = request.get_result()
        np.testing.assert_array_equal(output(answer), (ROWS[:1] + number) * 10)
        response: dict[str, Any] = answer.get_response()
        assert response["id"] == str(number)


def test_bodies_made_and_read_apart_from_the_client(client: InferenceServerClient) -> None:
    body, header_length = InferenceServerClient.generate_request_body(rows())
    assert header_length is not None
    response = client._post(
        "v2/models/affine/infer", body, {"Inference-Header-Content-Length": header_length}, None
    )  # the client offers no public way to post a body that it has made
    length = response.get("inference-header-content-length")
    answer = InferenceServerClient.parse_response_body(response.read(), header_length=None if length is None else int(length))
    np.testing.assert_array_equal(output(answer), ROWS * 10)


def test_a_model_without_configuration(client: InferenceServerClient) -> None:
    answer = client.infer("bare", rows(np.array([[1, 0, 0], [0, 1, 1]], np.float32)))
    np.testing.assert_array_equal(output(answer), [[1, 2], [8, 10]])
    config = client.get_model_config("bare")
    assert (config["max_batch_size"], config["platform"]) == (4, "onnxruntime_onnx")


# Everything else


def test_health(client: InferenceServerClient) -> None:
    assert client.is_server_live(headers={"X-Any": "1"}, query_params={"a": "b"})
    assert client.is_server_ready()
    assert client.is_model_ready("affine")
    assert client.is_model_ready("affine", "1")
    assert not client.is_model_ready("affine", "9")
    assert not client.is_model_ready("nosuch")


def test_descriptions(client: InferenceServerClient) -> None:
    server = client.get_server_metadata()
    assert server["name"] == "triton"
    assert {"classification", "model_repository", "statistics", "binary_tensor_data", "logging"} <= set(server["extensions"])
    assert client.get_model_metadata("affine") == {
        "name": "affine",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "OUTPUT", "datatype": "FP32", "shape": [-1, 3]}],
    }
    assert client.get_model_metadata("affine", "1")["versions"] == ["1"]
    config = client.get_model_config("affine")
    assert (config["max_batch_size"], config["output"][0]["label_filename"]) == (8, "labels.txt")
    assert config["version_policy"] == {"all": {}}


def test_index_and_refused_control(client: InferenceServerClient) -> None:
    index = client.get_model_repository_index()
    assert {"name": "affine", "version": "2", "state": "READY"} in index
    text = r"^\[503\] explicit model load / unload is not allowed if polling is enabled$"
    with pytest.raises(InferenceServerException, match=text):
        client.load_model("affine")
    with pytest.raises(InferenceServerException, match=text):
        client.unload_model("affine")


def test_statistics_count_what_was_asked(client: InferenceServerClient) -> None:
    before = _statistics(client)
    client.infer("affine", rows(), model_version="1")
    client.infer("affine", rows(ROWS[:1]), model_version="1")
    after = _statistics(client)
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 2
    stats = after["inference_stats"]
    assert stats["success"]["count"] == stats["queue"]["count"] == stats["compute_infer"]["count"]
    assert stats["success"]["count"] - before["inference_stats"]["success"]["count"] == 2
    parts = sum(stats[name]["ns"] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert stats["success"]["ns"] >= parts
    assert after["last_inference"] > 1_700_000_000_000
    assert {entry["name"] for entry in client.get_inference_statistics()["model_stats"]} >= {"affine", "bare", "parameters"}
    with pytest.raises(InferenceServerException, match="requested model 'nosuch' is not available"):
        client.get_inference_statistics("nosuch")


def test_log_settings(client: InferenceServerClient, server: ServerProcess) -> None:
    before = client.get_log_settings()
    assert before == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    try:
        changed = client.update_log_settings({"log_verbose_level": 1, "log_info": False, "log_format": "ISO8601"})
        assert changed == {**before, "log_verbose_level": 1, "log_info": False, "log_format": "ISO8601"}
        assert client.get_log_settings() == changed
    finally:
        client.update_log_settings({"log_verbose_level": 0, "log_info": True, "log_format": "default"})
    with pytest.raises(InferenceServerException, match="log file location can not be updated through network protocol"):
        client.update_log_settings({"log_file": "x"})


def test_trace_settings_are_shown(client: InferenceServerClient) -> None:
    assert client.get_trace_settings()["trace_level"] == ["OFF"]
    assert client.get_trace_settings("affine")["trace_rate"] == "1000"
    assert client.update_trace_settings("affine", {"trace_level": ["OFF"]})["trace_level"] == ["OFF"]
    with pytest.raises(InferenceServerException, match=r"^\[400\] Attempting to set invalid .*:trace file name is not given"):
        client.update_trace_settings("affine", {"trace_level": ["TIMESTAMPS"]})


def test_shared_memory_is_off(client: InferenceServerClient) -> None:
    assert client.get_system_shared_memory_status() == client.get_cuda_shared_memory_status() == []
    calls = [
        lambda: client.register_system_shared_memory("r", "/key", 64),
        lambda: client.register_cuda_shared_memory("r", b"handle", 0, 64),
        lambda: client.unregister_system_shared_memory("r"),
        lambda: client.unregister_cuda_shared_memory(),
    ]
    for call in calls:
        with pytest.raises(InferenceServerException) as caught:
            call()
        assert (caught.value.status(), caught.value.message()) == ("501", SHM_DISABLED)
    tensor = InferInput("INPUT", [1, 3], "FP32")
    tensor.set_shared_memory("r", 12)
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'r'"):
        client.infer("affine", [tensor])


def test_the_aio_client_does_all_that_too(server: ServerProcess) -> None:
    async def ask() -> None:
        async with tritonclient.http.aio.InferenceServerClient(server.http, conn_limit=8) as client:
            assert await client.is_server_ready()
            assert not await client.is_model_ready("nosuch")
            assert (await client.get_server_metadata())["name"] == "triton"
            assert (await client.get_model_metadata("affine"))["versions"] == ["1", "2"]
            assert (await client.get_model_config("affine"))["max_batch_size"] == 8
            assert len(await client.get_model_repository_index()) > 3
            assert (await client.get_inference_statistics("affine", "1"))["model_stats"][0]["version"] == "1"
            assert (await client.get_log_settings())["log_info"] is True
            assert await client.get_system_shared_memory_status() == []
            with pytest.raises(InferenceServerException, match="Client shared memory is disabled"):
                await client.register_system_shared_memory("r", "/r", 4)
            answers = await asyncio.gather(
                *(
                    client.infer(
                        "affine",
                        rows(ROWS + number),
                        request_id=str(number),
                        request_compression_algorithm=("gzip", "deflate", None)[number % 3],
                        response_compression_algorithm=(None, "gzip", "deflate")[number % 3],
                    )
                    for number in range(30)
                )
            )
            for number, answer in enumerate(answers):
                np.testing.assert_array_equal(output(answer), (ROWS + number) * 10)
            with pytest.raises(InferenceServerException, match="Request for unknown model: 'nosuch' is not found"):
                await client.infer("nosuch", rows())

    asyncio.run(ask())


def _statistics(client: InferenceServerClient) -> dict[str, Any]:
    entry: dict[str, Any] = client.get_inference_statistics("affine", "1")["model_stats"][0]
    return entry
