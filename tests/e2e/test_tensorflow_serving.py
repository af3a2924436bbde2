"""TensorFlow Serving's ports, without TensorFlow: ONNX models by their tensors' names, REST by plain HTTP, and gRPC by our own
messages. TensorFlow Serving's client is in test_tensorflow_serving_clients.py."""

from __future__ import annotations

import gzip
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import grpc
import numpy as np
import pytest
from onnx import helper

from tests.backends.onnx_models import model, value
from tpy._proto import messages
from tpy.messages import DataType, Tensor
from tpy_platforms.tensorflow_serving.protos import POOL, pb, tf
from tpy_platforms.tensorflow_serving.tensors import read_tensor, write_tensor

from .repositories import ModelFolder, parameter
from .server import ServerProcess
from .waiting import wait_until

REST, GRPC = "TensorFlow Serving HTTPService", "TensorFlow Serving GRPCService"
ROWS = np.array([[1, 2, 5], [0.25, 0, 3]], np.float32)


def plus(offset: float) -> bytes:
    """x / 2 + offset."""
    numbers = [helper.make_tensor(name, 1, [], [number]) for name, number in (("half", 0.5), ("offset", offset))]
    nodes = [helper.make_node("Mul", ["x", "half"], ["h"]), helper.make_node("Add", ["h", "offset"], ["y"])]
    return model(nodes, [value("x", DataType.FP32, ["N", 3])], [value("y", DataType.FP32, ["N", 3])], numbers)


def sums() -> bytes:
    """Numbers of each row: a + b, a - b."""
    nodes = [helper.make_node(kind, ["a", "b"], [name]) for kind, name in (("Add", "sum"), ("Sub", "difference"))]
    numbers = [value(name, DataType.INT64, ["N"]) for name in ("a", "b", "sum", "difference")]
    return model(nodes, numbers[:2], numbers[2:])


def looked_up(name: str, **default: Any) -> list[Any]:
    """Nodes that give each example the default, as [N,1] under the name."""
    kind = "float" if "default_float" in default else "string"
    values = {"values_floats": [9.0]} if kind == "float" else {"values_strings": ["none"]}
    look = helper.make_node(
        "LabelEncoder", ["inputs"], [f"{name}0"], domain="ai.onnx.ml", keys_strings=["none"], **values, **default
    )
    return [look, helper.make_node("Unsqueeze", [f"{name}0", "last"], [name])]


def classifier() -> bytes:
    last = helper.make_tensor("last", 7, [1], [1])
    nodes = [node for name, default in (("A", "cat"), ("B", "dog")) for node in looked_up(name, default_string=default)]
    nodes += [node for name, default in (("C", 0.75), ("D", 0.25)) for node in looked_up(name, default_float=default)]
    nodes += [
        helper.make_node("Concat", ["A", "B"], ["classes"], axis=1),
        helper.make_node("Concat", ["C", "D"], ["scores"], axis=1),
    ]
    outputs = [value("classes", DataType.BYTES, ["N", 2]), value("scores", DataType.FP32, ["N", 2])]
    return model(nodes, [value("inputs", DataType.BYTES, ["N"])], outputs, [last])


def regressor() -> bytes:
    [look, _] = looked_up("outputs", default_float=2.5)
    look.output[0] = "outputs"
    return model([look], [value("inputs", DataType.BYTES, ["N"])], [value("outputs", DataType.FP32, ["N"])])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serving")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServerProcess]:
    labels = parameter("aliases", json.dumps({"stable": 1}).replace('"', '\\"'))
    folder = ModelFolder(home, "plus").config(f"max_batch_size: 8\nversion_policy {{ all {{}} }}\n{labels}")
    for version, offset in ((1, 2), (2, 10)):
        folder.file(f"{version}/model.onnx", plus(offset))
    ModelFolder(home, "sums").file("1/model.onnx", sums())
    ModelFolder(home, "classifier").config(parameter("TF_SIGNATURE_DEF", "classify")).file("1/model.onnx", classifier())
    ModelFolder(home, "regressor").file("1/model.onnx", regressor())
    ModelFolder(home, "idle").file("1/model.onnx", sums())
    ModelFolder(home, "broken").file("1/model.onnx", "")
    loads = [f"--load-model={name}" for name in ("plus", "sums", "classifier", "regressor")]
    flags = ("--model-control-mode=explicit", f"--audit-log={home / 'audit.log'}", "--allow-tensorflow-serving=true", *loads)
    with ServerProcess(*flags, repositories=[home]) as running:
        yield running


