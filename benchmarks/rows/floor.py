"""The floor: what an epoll loop in C costs that reads the same request, copies its numbers and answers; and the system calls."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.load import Load, wrk
from benchmarks.rows.tiny import BASELINE, CASES, QUICK_CASES, VALUES, WARM_UP_S, Contender, measure_rounds
from benchmarks.servers.models import IDENTITY_INPUT, write_python_identity
from benchmarks.servers.plans import FloorPlan, TpyPlan, TritonPlan
from benchmarks.servers.process import Server, ServerPlan, running
from benchmarks.tensors import check_identity, json_request

_ROW = "floor, HTTP JSON, 16 floats"
_SOURCE = Path(__file__).parents[1] / "servers" / "floor.c"
_TOTAL = re.compile(r"^\s*100\.00\s+\S+\s+(?:\S+\s+)?(\d+)\s+(?:\d+\s+)?total$", re.MULTILINE)
"""The last line of a table of strace: its column of calls."""


def measure(bench: Bench) -> None:
    """The loop in C, alone and with a second process; tpy with a model in a worker; Triton."""
    program, compiler = bench.peers.wrk, shutil.which("cc")
    if program is None or compiler is None:
        bench.say("wrk or a C compiler is missing: row 'floor' is left out")
        return
    floor = bench.fresh("floor")
    build(compiler, floor)
    with contextlib.ExitStack() as stack:
        contenders = []

        def add(name: str, plan: ServerPlan) -> None:
            server = stack.enter_context(running(plan, bench.fresh(f"{plan.name}.log")))
            contenders.append(Contender(name, server, "identity"))

        for worker in (False, True):
            plan = FloorPlan(program=floor, worker=worker)
            add(plan.name, plan)
        for name in ("tpy", "triton"):
            repository = bench.fresh(name)
            write_python_identity(repository, "identity")
            if name == "tpy":
                add("tpy python worker", TpyPlan(repository=repository))
            elif bench.peers.triton is not None:
                add(BASELINE, TritonPlan(triton=bench.peers.triton, repository=repository))
        request = json_request("identity", IDENTITY_INPUT, VALUES)
        for contender in contenders:
            check_identity(contender.server.ports.http, request, VALUES)

        def drive(contender: Contender, connections: int, seconds: int) -> Load:
            return wrk.drive(program, contender.server.ports.http, request, connections=connections, seconds=seconds)

        for contender in contenders:
            drive(contender, 16, WARM_UP_S)
        cases = bench.effort.cases(CASES, QUICK_CASES)
        measure_rounds(bench, _ROW, contenders, cases, drive, whole_run=True)
        for connections in cases:
            for contender in contenders:
                calls = _calls_per_request(contender.server, partial(drive, contender, connections, 2))
                if calls is not None:
                    bench.note_each(
                        [("system calls of the server's processes", "a request", calls)],
                        row=_ROW,
                        case=f"{connections} connection{'s' * (connections > 1)}",
                        contender=contender.name,
                        baseline=BASELINE,
                        number=1,
                    )


def build(compiler: str, program: Path) -> None:
    """Compile the loop."""
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-D_GNU_SOURCE", str(_SOURCE), "-o", str(program)], check=True)


def calls_in(table: str) -> int | None:
    """All system calls in a table of `strace -c`; None if it is not such a table."""
    found = _TOTAL.search(table)
    return None if found is None else int(found[1])


def _calls_per_request(server: Server, drive: Callable[[], Load]) -> float | None:
    """The system calls of all its processes while it is driven, by strace, for each answer; None where strace cannot look."""
    tracer = shutil.which("strace")
    if tracer is None:
        return None
    attach = [argument for pid in server.family() for argument in ("-p", str(pid))]
    with subprocess.Popen([tracer, "-f", "-c", *attach], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as tracing:
        try:
            load = drive()
        finally:
            tracing.send_signal(signal.SIGINT)
            _, table = tracing.communicate(timeout=30)
    calls = calls_in(table)
    return None if calls is None else calls / load.answered
