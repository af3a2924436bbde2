"""The models that are served: one of each kind. All take INPUT and give OUTPUT, FP32."""

from __future__ import annotations

from pathlib import Path

from onnx import helper

from tests.backends import onnx_models
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tpy.messages import DataType

FACTOR = 2.0
"""The factor of `affine`, and so `chain`, unless a scenario writes another."""

COPY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]
"""

_COUNT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(request.inputs()[0].as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([number], np.float32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

_JOURNAL = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.journal = os.open("{journal}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def execute(self, requests):
        os.write(self.journal, "".join(r.request_id() + "\\n" for r in requests).encode())
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]
"""

_TENSORS = """
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ {dims} ] }} ]
output [ {{ name: "OUTPUT" data_type: TYPE_FP32 dims: [ {dims} ] }} ]
"""

_SUM = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  oldest { }
  max_sequence_idle_microseconds: 10000000
  state [ { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""

_CHAIN = """
ensemble_scheduling {
  step [ {
    model_name: "affine" model_version: -1
    input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "scaled" }
  }, {
    model_name: "copy" model_version: -1
    input_map { key: "INPUT" value: "scaled" } output_map { key: "OUTPUT" value: "OUTPUT" }
  } ]
}
"""


def _summing() -> bytes:
    """OUTPUT = AFTER = INPUT + BEFORE."""
    x, before, total, after = (
        onnx_models.value(name, DataType.FP32, ["N", 1]) for name in ("INPUT", "BEFORE", "OUTPUT", "AFTER")
    )
    nodes = [helper.make_node("Add", ["INPUT", "BEFORE"], ["OUTPUT"]), helper.make_node("Identity", ["OUTPUT"], ["AFTER"])]
    return onnx_models.model(nodes, [x, before], [total, after])


def python_config(dims: str = "3", *, batch: int = 8, count: int = 2, more: str = "") -> str:
    """The configuration of a python model."""
    instances = f"instance_group [ {{ kind: KIND_CPU count: {count} }} ]\n"
    return f'backend: "python"\nmax_batch_size: {batch}\n{_TENSORS.format(dims=dims)}{instances}{more}'


def write_models(repository: Path) -> dict[str, ModelFolder]:
    """affine (ONNX), copy (python, two workers), chain (an ensemble of both), sum (a sequence), count (decoupled, one worker)."""
    repository.mkdir()
    folders = {name: ModelFolder(repository, name) for name in ("affine", "copy", "chain", "sum", "count")}
    folders["affine"].config(AFFINE_CONFIG + "dynamic_batching { }\n").affine(1, FACTOR)
    folders["copy"].config(python_config(more="dynamic_batching { }\n")).python(COPY)
    folders["chain"].config(f'platform: "ensemble"\nmax_batch_size: 8\n{_TENSORS.format(dims=3)}{_CHAIN}')
    (folders["chain"].path / "1").mkdir()
    folders["sum"].config(_SUM).file("1/model.onnx", _summing())
    count = python_config("1", batch=0, count=1, more="model_transaction_policy { decoupled: true }\n")
    folders["count"].config(count).python(_COUNT)
    return folders


def write_journal(repository: Path, journal: Path) -> None:
    """Model `journal`: copies, and writes the id of every request that it executes into a file first."""
    folder = ModelFolder(repository, "journal")
    folder.config(python_config(count=1, more="dynamic_batching { }\n")).python(_JOURNAL.replace("{journal}", str(journal)))
