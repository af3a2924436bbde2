"""The repository of the clusters: a model that adds and subtracts, one of several responses, one that adds up sequences."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

_REPEAT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            for number in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

_REPEAT_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""

_SUM = """
import numpy as np
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        answers = []
        for request in requests:
            x = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel()[0])
            id, flags = request.correlation_id(), request.flags()
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[id] = 0
            self.sums[id] += x
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([[self.sums[id]]], np.int32))]))
        return answers
"""

_SUM_CONFIG = """
backend: "python"
max_batch_size: 8
sequence_batching { max_sequence_idle_microseconds: 60000000 }
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


def build(repository: Path) -> Path:
    """Write the models into this folder."""
    subprocess.run([sys.executable, "docs/examples/build.py", "first-model", repository], check=True, capture_output=True)
    for name, code, config in (("repeat", _REPEAT, _REPEAT_CONFIG), ("sum", _SUM, _SUM_CONFIG)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(code)
        (repository / name / "config.pbtxt").write_text(f'name: "{name}"\n{config}')
    return repository


def copy_of(repository: Path, name: str, new: str) -> None:
    """Add a copy of a model under another name."""
    shutil.copytree(repository / name, repository / new)
    config = repository / new / "config.pbtxt"
    config.write_text(config.read_text().replace(f'"{name}"', f'"{new}"', 1))
