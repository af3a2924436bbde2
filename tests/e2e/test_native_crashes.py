"""An input that makes a framework crash inside its own code, with `isolation` `process`: it costs one instance, which comes back,
and the client is told how it ended. The crashes are the frameworks' own: nothing of ours raises a signal."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from onnx import helper
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from tests.backends import onnx_models
from tpy.messages import DataType

from .repositories import AFFINE_CONFIG, ModelFolder, parameter
from .server import ServerProcess
from .waiting import wait_until

pytestmark = pytest.mark.time_limit(300)  # frameworks take long to import on a busy machine

Array = np.ndarray[Any, Any]

APART = "instance_group [ { count: 1 kind: KIND_CPU } ]\n" + parameter("isolation", "process")
QUOTIENT = {"X": np.array([[7]], np.int32), "Y": np.array([[2]], np.int32)}
ONE = np.ones((1, 1), np.float32)
OVERFLOW = {"X": np.array([[np.iinfo(np.int32).min]], np.int32), "Y": np.array([[-1]], np.int32)}
"""The one quotient of two numbers that is none of their type: processors refuse to divide them."""


class Crash(NamedTuple):
    """`answer` is what a model gives for `good`; `bad` ends its process by `signal`."""

    write: Callable[[Path], None]
    config: str
    good: dict[str, Array]
    answer: float
    bad: dict[str, Array]
    signal: str


def _write_onnx(folder: Path) -> None:
    x, y, z = (onnx_models.value(name, DataType.INT32, ("N", 1)) for name in "XYZ")
    (folder / "model.onnx").write_bytes(onnx_models.model([helper.make_node("Div", ["X", "Y"], ["Z"])], [x, y], [z]))


def _write_torch(folder: Path) -> None:
    import torch

    class Quotient(torch.nn.Module):
        def forward(self, X: Any, Y: Any) -> Any:
            return torch.div(X, Y, rounding_mode="trunc")

    one = torch.ones(1, 1, dtype=torch.int32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says that TorchScript is old
        torch.jit.trace(Quotient(), (one, one)).save(str(folder / "model.pt"))


def _write_tensorflow(folder: Path) -> None:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None, 1], name="X")

        def end() -> Any:
            with tf.control_dependencies([tf.raw_ops.Abort(error_msg="told to")]):
                return tf.identity(x)

        tf.identity(tf.compat.v1.cond(tf.reduce_any(x > 5), end, lambda: tf.identity(x)), name="Z")
    (folder / "model.graphdef").write_bytes(graph.as_graph_def().SerializeToString())


def _write_lite(folder: Path) -> None:
    import tensorflow as tf

    one = tf.TensorSpec([1, 1], tf.int32)
    remainder = tf.function(lambda X, Y: {"Z": tf.math.floormod(X, Y)}, input_signature=[one, one])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([remainder.get_concrete_function()], tf.Module())
    (folder / "model.tflite").write_bytes(converter.convert())


def _write_openvino(folder: Path) -> None:
    import openvino
    from openvino import opset13

    row = opset13.parameter([-1, 1], np.int32, name="X")
    table = opset13.constant(np.array([1, 2, 3, 4], np.float32))
    found = opset13.gather_nd(table, row)
    made = opset13.reshape(found, opset13.constant(np.array([-1, 1])), special_zero=False)
    for node, name in ((row, "X"), (made, "Z")):
        node.output(0).tensor.set_names({name})
    openvino.save_model(openvino.Model([made], [row]), folder / "model.xml", compress_to_fp16=False)


def _write_trees(folder: Path) -> None:
    import lightgbm
    import treelite

    rows = np.arange(40, dtype=np.float32).reshape(40, 1)
    options = {"objective": "regression", "num_leaves": 2, "verbose": -1, "num_threads": 1, "min_data_in_leaf": 1}
    lightgbm.train(options, lightgbm.Dataset(rows, rows[:, 0] > 20), 1).save_model(folder / "trees.txt")
    whole = treelite.frontend.load_lightgbm_model(folder / "trees.txt").serialize_bytes()
    (folder / "trees.txt").unlink()
    children = struct.pack("<3i", 2, -1, -1)
    assert whole.count(children) == 1
    (folder / "checkpoint.tl").write_bytes(whole.replace(children, struct.pack("<3i", 1 << 30, -1, -1)))


def _write_dali(folder: Path) -> None:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=4, num_threads=1, device_id=None, output_dtype=types.INT32, output_ndim=1)
    def quotient() -> Any:
        x, y = (fn.external_source(device="cpu", name=name, dtype=types.INT32, ndim=1) for name in "XY")
        return fn.copy(x // y, name="Z")

    quotient().serialize(filename=str(folder / "model.dali"))


_TORCH = """
platform: "pytorch_libtorch"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Z" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""

