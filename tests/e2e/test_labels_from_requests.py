"""A model that makes labels of metrics from what requests bring: the page stays well formed, and its size bounded."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

from .server import ServerProcess

_CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "LABEL" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "REFUSED" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("seen", "requests by label", pb_utils.MetricFamily.COUNTER)
        self.kept = []

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("REFUSED", self.count(request))]) for request in requests]

    def count(self, request):
        refused = 0
        for label in pb_utils.get_input_tensor_by_name(request, "LABEL").as_numpy():
            try:
                self.kept.append(self.family.Metric({"from": label.decode()}))
                self.kept[-1].increment(1)
            except pb_utils.TritonModelException:
                refused += 1
        return np.array([refused], np.int32)
"""
_LINE = re.compile(r'seen\{from="(?:[^"\\\n]|\\["\\n])*"\} \d+')


def test_labels_from_requests(tmp_path: Path) -> None:
    (tmp_path / "counts" / "1").mkdir(parents=True)
    (tmp_path / "counts" / "config.pbtxt").write_text(_CONFIG)
    (tmp_path / "counts" / "1" / "model.py").write_text(_MODEL)
    odd = ["", 'a"b', "a\nseen 9", "a\\", "\x00", "ä", "{}", "x" * 1024]
    with ServerProcess(repositories=[tmp_path]) as server, InferenceServerClient(server.http, network_timeout=60) as client:

        def send(labels: list[str]) -> int:
            given = InferInput("LABEL", [len(labels)], "BYTES")
            given.set_data_from_numpy(np.array([label.encode() for label in labels], np.object_))
            return int(client.infer("counts", [given]).as_numpy("REFUSED").item())

        assert send(odd) == 0
        assert send(["x" * 1025, "x" * 1_000_000]) == 2
        assert send([f"label {number}" for number in range(25_000)]) >= 5_000
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as response:
            page = response.read().decode()
        series = [line for line in page.split("\n") if line.startswith("seen")]
        assert len(odd) < len(series) <= 20_000
        assert [line for line in series if not _LINE.fullmatch(line)] == []
        assert client.is_server_ready()