def ask(server: ServerProcess, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.address(REST)}/v1/models/{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
            if answer.headers["Content-Encoding"] == "gzip":
                content = gzip.decompress(content)
            return answer.status, json.loads(content)
    except HTTPError as error:
        return error.code, json.loads(error.read())


Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call(server: ServerProcess) -> Iterator[Call]:
    """Returns what calls a method with a message."""
    kinds = {"Predict": pb.PredictResponse, "Classify": pb.ClassificationResponse, "Regress": pb.RegressionResponse}
    with grpc.insecure_channel(server.address(GRPC) or "") as channel:

        def one(method: str, message: Any) -> Any:
            service = "ModelService" if method in ("GetModelStatus", "HandleReloadConfigRequest") else "PredictionService"
            described = POOL.FindServiceByName(f"tensorflow.serving.{service}").methods_by_name[method]
            kind = kinds.get(method) or getattr(pb, described.output_type.name)
            unary = channel.unary_unary(
                f"/tensorflow.serving.{service}/{method}",
                request_serializer=type(message).SerializeToString,
                response_deserializer=kind.FromString,
            )
            return unary(message, timeout=30)

        yield one


def predict(spec: dict[str, Any], *wanted: str, **inputs: Any) -> Any:
    request = pb.PredictRequest(model_spec=spec, output_filter=wanted)
    for name, array in inputs.items():
        if isinstance(array, np.ndarray):
            datatype = {"f": DataType.FP32, "i": DataType.INT64}[array.dtype.kind]
            array = tf.TensorProto.FromString(b"".join(write_tensor(Tensor(name, datatype, array))))
        request.inputs[name].CopyFrom(array)
    return request


def array_of(tensor: Any) -> Any:
    return read_tensor(memoryview(tensor.SerializeToString()), "")[1].tolist()


def refused(call: Call, method: str, message: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as told:
        call(method, message)
    return told.value.code().name, told.value.details()


def example(**features: str) -> Any:
    return tf.Example(features={"feature": {name: {"bytes_list": {"value": [text.encode()]}} for name, text in features.items()}})


def test_rest_predicts_rows_and_columns(server: ServerProcess) -> None:
    rows = ROWS.tolist()
    newest = [[10.5, 11, 12.5], [10.125, 10, 11.5]]
    assert ask(server, "plus:predict", {"instances": rows}) == (200, {"predictions": newest})
    assert ask(server, "plus:predict", {"signature_name": "serving_default", "inputs": {"x": rows}}) == (200, {"outputs": newest})
    for path in ("plus/versions/1:predict", "plus/labels/stable:predict"):
        assert ask(server, path, {"instances": rows[:1]}) == (200, {"predictions": [[2.5, 3, 4.5]]})
    pairs = {"instances": [{"a": 3, "b": 1}, {"a": 1, "b": 1}]}
    assert ask(server, "sums:predict", pairs) == (
        200,
        {"predictions": [{"sum": 4, "difference": 2}, {"sum": 2, "difference": 0}]},
    )


def test_rest_reads_large_bodies_in_pieces(server: ServerProcess) -> None:
    numbers = np.random.default_rng(1).integers(0, 1000, (30_000, 3)).tolist()
    status, found = ask(server, "plus:predict", {"instances": numbers})
    assert (status, "batch-size must be <= 8" in found["error"]) == (400, True), found
    numbers[-1] = numbers[-1][:2]
    status, found = ask(server, "plus:predict", {"instances": numbers})
    assert (status, "Encountered list at unexpected size at level: 1" in found["error"]) == (400, True), found


def test_rest_reads_and_writes_compressed_bodies(server: ServerProcess) -> None:
    packed = gzip.compress(json.dumps({"instances": ROWS.tolist()}).encode())
    found = ask(server, "plus:predict", packed, **{"Content-Encoding": "gzip", "Accept-Encoding": "gzip"})
    assert found[0] == 200, found
    assert found[1]["predictions"][0] == [10.5, 11, 12.5]


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("none:predict", {"instances": [1]}, 404, "Servable not found for request: Latest(none)"),
        ("idle:predict", {"instances": [1]}, 404, "Servable not found for request: Latest(idle)"),
        ("plus/versions/7:predict", {"instances": [1]}, 404, "Servable not found for request: Specific(plus, 7)"),
        ("plus/labels/no:predict", {"instances": [1]}, 400, "Unrecognized servable version label: no"),
        ("plus:predict", {"signature_name": "other", "instances": [1]}, 400, 'Serving signature key "other" not found'),
        ("plus:predict", {"signature_name": 1, "instances": [1]}, 400, "'signature_name' key must be a string value"),
        ("plus:predict", b"[", 400, "failed to parse the request JSON buffer"),
        ("plus:predict", [1], 400, "Request body is expected to be an object"),
        ("plus:predict", {"instances": [[1, 2]]}, 400, "unexpected shape for input 'x'"),
        ("sums:predict", {"inputs": {"a": [1]}}, 400, "missing required input(s) ['b']"),
        ("sums:classify", {"examples": [{"a": 1}]}, 400, "Expected classification signature"),
        ("plus:explain", {"instances": [1]}, 404, "Malformed request"),
    ],
)
def test_rest_says_what_is_wrong(server: ServerProcess, path: str, body: object, status: int, told: str) -> None:
    found = ask(server, path, body)
    assert (found[0], set(found[1])) == (status, {"error"})
    assert told in found[1]["error"]


