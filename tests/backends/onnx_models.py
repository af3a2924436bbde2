"""Small ONNX models, built on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tpy.backend import ModelContext
from tpy.config import ModelConfig
from tpy.messages import DataType

Shape = Sequence[int | str | None]

_IR_VERSION = 8

ELEMENT_TYPES: dict[DataType, int] = {
    DataType.BOOL: TensorProto.BOOL,
    DataType.UINT8: TensorProto.UINT8,
    DataType.UINT16: TensorProto.UINT16,
    DataType.UINT32: TensorProto.UINT32,
    DataType.UINT64: TensorProto.UINT64,
    DataType.INT8: TensorProto.INT8,
    DataType.INT16: TensorProto.INT16,
    DataType.INT32: TensorProto.INT32,
    DataType.INT64: TensorProto.INT64,
    DataType.FP16: TensorProto.FLOAT16,
    DataType.FP32: TensorProto.FLOAT,
    DataType.FP64: TensorProto.DOUBLE,
    DataType.BYTES: TensorProto.STRING,
    DataType.BF16: TensorProto.BFLOAT16,
}


def value(name: str, datatype: DataType, shape: Shape | None) -> onnx.ValueInfoProto:
    """A declared tensor; shape None declares no rank."""
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[datatype], shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> bytes:
    """A serialised model of opset 16 (and 2 of ai.onnx.ml)."""
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16), helper.make_opsetid("ai.onnx.ml", 2)])
    built.ir_version = _IR_VERSION
    content: bytes = built.SerializeToString()
    return content


def identity(datatype: DataType = DataType.FP32, shape: Shape = ("N", 3)) -> bytes:
    """INPUT -> OUTPUT, same shape."""
    node = helper.make_node("Identity", ["INPUT"], ["OUTPUT"])
    return model([node], [value("INPUT", datatype, shape)], [value("OUTPUT", datatype, shape)])


def affine(scale: float, offset: float) -> bytes:
    """INPUT [N, 3] -> OUTPUT [N, 3] = INPUT * scale + offset."""
    constants = [
        onnx.numpy_helper.from_array(np.array([number], np.float32), name)
        for name, number in (("scale", scale), ("offset", offset))
    ]
    nodes = [helper.make_node("Mul", ["INPUT", "scale"], ["scaled"]), helper.make_node("Add", ["scaled", "offset"], ["OUTPUT"])]
    shape = ["N", 3]
    return model(nodes, [value("INPUT", DataType.FP32, shape)], [value("OUTPUT", DataType.FP32, shape)], constants)


def matmul(batch: int | str = "N") -> bytes:
    """INPUT [batch, 3] -> OUTPUT [batch, 2]: times [[1, 2], [3, 4], [5, 6]]."""
    weights = onnx.numpy_helper.from_array(np.arange(1, 7, dtype=np.float32).reshape(3, 2), "weights")
    node = helper.make_node("MatMul", ["INPUT", "weights"], ["OUTPUT"])
    return model(
        [node],
        [value("INPUT", DataType.FP32, [batch, 3])],
        [value("OUTPUT", DataType.FP32, [batch, 2])],
        [weights],
    )


def gathering() -> bytes:
    """INDEX [N, 1] -> OUTPUT [N, 1, 2]: rows of [[10, 11], [20, 21], [30, 31]]; an index out of range fails at run time.
    And DOUBLED [N, 1] = 2 * INDEX."""
    table = onnx.numpy_helper.from_array(np.array([[10, 11], [20, 21], [30, 31]], np.float32), "table")
    nodes = [
        helper.make_node("Gather", ["table", "INDEX"], ["OUTPUT"]),
        helper.make_node("Add", ["INDEX", "INDEX"], ["DOUBLED"]),
    ]
    return model(
        nodes,
        [value("INDEX", DataType.INT64, ["N", 1])],
        [value("OUTPUT", DataType.FP32, ["N", 1, 2]), value("DOUBLED", DataType.INT64, ["N", 1])],
        [table],
    )


def scalar_sum() -> bytes:
    """A scalar, B scalar -> SUM scalar."""
    node = helper.make_node("Add", ["A", "B"], ["SUM"])
    return model([node], [value("A", DataType.FP32, []), value("B", DataType.FP32, [])], [value("SUM", DataType.FP32, [])])


def overridable() -> bytes:
    """INPUT [2] + BIAS [2] -> OUTPUT [2]; BIAS is an initializer ([10, 20]) that a request may override."""
    bias = onnx.numpy_helper.from_array(np.array([10, 20], np.float32), "BIAS")
    node = helper.make_node("Add", ["INPUT", "BIAS"], ["OUTPUT"])
    return model(
        [node],
        [value("INPUT", DataType.FP32, [2]), value("BIAS", DataType.FP32, [2])],
        [value("OUTPUT", DataType.FP32, [2])],
        [bias],
    )


def bf16_sum() -> bytes:
    """A BF16 [N, 2] and B FP32 [N, 2] -> SUM BF16 [N, 2] (added as FP32) and WIDE FP32 [N, 2]."""
    nodes = [
        helper.make_node("Cast", ["A"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "B"], ["WIDE"]),
        helper.make_node("Cast", ["WIDE"], ["SUM"], to=TensorProto.BFLOAT16),
    ]
    return model(
        nodes,
        [value("A", DataType.BF16, ["N", 2]), value("B", DataType.FP32, ["N", 2])],
        [value("SUM", DataType.BF16, ["N", 2]), value("WIDE", DataType.FP32, ["N", 2])],
    )


def encoding() -> bytes:
    """INPUT [N, 1] of texts -> OUTPUT [N, 1]: 2 for "two", 3 for "drei", else -1."""
    node = helper.make_node(
        "LabelEncoder",
        ["INPUT"],
        ["OUTPUT"],
        domain="ai.onnx.ml",
        keys_strings=["two", "drei"],
        values_int64s=[2, 3],
        default_int64=-1,
    )
    return model([node], [value("INPUT", DataType.BYTES, ["N", 1])], [value("OUTPUT", DataType.INT64, ["N", 1])])


def first_row() -> bytes:
    """INPUT [N, 2] -> OUTPUT: its first row only, although declared as [N, 2]."""
    bounds = [onnx.numpy_helper.from_array(np.array([bound]), name) for name, bound in (("zero", 0), ("one", 1))]
    node = helper.make_node("Slice", ["INPUT", "zero", "one", "zero"], ["OUTPUT"])
    return model([node], [value("INPUT", DataType.FP32, ["N", 2])], [value("OUTPUT", DataType.FP32, ["M", 2])], bounds)


def sequence_output() -> bytes:
    """INPUT [N, 2] -> OUTPUT, a sequence."""
    node = helper.make_node("SplitToSequence", ["INPUT"], ["OUTPUT"], axis=0)
    output = helper.make_tensor_sequence_value_info("OUTPUT", TensorProto.FLOAT, None)
    return model([node], [value("INPUT", DataType.FP32, ["N", 2])], [output])


def ragged_sums() -> bytes:
    """X [T], the elements of all requests, and OFFSETS INT32 [requests + 1], where each begins -> DOUBLED [T] = 2 * X and
    SUMS [requests, 1], the sum of each request's elements."""
    constants = [
        onnx.numpy_helper.from_array(np.array(numbers, dtype), name)
        for name, numbers, dtype in (
            ("axis", 0, np.int64),
            ("zero", [0], np.float32),
            ("begin", [0], np.int64),
            ("second", [1], np.int64),
            ("last", [-1], np.int64),
            ("end", [2**31], np.int64),
            ("column", [-1, 1], np.int64),
        )
    ]
    nodes = [
        helper.make_node("Add", ["X", "X"], ["DOUBLED"]),
        helper.make_node("CumSum", ["X", "axis"], ["sums"]),
        helper.make_node("Concat", ["zero", "sums"], ["until"], axis=0),
        helper.make_node("Slice", ["OFFSETS", "second", "end"], ["ends"]),
        helper.make_node("Slice", ["OFFSETS", "begin", "last"], ["begins"]),
        helper.make_node("Gather", ["until", "ends"], ["at_ends"]),
        helper.make_node("Gather", ["until", "begins"], ["at_begins"]),
        helper.make_node("Sub", ["at_ends", "at_begins"], ["flat"]),
        helper.make_node("Reshape", ["flat", "column"], ["SUMS"]),
    ]
    return model(
        nodes,
        [value("X", DataType.FP32, ["T"]), value("OFFSETS", DataType.INT32, ["M"])],
        [value("DOUBLED", DataType.FP32, ["T"]), value("SUMS", DataType.FP32, ["N", 1])],
        constants,
    )


def echo(*tensors: tuple[str, DataType, Shape]) -> bytes:
    """Each of the inputs -> an output of its name with OUT_ in front."""
    nodes = [helper.make_node("Identity", [name], [f"OUT_{name}"]) for name, _, _ in tensors]
    return model(
        nodes,
        [value(name, datatype, shape) for name, datatype, shape in tensors],
        [value(f"OUT_{name}", datatype, shape) for name, datatype, shape in tensors],
    )


def write(
    root: Path, content: bytes | None, config: ModelConfig, *, filename: str = "model.onnx", version: int = 1
) -> ModelContext:
    """Put the model into `<root>/<name>/<version>/<filename>` (nothing for None) and describe it as the engine does."""
    version_directory = root / config.name / str(version)
    version_directory.mkdir(parents=True, exist_ok=True)
    if content is not None:
        (version_directory / filename).parent.mkdir(parents=True, exist_ok=True)
        (version_directory / filename).write_bytes(content)
    return ModelContext(
        name=config.name,
        version=version,
        generation=1,
        config=config,
        model_directory=version_directory.parent,
        version_directory=version_directory,
    )
