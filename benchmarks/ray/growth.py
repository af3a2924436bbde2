"""Measures requests/s of one application over one to four raylets on this machine, a replica on each, behind HAProxy: a program,
for a private network.

Use: python -m benchmarks.ray.growth SECONDS       prints a line of JSON for each number of raylets

The model takes 20 ms of waiting for a request, not of computing: four replicas wait at the same time on two cores, too. So it is
seen whether the cluster hands requests to all replicas; the requests/s of a replica that computes are those of its machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.http_exchange import HttpRequest
from benchmarks.load.keep_alive import drive
from tests.ray.faults import FaultyCluster
from tests.ray.serving import until

PORT = 8000
RAYLETS = 4
CONNECTIONS = 32
WAIT_S = 0.02
_MODEL = f"""
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({WAIT_S} * len(requests))
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(each, "X")]) for each in requests]
"""
_CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
_BODY = json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "INT32", "data": [1]}]}).encode()
REQUEST = HttpRequest(path="/v2/models/waits/infer", headers={"Content-Type": "application/json"}, body=_BODY)


def main(seconds: float) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "waiting" / "waits"
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(_MODEL)
        (model / "config.pbtxt").write_text(_CONFIG)
        cluster = FaultyCluster(folder, repository=folder / "waiting", workers=0, cpus=1)
        try:
            for raylets in range(1, RAYLETS + 1):
                if raylets > 1:
                    cluster.add_node()
                cluster.deploy(f"replicas={raylets}", "cpus=1")
                until(lambda: len(cluster.replicas()) == raylets, seconds=120)  # noqa: B023  # called at once
                until(_answers)
                load = drive(PORT, REQUEST, connections=CONNECTIONS, seconds=seconds)
                row = {"server": "growth", "raylets": raylets, "connections": CONNECTIONS, "per_s": round(load.per_s, 1)}
                print(
                    json.dumps(row | {"p50_ms": round(load.latency_p50_ms, 2), "p99_ms": round(load.latency_p99_ms, 2)}),
                    flush=True,
                )
        finally:
            cluster.shutdown()


def _answers() -> bool:
    try:
        drive(PORT, REQUEST, connections=CONNECTIONS, seconds=2.0)  # HAProxy is started anew as replicas come
    except Exception as error:  # not yet
        raise OSError(str(error)) from None
    return True


if __name__ == "__main__":
    main(float(sys.argv[1]))
