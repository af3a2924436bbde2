"""Frontend processes: throughput, and who uses how much CPU time for a request, with 0 (none: all in one process), 1, 2 and more.

From the CPU times follows what a machine with enough cores can reach: every process has one interpreter lock, so the engine
answers at most 1 / (its CPU time per request), N frontend processes N / (theirs).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks import processes
from benchmarks.bench import Bench
from benchmarks.grpc_exchange import call
from benchmarks.load import Load, perf_analyzer, wrk
from benchmarks.rows.tiny import VALUES
from benchmarks.servers.models import IDENTITY_INPUT, write_builtin_identity, write_python_identity
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import Server, running
from benchmarks.servers.statistics import answered
from benchmarks.tensors import json_request

ROW = "frontend processes, 16 floats, 16 connections"
BASELINE = "0 processes"
_CONNECTIONS = 16
_MODULE = b"tpy.frontend_process"

Drive = Callable[[Server, str, int], Load]


class _Contender(msgspec.Struct, frozen=True):
    name: str
    server: Server


def measure(bench: Bench) -> None:
    """One server at a time is driven; all of them run."""
    drives: dict[str, Drive] = {}
    if (program := bench.peers.wrk) is not None:
        drives["HTTP JSON"] = lambda server, model, seconds: wrk.drive(
            program, server.ports.http, json_request(model, IDENTITY_INPUT, VALUES), connections=_CONNECTIONS, seconds=seconds
        )
    if (analyzer := bench.peers.perf_analyzer) is not None:
        shape = f"{IDENTITY_INPUT}:{VALUES.size}"
        drives["gRPC"] = lambda server, model, seconds: perf_analyzer.drive(
            analyzer, server.ports.grpc, model, shape=shape, protocol="grpc", concurrency=_CONNECTIONS, seconds=seconds
        )
    repository = bench.fresh("frontends")
    write_python_identity(repository, "thread", in_thread=True)
    write_builtin_identity(repository, "builtin")
    with contextlib.ExitStack() as stack:
        contenders = []
        for count in bench.effort.cases((0, 1, 2, 4), (0, 1, 2)):
            plan = TpyPlan(repository=repository, flags=(f"--frontend-processes={count}",))
            server = stack.enter_context(running(plan, bench.fresh(f"frontends-{count}.log")))
            contenders.append(_Contender(f"{count} process{'es' * (count != 1)}", server))
            for model in ("thread", "builtin"):
                call(server.ports.grpc, model, IDENTITY_INPUT, VALUES)
        for number in bench.rounds():
            for protocol, drive in drives.items():
                for model in ("thread", "builtin"):
                    for contender in contenders:
                        case = f"{protocol}, {'python model in a thread' if model == 'thread' else 'built-in model'}"
                        _measure_one(bench, contender, model, drive, case=case, number=number)


def _measure_one(bench: Bench, contender: _Contender, model: str, drive: Drive, *, case: str, number: int) -> None:
    server = contender.server
    frontends = [pid for pid in server.family() if _MODULE in _command(pid)]
    before = answered(server, model), processes.cpu_s([server.pid]), processes.cpu_s(frontends)
    load = drive(server, model, bench.effort.seconds)
    after = answered(server, model), processes.cpu_s([server.pid]), processes.cpu_s(frontends)
    count = after[0] - before[0]
    engine_us, frontends_us = ((late - early) / count * 1e6 for late, early in zip(after[1:], before[1:], strict=True))
    values = (
        ("throughput", "requests/s", load.per_s),
        ("p99 latency", "ms", load.latency_p99_ms),
        ("CPU of the server's process", "us/request", engine_us),
        ("CPU of the frontend processes", "us/request", frontends_us),
    )
    bench.note_each(values, row=ROW, case=case, contender=contender.name, baseline=BASELINE, number=number)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
