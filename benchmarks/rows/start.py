"""Start-up: seconds from the start of the process to READY with one small model, and memory when idle after that."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from benchmarks import processes
from benchmarks.bench import Bench
from benchmarks.measurement import Measurement
from benchmarks.servers.models import write_mlserver_identity, write_onnx_model, write_python_identity
from benchmarks.servers.plans import MlserverPlan, TpyPlan, TritonPlan
from benchmarks.servers.process import ServerPlan, running

ROW = "start to READY with one small model"
BASELINE = "Triton, python model"

_SETTLE_S = 1.0
ONNX_CONFIG = """\
backend: "onnxruntime"
max_batch_size: 16
input [ { name: "bytes" data_type: TYPE_INT32 dims: [ 2048 ] } ]
output [ { name: "target_label" data_type: TYPE_FP32 dims: [ 214 ] } ]
"""


class _Case(msgspec.Struct, frozen=True):
    name: str
    plan: ServerPlan


def measure(bench: Bench) -> None:
    """A fresh server each time."""
    cases = _cases(bench)
    for number in bench.rounds():
        for case in cases:
            with running(case.plan, bench.fresh(f"{case.plan.name}.log")) as server:
                time.sleep(_SETTLE_S)
                resident = [processes.memory(pid).resident for pid in server.family()]
                values = (
                    ("time", "s", server.ready_s - server.started_s),
                    ("CPU time", "s", server.cpu_s()),
                    ("resident when idle, server's process", "MB", resident[0] / 1e6),
                    ("resident when idle, sum of its processes", "MB", sum(resident) / 1e6),
                )
            for metric, unit, value in values:
                bench.note(
                    Measurement(
                        row=ROW,
                        case="",
                        metric=metric,
                        unit=unit,
                        contender=case.name,
                        baseline=BASELINE,
                        round=number,
                        value=value,
                    )
                )


def _cases(bench: Bench) -> Sequence[_Case]:
    onnx = bench.fresh("onnx")
    write_onnx_model(onnx, "magika", bench.models / "magika" / "1" / "model.onnx", ONNX_CONFIG)
    python = bench.fresh("python")
    write_python_identity(python, "identity")
    cases = [
        _Case("tpy, ONNX model", TpyPlan(repository=onnx)),
        _Case("tpy, python model", TpyPlan(repository=python)),
    ]
    if bench.peers.triton is not None:
        cases.append(_Case(BASELINE, TritonPlan(triton=bench.peers.triton, repository=python)))
    if bench.peers.mlserver is not None:
        folder = bench.fresh("mlserver")
        write_mlserver_identity(folder, "identity")
        cases.append(
            _Case("MLServer, python model", MlserverPlan(program=bench.peers.mlserver, repository=folder, model="identity"))
        )
    return cases