def test_rest_tells_states_and_signatures(server: ServerProcess) -> None:
    ready = {"state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    assert ask(server, "plus") == (200, {"model_version_status": [{"version": "2", **ready}, {"version": "1", **ready}]})
    for path in ("plus/versions/1", "plus/labels/stable"):
        assert ask(server, path) == (200, {"model_version_status": [{"version": "1", **ready}]})
    assert ask(server, "none") == (404, {"error": "Could not find any versions of model none"})
    assert ask(server, "plus/versions/9") == (404, {"error": "Could not find version 9 of model plus"})
    status, found = ask(server, "classifier/metadata")
    assert (status, found["model_spec"]) == (200, {"name": "classifier", "signature_name": "", "version": "1"})
    [(name, signature)] = found["metadata"]["signature_def"]["signature_def"].items()
    assert (name, signature["method_name"]) == ("classify", "tensorflow/serving/classify")
    assert signature["inputs"]["inputs"]["dtype"] == "DT_STRING"
    assert [dim["size"] for dim in signature["inputs"]["inputs"]["tensor_shape"]["dim"]] == ["-1"]
    assert [dim["size"] for dim in signature["outputs"]["scores"]["tensor_shape"]["dim"]] == ["-1", "2"]


def test_rest_classifies_and_regresses(server: ServerProcess) -> None:
    examples = {"examples": [{"word": "a"}, {"word": "b"}], "context": {"place": "c"}}
    assert ask(server, "classifier:classify", examples) == (200, {"results": [[["cat", 0.75], ["dog", 0.25]]] * 2})
    assert ask(server, "regressor:regress", examples) == (200, {"results": [2.5, 2.5]})
    assert ask(server, "regressor:regress", {"examples": []}) == (400, {"error": "Input is empty."})


def test_grpc_predicts(call: Call) -> None:
    answer = call("Predict", predict({"name": "plus"}, x=ROWS))
    assert array_of(answer.outputs["y"]) == [[10.5, 11, 12.5], [10.125, 10, 11.5]]
    assert list(answer.outputs["y"].float_val)[:3] == [10.5, 11, 12.5], "where clients look"
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("plus", 2, "serving_default")
    for choice in ({"version": {"value": 1}}, {"version_label": "stable"}):
        answer = call(
            "Predict",
            predict(
                {"name": "plus", **choice},
                x=tf.TensorProto(dtype="DT_FLOAT", tensor_shape={"dim": [{"size": 1}, {"size": 3}]}, float_val=[2]),
            ),
        )
        assert array_of(answer.outputs["y"]) == [[3, 3, 3]]
        assert answer.model_spec.version.value == 1
    answer = call("Predict", predict({"name": "sums"}, "difference", a=np.array([5, 6]), b=np.array([1, 2])))
    assert {name: array_of(each) for name, each in answer.outputs.items()} == {"difference": [4, 4]}


def test_balancers_are_told_the_load_and_deadlines_hold(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address(GRPC) or "") as channel:
        method = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict", request_serializer=pb.PredictRequest.SerializeToString
        )
        request = predict({"name": "plus"}, x=ROWS)
        _, call = method.with_call(request, metadata=(("endpoint-load-metrics-format", "text"),), timeout=30)
        assert [key for key, _ in call.trailing_metadata()] == ["endpoint-load-metrics"]

        def is_late() -> bool:  # asked again where the client was held up for longer than the server took
            status = method.future(request, timeout=1e-6).code()
            assert status in {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
            return status is grpc.StatusCode.DEADLINE_EXCEEDED

        wait_until(is_late)


def test_large_tensors_are_read_and_written_in_threads(call: Call) -> None:
    long = tf.TensorProto(dtype="DT_FLOAT", tensor_shape={"dim": [{"size": 2**20}, {"size": 4}]}, float_val=[1])
    status, text = refused(call, "Predict", predict({"name": "plus"}, x=long))
    assert (status, "batch-size" in text or "shape" in text) == ("INVALID_ARGUMENT", True), text
    many = np.arange(30_000, dtype=np.int64)
    status, text = refused(call, "Predict", predict({"name": "sums"}, a=many, b=many))
    assert status == "INVALID_ARGUMENT", "the model takes fewer rows"


def test_grpc_says_what_is_wrong(call: Call) -> None:
    spec = {"name": "plus"}
    for message, status, told in (
        (predict({"name": "none"}, x=ROWS), "NOT_FOUND", "Servable not found for request: Latest(none)"),
        (predict({**spec, "version": {"value": 7}}, x=ROWS), "NOT_FOUND", "Servable not found for request: Specific(plus, 7)"),
        (predict({**spec, "version_label": "no"}, x=ROWS), "INVALID_ARGUMENT", "Unrecognized servable version label: no"),
        (predict({**spec, "signature_name": "no"}, x=ROWS), "FAILED_PRECONDITION", 'Serving signature key "no" not found'),
        (predict({**spec, "version": {"value": -1}}, x=ROWS), "INVALID_ARGUMENT", "expected at least 0, got -1"),
        (predict(spec, z=ROWS), "INVALID_ARGUMENT", "input tensor alias not found in signature: z. "),
        (predict(spec, "z", x=ROWS), "INVALID_ARGUMENT", "output tensor alias not found in signature: z "),
        (predict(spec, x=ROWS.astype(np.int64)), "INVALID_ARGUMENT", "data-type is 'INT64'"),
        (predict({}, x=ROWS), "INVALID_ARGUMENT", "Missing ModelSpec"),
    ):
        found = refused(call, "Predict", message)
        assert (found[0], told in found[1]) == (status, True), found


def test_grpc_classifies_and_regresses(call: Call) -> None:
    examples = {"example_list": {"examples": [example(word="a"), example(word="b")]}}
    found = call("Classify", pb.ClassificationRequest(model_spec={"name": "classifier"}, input=examples))
    assert [[(each.label, each.score) for each in row.classes] for row in found.result.classifications] == [
        [("cat", 0.75), ("dog", 0.25)]
    ] * 2
    assert (found.model_spec.version.value, found.model_spec.signature_name) == (1, "classify")
    found = call("Regress", pb.RegressionRequest(model_spec={"name": "regressor"}, input=examples))
    assert [each.value for each in found.result.regressions] == [2.5, 2.5]
    tasks = [
        {"model_spec": {"name": "classifier", "signature_name": "classify"}, "method_name": "tensorflow/serving/classify"},
        {"model_spec": {"name": "regressor"}, "method_name": "tensorflow/serving/regress"},
    ]
    found = call("MultiInference", pb.MultiInferenceRequest(tasks=tasks, input=examples))
    assert [each.WhichOneof("result") for each in found.results] == ["classification_result", "regression_result"]
    assert [each.model_spec.name for each in found.results] == ["classifier", "regressor"]
    for message, status, told in (
        (pb.MultiInferenceRequest(input=examples), "INVALID_ARGUMENT", "it has no tasks"),
        (pb.MultiInferenceRequest(tasks=[{**tasks[0], "method_name": "x"}], input=examples), "INVALID_ARGUMENT", "Unsupported"),
        (pb.MultiInferenceRequest(tasks=tasks * 33, input=examples), "INVALID_ARGUMENT", "more than 64 tasks"),
    ):
        found = refused(call, "MultiInference", message)
        assert (found[0], told in found[1]) == (status, True), found
    message = pb.RegressionRequest(model_spec={"name": "sums"}, input=examples)
    assert refused(call, "Regress", message)[0] == "FAILED_PRECONDITION"


def test_grpc_tells_states_and_signatures(call: Call, server: ServerProcess) -> None:
    found = call("GetModelStatus", pb.GetModelStatusRequest(model_spec={"name": "plus"}))
    assert [(each.version, each.state) for each in found.model_version_status] == [(2, 30), (1, 30)]
    none = pb.GetModelStatusRequest(model_spec={"name": "none"})
    assert refused(call, "GetModelStatus", none) == ("NOT_FOUND", "Could not find any versions of model none")
    request = pb.GetModelMetadataRequest(model_spec={"name": "sums"}, metadata_field=["signature_def"])
    found = call("GetModelMetadata", request)
    assert (found.model_spec.name, found.model_spec.version.value) == ("sums", 1)
    described = pb.SignatureDefMap()
    assert found.metadata["signature_def"].Unpack(described)
    signature = described.signature_def["serving_default"]
    assert signature.method_name == "tensorflow/serving/predict"
    assert {name: (info.dtype, [dim.size for dim in info.tensor_shape.dim]) for name, info in signature.inputs.items()} == {
        "a": (9, [-1]),
        "b": (9, [-1]),
    }
    for fields in ((), ("other",)):
        wrong = pb.GetModelMetadataRequest(model_spec={"name": "sums"}, metadata_field=fields)
        assert refused(call, "GetModelMetadata", wrong)[0] == "INVALID_ARGUMENT"
    health = messages("health.proto")
    with grpc.insecure_channel(server.address(GRPC) or "") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health.HealthCheckRequest.SerializeToString,
            response_deserializer=health.HealthCheckResponse.FromString,
        )
        assert check(health.HealthCheckRequest(), timeout=30).status == health.HealthCheckResponse.SERVING


