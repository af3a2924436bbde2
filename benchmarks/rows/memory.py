"""Memory: how much a large tensor costs beyond the idle server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec
import numpy as np

from benchmarks import processes
from benchmarks.bench import Bench
from benchmarks.load import keep_alive
from benchmarks.measurement import Measurement
from benchmarks.servers.models import IDENTITY_INPUT, write_builtin_identity, write_python_identity
from benchmarks.servers.plans import TpyPlan, TritonPlan
from benchmarks.servers.process import Server, ServerPlan, running
from benchmarks.tensors import FloatArray, binary_request, check_identity

ROW = "memory, one 12 MB FP32 tensor in and out, HTTP binary"
BASELINE = "Triton python"
MODEL = "identity"
VALUES: FloatArray = np.arange(3_000_000, dtype=np.float32)

_SETTLE_S = 0.5
_WARM_UP_REQUESTS = 50
_REPEATS = 10


class _Case(msgspec.Struct, frozen=True):
    name: str
    plan: ServerPlan


def measure(bench: Bench) -> None:
    """A fresh server for each contender and round."""
    for number in bench.rounds():
        for case in _cases(bench):
            with running(case.plan, bench.fresh(f"{case.plan.name}.log")) as server:
                _measure_server(bench, case.name, server, number)


def _cases(bench: Bench) -> Iterator[_Case]:
    repository = bench.fresh("worker")
    write_python_identity(repository, MODEL)
    yield _Case("tpy python worker", TpyPlan(repository=repository))
    if bench.peers.triton is not None:
        yield _Case(BASELINE, TritonPlan(triton=bench.peers.triton, repository=repository))
    repository = bench.fresh("thread")
    write_python_identity(repository, MODEL, in_thread=True)
    yield _Case("tpy python thread", TpyPlan(repository=repository))
    repository = bench.fresh("builtin")
    write_builtin_identity(repository, MODEL)
    yield _Case("tpy built-in", TpyPlan(repository=repository))


def _measure_server(bench: Bench, contender: str, server: Server, number: int) -> None:
    port = server.ports.http
    small = binary_request(MODEL, IDENTITY_INPUT, VALUES[:16])
    large = binary_request(MODEL, IDENTITY_INPUT, VALUES)
    keep_alive.drive(port, small, connections=1, seconds=30, requests=_WARM_UP_REQUESTS)
    time.sleep(_SETTLE_S)
    members = server.family()
    were_reset = [processes.reset_peak(pid) for pid in members]
    if not all(were_reset):
        bench.say("this system does not let peaks be reset: they count from each process's start")
    idle = [processes.memory(pid) for pid in members]

    def note_peak(case: str) -> None:
        now = [processes.memory(pid) for pid in members]
        sizes = (
            ("server's process", processes.rise(idle[0], now[0])),
            ("all its processes, shared memory once", processes.joint_rise(idle, now)),
        )
        for metric, size in sizes:
            bench.note(
                Measurement(
                    row=ROW,
                    case=case,
                    metric=f"peak above idle, {metric}",
                    unit="x tensor",
                    contender=contender,
                    baseline=BASELINE,
                    round=number,
                    value=size / VALUES.nbytes,
                )
            )

    keep_alive.drive(port, large, connections=1, seconds=60, requests=1)
    note_peak("one request")
    keep_alive.drive(port, large, connections=1, seconds=60, requests=_REPEATS)
    note_peak(f"{_REPEATS} more, one after the other")
    check_identity(port, large, VALUES)