CRASHES = {
    "onnxruntime": Crash(_write_onnx, "", QUOTIENT, 3, OVERFLOW, "SIGFPE"),
    "pytorch": Crash(_write_torch, _TORCH, QUOTIENT, 3, OVERFLOW, "SIGFPE"),
    "tensorflow": Crash(
        _write_tensorflow, "", {"X": ONE}, 1, {"X": ONE * 9}, "SIGABRT"
    ),
    "litert": Crash(_write_lite, "", QUOTIENT, 1, OVERFLOW, "SIGFPE"),
    "openvino": Crash(
        _write_openvino, "", {"X": np.ones((1, 1), np.int32)}, 2, {"X": np.full((1, 1), 0x7FFFFFF0, np.int32)}, "SIGSEGV"
    ),
    "fil": Crash(_write_trees, "", {"input__0": ONE * 39}, 0.5275, {"input__0": ONE * 0}, "SIGSEGV"),
    "dali": Crash(_write_dali, "", QUOTIENT, 3, OVERFLOW, "SIGFPE"),
}  # fmt: skip

_MODULES = {
    "onnxruntime": ("onnxruntime",),
    "pytorch": ("torch",),
    "tensorflow": ("tensorflow",),
    "litert": ("tensorflow", "ai_edge_litert"),
    "openvino": ("openvino",),
    "fil": ("treelite", "lightgbm"),
    "dali": ("nvidia.dali",),
}
"""Modules that make the models, and that serve them."""


def asked(client: InferenceServerClient, model: str, given: dict[str, Array]) -> float:
    tensors = []
    for name, array in given.items():
        tensors.append(InferInput(name, list(array.shape), "INT32" if array.dtype == np.int32 else "FP32"))
        tensors[-1].set_data_from_numpy(array)
    answer = client.infer(model, tensors)
    (output,) = answer.get_response()["outputs"]
    return float(answer.as_numpy(output["name"]).reshape(-1)[0])


@pytest.mark.parametrize("name", CRASHES)
def test_a_framework_that_crashes_costs_one_instance(repository: Path, name: str) -> None:
    for module in _MODULES[name]:
        pytest.importorskip(module, reason=f"needs {module}: make test-backends")
    crash = CRASHES[name]
    ModelFolder(repository, "beside").config(AFFINE_CONFIG).affine(1, 2)
    ModelFolder(repository, name).config(f"{crash.config}{APART}").file("1/.keep", "")
    crash.write(repository / name / "1")
    with (
        ServerProcess(repositories=[repository]) as server,
        InferenceServerClient(server.http, network_timeout=120) as client,
    ):
        assert asked(client, name, crash.good) == pytest.approx(crash.answer)
        died = rf"^\[500\] .*Stub process '{name}_0_0' is not healthy\. It was ended by {crash.signal}\b"
        with pytest.raises(InferenceServerException, match=died):
            asked(client, name, crash.bad)
        wait_until(lambda: not client.is_model_ready(name))
        assert asked(client, "beside", {"INPUT": np.ones((1, 3), np.float32)}) == 2
        wait_until(lambda: client.is_model_ready(name), within_s=120)
        assert asked(client, name, crash.good) == pytest.approx(crash.answer)
