"""Inputs of every make, end to end: ragged, optional, reshaped to scalars, of variable size, and models that do not batch."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferResult
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.backends import onnx_models
from tpy.messages import DataType

from .repositories import ModelFolder
from .server import ServerProcess

SUMS = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [
  { name: "DOUBLED" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "SUMS" data_type: TYPE_FP32 dims: [ 1 ] }
]
batch_input [ {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "OFFSETS" data_type: TYPE_INT32 source_input: "X"
} ]
batch_output [ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "DOUBLED" source_input: "X" } ]
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
model_warmup [ {
  name: "warm" batch_size: 3 inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 5 ] random_data: true } }
} ]
metric_tags { key: "team" value: "ragged" }
"""

LISTS = """
backend: "python"
max_batch_size: 8
input [
  { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] allow_ragged_batch: true },
  { name: "MORE" data_type: TYPE_INT32 dims: [ 2 ] optional: true }
]
output [ { name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] } ]
batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "COUNTS" data_type: TYPE_INT32 source_input: "TEXT" } ]
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

LISTS_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        seen = " ".join(
            "+".join(f"{t.name()}{list(t.as_numpy().shape)}" for t in request.inputs()) for request in requests
        )
        answer = pb_utils.Tensor("SEEN", np.array([[seen.encode()]], dtype=object))
        return [pb_utils.InferenceResponse([answer]) for _ in requests]
"""

SCALARS = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } } ]
dynamic_batching { }
"""

FOLDED = """
backend: "onnxruntime"
max_batch_size: 0
input [ { name: "INPUT" data_type: TYPE_INT64 dims: [ 2, -1, 4 ] reshape { shape: [ 2, -1, 2, 2 ] } } ]
output [ { name: "OUTPUT" data_type: TYPE_INT64 dims: [ 2, -1, 4 ] reshape { shape: [ 2, -1, 2, 2 ] } } ]
"""

BIASED = """
backend: "onnxruntime"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 2 ] }, { name: "BIAS" data_type: TYPE_FP32 dims: [ 2 ] optional: true } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
model_warmup [ {
  name: "without" batch_size: 1 inputs { key: "INPUT" value { data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }
} ]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("tensors") / "models"
    repository.mkdir()
    ModelFolder(repository, "sums").config(SUMS).file("1/model.onnx", onnx_models.ragged_sums())
    ModelFolder(repository, "lists").config(LISTS).python(LISTS_MODEL)
    ModelFolder(repository, "scalars").config(SCALARS).file("1/model.onnx", onnx_models.identity(shape=("N",)))
    ModelFolder(repository, "folded").config(FOLDED).file("1/model.onnx", onnx_models.identity(DataType.INT64, (2, "A", 2, 2)))
    ModelFolder(repository, "biased").config(BIASED).file("1/model.onnx", onnx_models.overridable())
    with ServerProcess(repositories=[repository]) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.http, concurrency=8) as client:
        yield client


def inputs_of(tensors: Mapping[str, np.ndarray[Any, Any]]) -> list[InferInput]:
    inputs = []
    for name, array in tensors.items():
        given = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        given.set_data_from_numpy(array)
        inputs.append(given)
    return inputs


