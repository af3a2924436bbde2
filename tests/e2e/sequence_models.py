"""Sequence models that add up what they are sent, each in its own way, and the repository of them."""

from __future__ import annotations

from pathlib import Path

from onnx import helper

from tests.backends import onnx_models
from tpy.messages import DataType

from .repositories import ModelFolder

_IO = """
input [ { name: "X" data_type: TYPE_FP32 dims: [ SIZE ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ SIZE ] } ]
"""

_CONTROLS = """
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } ] }
  ]
"""

_STATE = '  state [ { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'

_PYTHON = """
import numpy as np
import triton_python_backend_utils as pb_utils

def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0, 0]

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.answer(place, request) for place, request in enumerate(requests)]

    def answer(self, place, request):
        if not value(request, "READY"):
            return pb_utils.InferenceResponse([])
        id = value(request, "ID").decode()
        if id != str(request.correlation_id()):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"the controls say {id}"))
        key = KEY
        owner, total = self.sums.get(key, (None, 0))
        if value(request, "START"):
            owner, total = id, 0
        if owner != id:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{key} is of {owner} and not of {id}"))
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        total += x[0, -1]
        self.sums[key] = owner, total
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.full_like(x, total))])
"""


def summing() -> bytes:
    """SUM = AFTER = X + BEFORE."""
    x, before, total, after = (onnx_models.value(name, DataType.FP32, ["N", 1]) for name in ("X", "BEFORE", "SUM", "AFTER"))
    nodes = [helper.make_node("Add", ["X", "BEFORE"], ["SUM"]), helper.make_node("Identity", ["SUM"], ["AFTER"])]
    return onnx_models.model(nodes, [x, before], [total, after])


def config(backend: str, strategy: str, inside: str, *, instances: int, idle_ms: int) -> str:
    """A configuration with batches of 4. Python models take X of any size, and add up its last elements."""
    tensors = _IO.replace("SIZE", "-1" if backend == "python" else "1")
    return (
        f'backend: "{backend}"\nmax_batch_size: 4\n{tensors}\ninstance_group [ {{ kind: KIND_CPU count: {instances} }} ]\n'
        f"sequence_batching {{\n  {strategy}\n  max_sequence_idle_microseconds: {idle_ms * 1000}\n{inside}}}\n"
    )


def build(repository: Path, *, idle_ms: int) -> dict[str, int]:
    """Four models: python ones that hold sums by place in the batch and by id, ONNX ones with implicit state. How many sequences
    each has slots for."""
    oldest = "oldest { max_candidate_sequences: 6 }"
    direct, by_id = _PYTHON.replace("KEY", "place"), _PYTHON.replace("KEY", "id")
    python = {"instances": 2, "idle_ms": idle_ms}
    ModelFolder(repository, "places").config(config("python", "direct { }", _CONTROLS, **python)).python(direct)
    ModelFolder(repository, "ids").config(config("python", oldest, _CONTROLS, **python)).python(by_id)
    onnx = config("onnxruntime", "direct { }", _STATE, instances=1, idle_ms=idle_ms)
    ModelFolder(repository, "states").config(onnx).file("1/model.onnx", summing())
    onnx = config("onnxruntime", oldest, _STATE, instances=2, idle_ms=idle_ms)
    ModelFolder(repository, "candidates").config(onnx).file("1/model.onnx", summing())
    return {"places": 8, "ids": 12, "states": 4, "candidates": 12}
