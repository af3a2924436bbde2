"""Memory: how much a large tensor costs beyond the idle server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from benchmarks import processes
from benchmarks.bench import Bench
from benchmarks.grpc_exchange import call
from benchmarks.load import keep_alive
from benchmarks.measurement import Measurement
from benchmarks.servers.models import IDENTITY_INPUT, write_builtin_identity, write_python_identity
from benchmarks.servers.plans import TpyPlan, TritonPlan
from benchmarks.servers.process import Server, ServerPlan, running
from benchmarks.tensors import FloatArray, binary_request, check_identity

ROW = "memory, one 12 MB FP32 tensor in and out"
BASELINE = "Triton python"
MODEL = "identity"
VALUES: FloatArray = np.arange(3_000_000, dtype=np.float32)

_SETTLE_S = 0.5
_WARM_UP_REQUESTS = 50
_REPEATS = 10


class _Case(msgspec.Struct, frozen=True):
    name: str
    plan: ServerPlan


Send = Callable[[Server, FloatArray, int], None]
"""Sends values to the model this many times, one after the other."""


def measure(bench: Bench) -> None:
    """HTTP. A fresh server for each contender and round."""
    _measure(bench, f"{ROW}, HTTP binary", _send_http)


def measure_grpc(bench: Bench) -> None:
    """The same over gRPC."""
    _measure(bench, f"{ROW}, gRPC", _send_grpc)


def _measure(bench: Bench, row: str, send: Send) -> None:
    for number in bench.rounds():
        for case in _cases(bench):
            with running(case.plan, bench.fresh(f"{case.plan.name}.log")) as server:
                _measure_server(bench, row, case.name, server, number, send)


def _send_http(server: Server, values: FloatArray, times: int) -> None:
    request = binary_request(MODEL, IDENTITY_INPUT, values)
    keep_alive.drive(server.ports.http, request, connections=1, seconds=60, requests=times)


def _send_grpc(server: Server, values: FloatArray, times: int) -> None:
    call(server.ports.grpc, MODEL, IDENTITY_INPUT, values, times=times)


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


def _measure_server(bench: Bench, row: str, contender: str, server: Server, number: int, send: Send) -> None:
    send(server, VALUES[:16], _WARM_UP_REQUESTS)
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
                    row=row,
                    case=case,
                    metric=f"peak above idle, {metric}",
                    unit="x tensor",
                    contender=contender,
                    baseline=BASELINE,
                    round=number,
                    value=size / VALUES.nbytes,
                )
            )

    send(server, VALUES, 1)
    note_peak("one request")
    send(server, VALUES, _REPEATS)
    note_peak(f"{_REPEATS} more, one after the other")
    check_identity(server.ports.http, binary_request(MODEL, IDENTITY_INPUT, VALUES), VALUES)
