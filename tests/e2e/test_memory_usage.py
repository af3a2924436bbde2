"""Memory of a model, as operators see it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from tpy.units import MIB

from .server import ServerProcess

MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.weights = b"w" * (48 << 20)
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests]
"""

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: %d }
"""


def test_statistics_and_metrics_of_a_server(tmp_path: Path) -> None:
    """The weights of two instances, one each in a process of its own; one, when there is one only."""
    repository = tmp_path / "models"
    (repository / "big" / "1").mkdir(parents=True)
    (repository / "big" / "1" / "model.py").write_text(MODEL)
    (repository / "big" / "config.pbtxt").write_text(CONFIG % 2)
    with ServerProcess("--model-control-mode=explicit", "--load-model=big", repositories=[repository]) as server:
        both = _memory(server)
        assert 96 * MIB < both < 220 * MIB
        (repository / "big" / "config.pbtxt").write_text(CONFIG % 1)
        urllib.request.urlopen(f"http://{server.http}/v2/repository/models/big/load", b"{}").close()
        one = _memory(server)
        assert 48 * MIB < one < both - 48 * MIB


def _memory(server: ServerProcess) -> int:
    with urllib.request.urlopen(f"http://{server.http}/v2/models/big/stats") as answer:
        (usage,) = json.load(answer)["model_stats"][0]["memory_usage"]
    assert (usage["type"], usage["id"]) == ("CPU", 0)
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        page = answer.read().decode()
    assert f'tpy_model_memory_bytes{{id="0",model="big",type="CPU",version="1"}} {usage["byte_size"]}\n' in page
    return int(usage["byte_size"])
