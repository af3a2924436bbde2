"""A worker that leaks, told by a real server: its processes are read every few milliseconds in place of once a minute."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import tpy
from tests.e2e.repositories import ModelFolder
from tests.e2e.waiting import wait_until
from tpy.units import MIB
from tpy_data.engine import data_plane
from tpy_data.engine.memory import memory_watch

MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
    def execute(self, requests):
        self.kept.append(b"k" * (1 << 20))
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(request, "X")]) for request in requests]
"""

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "X" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 1 }
"""


def test_a_worker_that_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (data_plane, memory_watch):
        monkeypatch.setattr(module, "MEMORY_LOOK_S", 0.005)
    ModelFolder(tmp_path, "leak").config(CONFIG).python(MODEL)
    with tpy.Server(tmp_path) as server:
        model = server.model("leak")
        asked = itertools.count(1)

        def leaks() -> bool:
            model.infer({"X": np.zeros(1, np.float32)})
            next(asked)
            return any(each.leaks for each in server.statistics("leak")[0].memory_growths)

        wait_until(leaks)
        [entry] = server.index()
        assert entry.reason == "memory leaks: instance 'leak_0_0'"
        [growth] = server.statistics("leak")[0].memory_growths
        assert MIB * 800 < growth.trend_bytes < MIB * 1200, "a MiB each"
        assert growth.requests < next(asked)
        page = server.metrics()
        assert 'tpy_model_leaking_instances{model="leak",version="1"} 1\n' in page
        assert "\ntpy_server_memory_trend_bytes " in page