def outputs_of(result: InferResult) -> dict[str, np.ndarray[Any, Any]]:
    return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def ask(client: InferenceServerClient, model: str, **tensors: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return outputs_of(client.infer(model, inputs_of(tensors)))


def ask_together(
    client: InferenceServerClient, model: str, requests: list[dict[str, np.ndarray[Any, Any]]]
) -> list[dict[str, np.ndarray[Any, Any]]]:
    """The answers of requests that are in the queue at the same time."""
    pending = [client.async_infer(model, inputs_of(tensors)) for tensors in requests]
    return [outputs_of(each.get_result()) for each in pending]


def executions(client: InferenceServerClient, model: str) -> int:
    return int(client.get_inference_statistics(model)["model_stats"][0]["execution_count"])


def numbers(rows: int, size: int) -> np.ndarray[Any, Any]:
    return np.arange(rows * size, dtype=np.float32).reshape(rows, size)


@contextmanager
def held_back(folder: Path, config: str, model: bytes, *, count: int) -> Iterator[InferenceServerClient]:
    """A server of one ONNX or Python model, `m`, whose first batch is made when `count` requests wait."""
    made = ModelFolder(folder, "m").config(config)
    made.python(model.decode()) if b"pb_utils" in model else made.file("1/model.onnx", model)
    delay = {"TRITONSERVER_DELAY_SCHEDULER": str(count)}
    with (
        ServerProcess(repositories=[folder], environment=delay) as server,
        InferenceServerClient(server.http, concurrency=8) as client,
    ):
        yield client
    assert f"Delaying every scheduler until {count} queued requests" in server.log


def test_requests_of_different_lengths_share_an_execution(repository: Path) -> None:
    with held_back(repository, SUMS, onnx_models.ragged_sums(), count=4) as client:
        answers = ask_together(client, "m", [{"X": numbers(1, size)} for size in (3, 0, 5, 1)])
        assert executions(client, "m") == 1
    for answer, size in zip(answers, (3, 0, 5, 1), strict=True):
        np.testing.assert_array_equal(answer["DOUBLED"], numbers(1, size) * 2)
        assert answer["SUMS"].tolist() == [[sum(range(size))]]


def test_a_lone_ragged_request(client: InferenceServerClient) -> None:
    assert ask(client, "sums", X=numbers(1, 4))["SUMS"].tolist() == [[6]]


def test_settings_without_effect_are_warnings_and_metric_tags_are_shown(server: ServerProcess) -> None:
    server.wait_log("model 'lists' sets fields that have no effect here: batch_input")
    assert "model 'sums' sets fields" not in server.log
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
        assert re.search(
            r'^nv_inference_request_success\{_team="ragged",model="sums",version="1"\} \d', page.read().decode(), re.MULTILINE
        )


def test_the_metadata_of_a_ragged_model_are_its_configured_inputs(client: InferenceServerClient) -> None:
    assert client.get_model_metadata("sums")["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, -1]}]


def test_a_request_with_a_batch_input_is_refused(client: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="expected 1 inputs but got 2 inputs for model 'sums'"):
        ask(client, "sums", X=numbers(1, 2), OFFSETS=np.zeros((1, 2), np.int32))


def test_a_python_model_gets_a_list_of_what_came(repository: Path) -> None:
    """And no tensor of batch_input, as from Triton. Those with the optional input run apart."""

    def texts(count: int) -> np.ndarray[Any, Any]:
        return np.array([[b"x"] * count], dtype=object).reshape(1, count)

    with held_back(repository, LISTS, LISTS_MODEL.encode(), count=2) as client:
        answers = ask_together(client, "m", [{"TEXT": texts(2)}, {"TEXT": texts(3)}])
        assert answers[0]["SEEN"].tolist() in ([[b"TEXT[1, 2] TEXT[1, 3]"]], [[b"TEXT[1, 3] TEXT[1, 2]"]])
    more = np.zeros((1, 2), np.int32)
    with held_back(repository, LISTS, LISTS_MODEL.encode(), count=2) as client:
        one, other = ask_together(client, "m", [{"TEXT": texts(2), "MORE": more}, {"TEXT": texts(1)}])
    assert one["SEEN"].tolist() == [[b"TEXT[1, 2]+MORE[1, 2]"]]
    assert other["SEEN"].tolist() == [[b"TEXT[1, 1]"]]


def test_a_scalar_by_an_empty_reshape(client: InferenceServerClient) -> None:
    given = np.array([[1.5], [2.5]], np.float32)
    np.testing.assert_array_equal(ask(client, "scalars", INPUT=given)["OUTPUT"], given)


def test_variable_sizes_go_over_a_reshape(client: InferenceServerClient) -> None:
    given = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    answer = ask(client, "folded", INPUT=given)["OUTPUT"]
    np.testing.assert_array_equal(answer, given)
    with pytest.raises(InferenceServerException, match=r"unexpected shape for input 'INPUT' .* Expected \[2,-1,4\], got \[3,5\]"):
        ask(client, "folded", INPUT=np.zeros((3, 5), np.int64))


def test_an_optional_input_that_is_left_out_keeps_its_initializer(client: InferenceServerClient) -> None:
    given = np.array([1, 2], np.float32)
    assert ask(client, "biased", INPUT=given)["OUTPUT"].tolist() == [11, 22]
    assert ask(client, "biased", INPUT=given, BIAS=np.array([5, 6], np.float32))["OUTPUT"].tolist() == [6, 8]
