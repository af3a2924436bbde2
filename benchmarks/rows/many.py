"""Fifty small models at once: seconds from the start of the process to READY, the memory of an idle worker, and how long health
checks wait while the models are loaded by a server that serves."""

from __future__ import annotations

import http.client
import json
import shutil
import time
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measurement import Measurement
from benchmarks.rows.start import ONNX_CONFIG
from benchmarks.servers.models import write_onnx_model, write_python_identity
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import HOST, running

ROW = "start to READY with 50 small models"
COUNT = 50

LOADED_S_MAX = 60
LOOKS_S = 0.2
"""Between two looks whether all are READY: a question for the index costs more than one for health."""


def measure(bench: Bench) -> None:
    """A fresh server each time. A worker's memory is what no other process shares."""
    onnx, python = bench.fresh("onnx"), bench.fresh("python")
    for number in range(COUNT):
        write_onnx_model(onnx, f"m{number}", bench.models / "magika" / "1" / "model.onnx", ONNX_CONFIG)
        write_python_identity(python, f"m{number}")
    for turn in bench.rounds():
        for case, repository in (("ONNX models", onnx), ("python models", python)):
            with running(TpyPlan(repository=repository), bench.fresh("tpy.log")) as server:
                values = [("time", "s", server.ready_s - server.started_s)]
                workers = server.family()[1:]
                if workers:
                    values.append(("private memory of a worker", "MB", sum(map(private_mb, workers)) / len(workers)))
            values.append(("slowest health check while they load", "ms", slowest_health_ms(bench, repository)))
            for metric, unit, value in values:
                bench.note(
                    Measurement(
                        row=ROW, case=case, metric=metric, unit=unit, contender="tpy", baseline="tpy", round=turn, value=value
                    )
                )


def slowest_health_ms(bench: Bench, models: Path) -> float:
    """The longest answer of /v2/health/live and ready while all these models come to a server that polls."""
    repository = bench.fresh("polled")
    repository.mkdir()
    plan = TpyPlan(repository=repository, flags=("--model-control-mode=poll", "--repository-poll-secs=1"))
    with running(plan, bench.fresh("tpy.log")) as server:
        copied = repository / ".copied"  # hidden: no model yet
        shutil.copytree(models, copied)
        client = http.client.HTTPConnection(HOST, server.ports.http)
        for folder in sorted(copied.iterdir()):
            folder.rename(repository / folder.name)
        slowest_s, give_up_s = 0.0, time.monotonic() + LOADED_S_MAX
        while not _all_ready(server.ports.http):
            if time.monotonic() > give_up_s:
                raise RuntimeError("the models were not loaded in time")
            checks_s = time.monotonic() + LOOKS_S
            while (began_s := time.monotonic()) < checks_s:
                for path in ("/v2/health/live", "/v2/health/ready"):
                    client.request("GET", path)
                    client.getresponse().read()
                    slowest_s = max(slowest_s, time.monotonic() - began_s)
                    began_s = time.monotonic()
                time.sleep(0.002)
        client.close()
    return slowest_s * 1000


def _all_ready(port: int) -> bool:
    client = http.client.HTTPConnection(HOST, port)
    client.request("POST", "/v2/repository/index", b'{"ready": true}')
    count = len(json.loads(client.getresponse().read()))
    client.close()
    return count == COUNT


def private_mb(pid: int) -> float:
    """Memory of a process that it shares with no other one."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000
