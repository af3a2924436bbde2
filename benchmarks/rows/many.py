"""Fifty small models at once: seconds from the start of the process to READY, and the memory of an idle worker."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measurement import Measurement
from benchmarks.rows.start import ONNX_CONFIG
from benchmarks.servers.models import write_onnx_model, write_python_identity
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import running

ROW = "start to READY with 50 small models"
COUNT = 50


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
            for metric, unit, value in values:
                bench.note(
                    Measurement(
                        row=ROW, case=case, metric=metric, unit=unit, contender="tpy", baseline="tpy", round=turn, value=value
                    )
                )


def private_mb(pid: int) -> float:
    """Memory of a process that it shares with no other one."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000
