"""HTTP and gRPC answer alike: the same questions by Triton's two clients, which have the same words for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.conformance.repository import FAILING, PARAMETERS
from tpy.messages import DataType
from tpy.messages.datatypes import BY_WORD

from .repositories import ModelFolder
from .server import ServerProcess

HTTP_CODES = {
    "StatusCode.INVALID_ARGUMENT": "400",
    "StatusCode.NOT_FOUND": "404",
    "StatusCode.INTERNAL": "500",
    "StatusCode.UNIMPLEMENTED": "501",
    "StatusCode.UNAVAILABLE": "503",
}
"""The HTTP status of a gRPC status, for the errors that occur here."""

SHAPES = ((4,), (2, 3), (1, 1, 5), (3, 0))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("both") / "models"
    for kind in BY_WORD.values():
        for rank in (1, 2, 3):
            _identity(repository, f"{kind.value}_{rank}", kind, batch=0, dims=[-1] * rank)
    _identity(repository, "batched", DataType.FP32, batch=4, dims=[2])
    _identity(repository, "labelled", DataType.FP32, batch=4, dims=[3], labels=True)
    enforce = 'parameters { key: "TPY_REQUEST_TIMEOUT" value { string_value: "enforce" } }\n'
    _identity(repository, "enforcing", DataType.FP32, batch=4, dims=[2], more=enforce)
    for name, source, batch, dims, output in (("parameters", PARAMETERS, 0, 1, "SEEN"), ("failing", FAILING, 4, 4, "OUTPUT0")):
        kind = "STRING" if output == "SEEN" else "INT32"
        ModelFolder(repository, name).config(
            f'backend: "python"\nmax_batch_size: {batch}\ninput [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ {dims} ] }} ]\n'
            f'output [ {{ name: "{output}" data_type: TYPE_{kind} dims: [ {dims} ] }} ]\n'
            'parameters { key: "TPY_PYTHON_ISOLATION" value { string_value: "thread" } }\n'
        ).python(source)
    with ServerProcess(repositories=[repository]) as process:
        yield process


def _identity(
    repository: Any, name: str, kind: DataType, *, batch: int, dims: list[int], labels: bool = False, more: str = ""
) -> None:
    folder = ModelFolder(repository, name)
    (folder.path / "1").mkdir()
    tensor = f"data_type: {kind.config_name} dims: {dims}"
    extra = 'label_filename: "labels.txt"' if labels else ""
    folder.config(
        f'backend: "identity"\nmax_batch_size: {batch}\n'
        f'input [ {{ name: "INPUT0" {tensor} }} ]\noutput [ {{ name: "OUTPUT0" {tensor} {extra} }} ]\n{more}'
    )
    if labels:
        folder.file("labels.txt", "cat\ndog\nbird\n")


class Client:
    """One of the two stock clients."""

    def __init__(self, module: ModuleType, url: str) -> None:
        self._module = module
        self._client = module.InferenceServerClient(url)

    def close(self) -> None:
        self._client.close()

    def input(self, name: str, datatype: str, array: np.ndarray[Any, Any], shape: tuple[int, ...] | None = None) -> Any:
        tensor = self._module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        if shape is not None:
            tensor.set_shape(list(shape))
        return tensor

    def output(self, name: str, **options: Any) -> Any:
        return self._module.InferRequestedOutput(name, **options)

    def infer(self, model: str, *inputs: Any, **options: Any) -> Any:
        return self._client.infer(model, list(inputs), **options)

    def refusal(self, model: str, *inputs: Any, **options: Any) -> tuple[str, str]:
        """HTTP status and text of the refusal."""
        with pytest.raises(InferenceServerException) as caught:
            self.infer(model, *inputs, **options)
        status = str(caught.value.status())
        return HTTP_CODES.get(status, status), str(caught.value.message())


@pytest.fixture(params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    module, url = (tritonclient.http, server.http) if request.param == "http" else (tritonclient.grpc, server.grpc)
    asked = Client(module, url)
    yield asked
    asked.close()


def _values(kind: DataType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    count = int(np.prod(shape))
    if kind is DataType.BYTES:
        return np.array([f"ä{at}".encode() * at for at in range(count)], object).reshape(shape)
    return (np.arange(count) % 2 if kind is DataType.BOOL else np.arange(count)).astype(kind.numpy).reshape(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", BY_WORD.values(), ids=lambda kind: kind.value)
def test_every_datatype_and_shape(client: Client, kind: DataType, shape: tuple[int, ...]) -> None:
    array = _values(kind, shape)
    result = client.infer(f"{kind.value}_{len(shape)}", client.input("INPUT0", kind.value, array), request_id="7")
    answered = result.as_numpy("OUTPUT0")
    assert answered.shape == shape
    assert answered.tolist() == array.tolist()


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_batches(client: Client, rows: int) -> None:
    array = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    assert client.infer("batched", client.input("INPUT0", "FP32", array)).as_numpy("OUTPUT0").tolist() == array.tolist()


def test_classes(client: Client) -> None:
    array = np.array([[0.5, 3, 1], [2, 0, 0]], np.float32)
    top = client.output("OUTPUT0", class_count=2)
    answered = client.infer("labelled", client.input("INPUT0", "FP32", array), outputs=[top]).as_numpy("OUTPUT0")
    assert answered.tolist() == [[b"3.000000:1:dog", b"1.000000:2:bird"], [b"2.000000:0:cat", b"0.000000:1:dog"]]


def test_what_the_model_sees(client: Client) -> None:
    result = client.infer(
        "parameters",
        client.input("INPUT0", "INT32", np.zeros(1, np.int32)),
        request_id="me",
        sequence_id=9,
        sequence_start=True,
        timeout=5_000_000,
        parameters={"text": "t", "number": 3, "flag": True},
    )
    seen = json.loads(result.as_numpy("SEEN").item())
    assert seen == {
        "parameters": {"text": "t", "number": 3, "flag": True},
        "id": "me",
        "correlation": 9,
        "flags": 1,
        "timeout": 5_000_000,
        "outputs": ["SEEN"],
    }


class Refused(msgspec.Struct, frozen=True):
    """A request to a model, and what is wrong with it."""

    model: str
    shape: tuple[int, ...]
    status: str
    text: str
    datatype: str = "FP32"
    name: str = "INPUT0"
    options: dict[str, Any] = {}


PREFIX = "[request id: <id_unknown>] "
RAISE = "; raise max_batch_size in its config.pbtxt to allow more"
BATCH_NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


@pytest.mark.parametrize(
    "case",
    [
        Refused("nosuch", (1, 2), "404", "Request for unknown model: 'nosuch' is not found"),
        Refused(
            "batched",
            (1, 2),
            "404",
            "Request for unknown model: 'batched' version 7 is not found",
            options={"model_version": "7"},
        ),
        Refused("batched", (5, 2), "400", f"{PREFIX}inference request batch-size must be <= 4 for 'batched'{RAISE}"),
        Refused(
            "batched",
            (1, 3),
            "400",
            f"{PREFIX}unexpected shape for input 'INPUT0' for model 'batched'. Expected [-1,2], got [1,3].{BATCH_NOTE}",
        ),
        Refused(
            "batched",
            (1, 2),
            "400",
            f"{PREFIX}inference input 'INPUT0' data-type is 'INT32', but model 'batched' expects 'FP32'",
            datatype="INT32",
        ),
        Refused(
            "batched",
            (1, 2),
            "400",
            "unexpected inference input 'X' for model 'batched'; allowed inputs are: INPUT0 (FP32 [-1,2])",
            name="X",
        ),
    ],
    ids=lambda case: f"{case.model} {case.status} {case.text[:40]}",
)
def test_refusals(client: Client, case: Refused) -> None:
    array = np.zeros(case.shape, BY_WORD[case.datatype].numpy)
    assert client.refusal(case.model, client.input(case.name, case.datatype, array), **case.options) == (case.status, case.text)


def test_an_output_that_is_not_there(client: Client) -> None:
    given = client.input("INPUT0", "FP32", np.zeros((1, 2), np.float32))
    outputs = [client.output("NOSUCH")]
    assert client.refusal("batched", given, outputs=outputs) == (
        "400",
        "unexpected inference output 'NOSUCH' for model 'batched'; allowed outputs are: OUTPUT0 (FP32 [-1,2])",
    )


def test_bytes_that_are_not_the_shapes(client: Client) -> None:
    given = client.input("INPUT0", "FP32", np.zeros((1, 2), np.float32), shape=(2, 2))
    text = "[request id: r] input byte size mismatch for input 'INPUT0' for model 'batched'. Expected 16, got 8"
    assert client.refusal("batched", given, request_id="r") == ("400", text)


@pytest.mark.parametrize(
    ("act", "status", "text"),
    [
        (2, "400", "model says no"),
        (3, "500", "plain error"),
        (5, "404", "gone"),
        (6, "503", "busy"),
    ],
)
def test_failures_of_models(client: Client, act: int, status: str, text: str) -> None:
    given = client.input("INPUT0", "INT32", np.full((1, 4), act, np.int32))
    assert client.refusal("failing", given) == (status, text)


def test_a_request_that_times_out(client: Client) -> None:
    given = client.input("INPUT0", "FP32", np.zeros((1, 2), np.float32))
    assert client.refusal("enforcing", given, timeout=1) == ("503", "Request timeout expired")
    assert client.infer("batched", given, timeout=1).as_numpy("OUTPUT0").tolist() == [[0, 0]], "no queue of it has a timeout"


def test_descriptions(server: ServerProcess) -> None:
    with (
        tritonclient.http.InferenceServerClient(server.http) as http,
        tritonclient.grpc.InferenceServerClient(server.grpc) as grpc,
    ):
        for model in ("batched", "labelled", "BYTES_2", "parameters"):
            over_grpc = grpc.get_model_metadata(model, as_json=True)
            for tensor in (*over_grpc["inputs"], *over_grpc["outputs"]):
                tensor["shape"] = [int(size) for size in tensor["shape"]]
            assert over_grpc == http.get_model_metadata(model)
            config = grpc.get_model_config(model, as_json=True)["config"]
            whole = http.get_model_config(model)
            assert {key: value for key, value in config.items() if isinstance(value, str | bool)} == {
                key: whole[key] for key, value in config.items() if isinstance(value, str | bool)
            }
        index = [(entry["name"], entry["version"], entry["state"]) for entry in http.get_model_repository_index()]
        assert [(row.name, row.version, row.state) for row in grpc.get_model_repository_index().models] == index
        assert grpc.get_server_metadata(as_json=True) == http.get_server_metadata()
        statistics = http.get_inference_statistics("batched")["model_stats"][0]
        counted = grpc.get_inference_statistics("batched").model_stats[0]
        assert counted.inference_count == statistics["inference_count"]
        assert counted.inference_stats.success.ns == statistics["inference_stats"]["success"]["ns"]