def configuration(*models: dict[str, Any]) -> Any:
    return pb.ReloadConfigRequest(config={"model_config_list": {"config": models}})


def test_a_reload_loads_unloads_and_labels(call: Call, server: ServerProcess, home: Path) -> None:
    """The last test of this server, whose models it changes."""
    others = [
        {"name": name, "base_path": f"/models/{name}", "model_platform": "tensorflow"} for name in ("sums", "classifier", "idle")
    ]
    labelled = {"name": "plus", "version_labels": {"canary": 2}, "model_version_policy": {"all": {}}}
    assert not call("HandleReloadConfigRequest", configuration(*others, labelled)).status.error_code
    assert ask(server, "plus/labels/canary")[1]["model_version_status"][0]["version"] == "2"
    assert ask(server, "plus/labels/stable")[0] == 400
    assert ask(server, "idle:predict", {"inputs": {"a": [1], "b": [1]}})[0] == 200
    states = ask(server, "regressor")[1]["model_version_status"]
    assert [(each["state"], each["status"]["error_code"]) for each in states] == [("END", "OK")]
    only = {"name": "plus", "model_version_policy": {"specific": {"versions": [1]}}}
    assert not call("HandleReloadConfigRequest", configuration(*others, only)).status.error_code
    assert ask(server, "plus/versions/2:predict", {"instances": ROWS.tolist()})[0] == 503
    for models, code, told in (
        ([{"name": "none"}], "NOT_FOUND", "model 'none' is not in the model repository"),
        ([{"name": ""}], "INVALID_ARGUMENT", "a model has no name"),
        ([{"name": "sums"}, {"name": "sums"}], "INVALID_ARGUMENT", "two models are named 'sums'"),
        ([{"name": "sums", "model_platform": "other"}], "INVALID_ARGUMENT", "expected tensorflow, got 'other'"),
        ([*others, {"name": "broken"}], "INVALID_ARGUMENT", "load failed"),
    ):
        status, text = refused(call, "HandleReloadConfigRequest", configuration(*models))
        assert (status, told in text) == (code, True), text
    assert refused(call, "HandleReloadConfigRequest", pb.ReloadConfigRequest())[0] == "INVALID_ARGUMENT"
    assert ask(server, "sums")[1]["model_version_status"][0]["state"] == "AVAILABLE", "a wrong configuration unloads nothing"
    states = ask(server, "broken")[1]["model_version_status"]
    assert [(each["state"], each["status"]["error_code"]) for each in states] == [("END", "UNKNOWN")]

    def logged() -> set[tuple[str, str]]:
        lines = [
            json.loads(line) for line in (home / "audit.log").read_text().splitlines() if "HandleReloadConfigRequest" in line
        ]
        return {(each["protocol"], each["result"]) for each in lines if "result" in each}

    wait_until(lambda: {("tensorflow-serving", result) for result in ("OK", "NOT_FOUND", "INVALID_ARG")} <= logged())
