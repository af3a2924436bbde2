"""Write a repository with one small network in the forms of several frameworks: TensorFlow, LiteRT, OpenVINO, ONNX, and PyTorch
where that is installed.

Use: python docs/examples/frameworks/save.py DIRECTORY
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

WEIGHTS = np.random.default_rng(7).standard_normal((2, 4, 4), dtype=np.float32)
"""Of two layers."""


class Network(tf.Module):
    """Four features to the probabilities of four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [tf.Variable(weights) for weights in WEIGHTS]

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="features")])
    def classify(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        hidden = tf.nn.relu(features @ self.layers[0])
        return {"probabilities": tf.nn.softmax(hidden @ self.layers[1])}

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="features")])
    def embed(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"hidden": tf.nn.relu(features @ self.layers[0])}


def save_savedmodel(path: Path) -> None:
    """A SavedModel with two signatures."""
    network = Network()
    signatures = {"serving_default": network.classify, "embed": network.embed}
    tf.saved_model.save(network, str(path), signatures=signatures)


def save_graph(path: Path) -> None:
    """A frozen graph: its weights are constants."""
    with tf.Graph().as_default() as graph:
        features = tf.compat.v1.placeholder(tf.float32, [None, 4], name="features")
        hidden = tf.nn.relu(features @ tf.constant(WEIGHTS[0]))
        tf.nn.softmax(hidden @ tf.constant(WEIGHTS[1]), name="probabilities")
    path.write_bytes(graph.as_graph_def().SerializeToString())


def save_tflite(path: Path) -> None:
    """A file for LiteRT, converted from a SavedModel."""
    with tempfile.TemporaryDirectory() as folder:
        save_savedmodel(Path(folder))
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["serving_default"])
        path.write_bytes(converter.convert())


def save_onnx(path: Path) -> None:
    """ONNX, node by node."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("MatMul", ["features", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "w1"], ["b"]),
        helper.make_node("Softmax", ["b"], ["probabilities"], axis=1),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("features", "probabilities")]
    weights = [numpy_helper.from_array(weights, f"w{number}") for number, weights in enumerate(WEIGHTS)]
    graph = helper.make_graph(nodes, "network", tensors[:1], tensors[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


def save_ir(path: Path) -> None:
    """OpenVINO's IR: model.xml and model.bin, converted from ONNX."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        save_onnx(Path(folder) / "model.onnx")
        openvino.save_model(openvino.convert_model(Path(folder) / "model.onnx"), path, compress_to_fp16=False)


def save_script(path: Path) -> None:
    """TorchScript."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            hidden = torch.relu(features @ torch.from_numpy(WEIGHTS[0]))
            return torch.softmax(hidden @ torch.from_numpy(WEIGHTS[1]), 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that TorchScript is old
        torch.jit.trace(Module(), torch.zeros(2, 4)).save(str(path))


FORMS = {
    "saved/1/model.savedmodel": save_savedmodel,
    "frozen/1/model.graphdef": save_graph,
    "lite/1/model.tflite": save_tflite,
    "onnx/1/model.onnx": save_onnx,
    "ir/1/model.xml": save_ir,
}
CONFIGS = {
    "ir": """\
backend: "openvino"
parameters { key: "INFERENCE_PRECISION_HINT" value { string_value: "f32" } }
""",
    "script": """\
platform: "pytorch_libtorch"
max_batch_size: 4
input [ { name: "features" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 4 ] } ]
""",
}
"""The other forms need none."""


def main(directory: Path) -> None:
    forms = dict(FORMS)
    if importlib.util.find_spec("torch"):
        forms["script/1/model.pt"] = save_script
    for name, save in forms.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        save(directory / name)
        model = name.partition("/")[0]
        if model in CONFIGS:
            (directory / model / "config.pbtxt").write_text(CONFIGS[model])
    print("wrote", *FORMS, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
