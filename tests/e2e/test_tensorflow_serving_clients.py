"""TensorFlow Serving's stock client, unchanged, against SavedModels that `tpy import` has linked. Its server's answers are
written down here: pip cannot install it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from .server import ServerProcess, run_tpy

tf = pytest.importorskip("tensorflow", reason="needs TensorFlow: make test-backends")
apis = pytest.importorskip("tensorflow_serving.apis", reason="needs tensorflow-serving-api: make test-backends")

import grpc  # noqa: E402
from tensorflow_serving.apis import (  # noqa: E402
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    input_pb2,
    model_management_pb2,
    model_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tpy_platforms.tensorflow_serving.protos import POOL  # noqa: E402

CONFIG = """
model_config_list {
  config { name: "half" base_path: "/models/half" model_platform: "tensorflow" model_version_policy { all {} }
           version_labels { key: "stable" value: 1 } }
  config { name: "classes" base_path: "/models/classes" model_platform: "tensorflow" }
  config { name: "values" base_path: "/models/values" model_platform: "tensorflow" }
}
"""


def half(offset: float) -> Any:
    class Half(tf.Module):  # type: ignore[misc, name-defined]
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def serve(self, x: Any) -> Any:
            return {"y": x / 2 + offset}

    return Half()


def of_examples(name: str) -> Any:
    class Examples(tf.Module):  # type: ignore[misc, name-defined]
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])  # type: ignore[untyped-decorator]
        def serve(self, inputs: Any) -> Any:
            x = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([], tf.float32)})["x"]
            if name == "values":
                return {"outputs": x / 2 + 2}
            labels = tf.tile(tf.constant([["small", "large"]]), [tf.shape(x)[0], 1])
            return {"classes": labels, "scores": tf.stack([-x, x], axis=1)}

    return Examples()


class Stubs(NamedTuple):
    """The stubs of both services, and the server."""

    prediction: Any
    model: Any
    server: ServerProcess


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stubs]:
    home = tmp_path_factory.mktemp("stock")
    for path, module in (
        ("half/1", half(2)),
        ("half/2", half(10)),
        ("classes/1", of_examples("classes")),
        ("values/1", of_examples("values")),
    ):
        tf.saved_model.save(module, str(home / "served" / path), signatures=module.serve)
    (home / "served" / "models.config").write_text(CONFIG)
    imported = run_tpy("import", str(home / "served"), "--to", str(home / "models"))
    assert imported.code == 0, imported.out + imported.err
    flags = ("--allow-tensorflow-serving=true", "--model-control-mode=explicit", "--load-model=*")
    with (
        ServerProcess(*flags, repositories=[home / "models"]) as server,
        grpc.insecure_channel(server.address("TensorFlow Serving GRPCService") or "") as channel,
    ):
        yield Stubs(
            prediction_service_pb2_grpc.PredictionServiceStub(channel),
            model_service_pb2_grpc.ModelServiceStub(channel),
            server,
        )


def predict(stubs: Stubs, x: Any, **spec: Any) -> Any:
    request = predict_pb2.PredictRequest(model_spec=model_pb2.ModelSpec(name="half", **spec))
    request.inputs["x"].CopyFrom(x if isinstance(x, tf.make_tensor_proto([]).__class__) else tf.make_tensor_proto(x))
    return stubs.prediction.Predict(request, timeout=30)


def examples(*values: float) -> Any:
    found = [tf.train.Example() for _ in values]
    for one, number in zip(found, values, strict=True):
        one.features.feature["x"].float_list.value.append(number)
    return input_pb2.Input(example_list=input_pb2.ExampleList(examples=found))


def test_predict(stubs: Stubs) -> None:
    rows = np.array([1, 2, 5], np.float32)
    answer = predict(stubs, rows, signature_name="serving_default")
    assert answer.outputs["y"].float_val == [10.5, 11, 12.5]
    assert tf.make_ndarray(answer.outputs["y"]).tolist() == [10.5, 11, 12.5], "[N] there, too"
    assert (answer.model_spec.version.value, answer.model_spec.signature_name) == (2, "serving_default")
    assert predict(stubs, rows, version_label="stable").outputs["y"].float_val == [2.5, 3, 4.5]
    assert predict(stubs, tf.make_tensor_proto(2.0, shape=[3]), version={"value": 1}).outputs["y"].float_val == [3, 3, 3]
    with pytest.raises(grpc.RpcError, match='Serving signature key "other" not found') as refused:
        predict(stubs, rows, signature_name="other")
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_examples(stubs: Stubs) -> None:
    spec = model_pb2.ModelSpec(name="classes")
    found = stubs.prediction.Classify(
        classification_pb2.ClassificationRequest(model_spec=spec, input=examples(1, -2)), timeout=30
    )
    rows = [[(each.label, each.score) for each in row.classes] for row in found.result.classifications]
    assert rows == [[("small", -1), ("large", 1)], [("small", 2), ("large", -2)]]
    spec = model_pb2.ModelSpec(name="values")
    answer = stubs.prediction.Regress(regression_pb2.RegressionRequest(model_spec=spec, input=examples(1, 2, 5)), timeout=30)
    assert [each.value for each in answer.result.regressions] == [2.5, 3, 4.5]
    task = inference_pb2.InferenceTask(model_spec=spec, method_name="tensorflow/serving/regress")
    several = stubs.prediction.MultiInference(inference_pb2.MultiInferenceRequest(tasks=[task], input=examples(1)), timeout=30)
    assert [each.value for each in several.results[0].regression_result.regressions] == [2.5]


def test_metadata_and_states(stubs: Stubs) -> None:
    spec = model_pb2.ModelSpec(name="half")
    found = stubs.prediction.GetModelMetadata(
        get_model_metadata_pb2.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"]), timeout=30
    )
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert found.metadata["signature_def"].Unpack(signatures)
    info = signatures.signature_def["serving_default"].inputs["x"]
    assert (info.dtype, [dim.size for dim in info.tensor_shape.dim]) == (tf.float32.as_datatype_enum, [-1])
    states = stubs.model.GetModelStatus(get_model_status_pb2.GetModelStatusRequest(model_spec=spec), timeout=30)
    available = get_model_status_pb2.ModelVersionStatus.AVAILABLE
    assert [(each.version, each.state) for each in states.model_version_status] == [(2, available), (1, available)]


def test_rest(stubs: Stubs) -> None:
    address = stubs.server.address("TensorFlow Serving HTTPService")
    for path, body, answer in (
        ("half:predict", {"instances": [1.0, 2.0, 5.0]}, {"predictions": [10.5, 11.0, 12.5]}),
        ("half/versions/1:predict", {"inputs": {"x": [1.0]}}, {"outputs": [2.5]}),
        ("values:regress", {"examples": [{"x": 1.0}, {"x": 2.0}]}, {"results": [2.5, 3.0]}),
        ("classes:classify", {"examples": [{"x": 1.0}]}, {"results": [[["small", -1.0], ["large", 1.0]]]}),
    ):
        with urllib.request.urlopen(f"http://{address}/v1/models/{path}", json.dumps(body).encode(), timeout=30) as reply:
            assert json.loads(reply.read()) == answer, path


def test_a_label_is_moved_by_a_reload(stubs: Stubs) -> None:
    request = model_management_pb2.ReloadConfigRequest()
    for name in ("classes", "values", "half"):
        one = request.config.model_config_list.config.add(name=name, base_path=f"/models/{name}", model_platform="tensorflow")
    one.version_labels["stable"] = 2
    answer = stubs.model.HandleReloadConfigRequest(request, timeout=60)
    assert (answer.status.error_code, answer.status.error_message) == (0, "")
    assert predict(stubs, np.array([1], np.float32), version_label="stable").outputs["y"].float_val == [10.5]


def test_messages_are_those_of_the_stock_client() -> None:
    """Every field of ours has the number, type and label that it has there."""
    modules = (
        *(classification_pb2, get_model_metadata_pb2, get_model_status_pb2, inference_pb2, input_pb2),
        *(model_management_pb2, model_pb2, predict_pb2, regression_pb2),
    )
    theirs: dict[str, Any] = {}
    seen = set[str]()
    pending = [message for module in modules for message in module.DESCRIPTOR.message_types_by_name.values()]
    while pending:
        message = pending.pop()
        if message.full_name not in seen:
            seen.add(message.full_name)
            theirs[message.name] = message
            pending += [field.message_type for field in message.fields if field.message_type is not None]
    ours = [
        each
        for name in ("serving.proto", "tensorflow.proto")
        for each in POOL.FindFileByName(name).message_types_by_name.values()
    ]
    for message in ours:
        for field in message.fields:
            other = theirs[message.name].fields_by_name[field.name]
            assert (field.number, field.is_repeated) == (other.number, other.is_repeated), (message.name, field.name)
            if message.name != "StatusProto":  # its code is a number here
                assert field.type == other.type, (message.name, field.name)
    assert len(ours) > 30
