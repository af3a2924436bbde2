"""Backends in C: an identity backend that was compiled for Triton's interface, beside the built-in one and a Python model."""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.load import Load, wrk
from benchmarks.rows.tiny import CASES, QUICK_CASES, VALUES, WARM_UP_S, Contender, measure_rounds
from benchmarks.servers.models import (
    IDENTITY_INPUT,
    write_builtin_identity,
    write_compiled_identity,
    write_python_identity,
)
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import running
from benchmarks.tensors import binary_request, check_identity
from tpy.errors import TpyError
from tpy_native.building import compile_plugin

ROWS = {
    "backend in C in the server's process, HTTP binary, 16 floats": ("tpy built-in", "tpy C, in process"),
    "backend in C in a worker, HTTP binary, 16 floats": ("tpy python worker", "tpy C, worker"),
}
"""Row -> what it is compared with, and the backend in C."""

SOURCE = Path(__file__).parents[2] / "tests" / "native" / "plugins" / "identity.c"


def measure(bench: Bench) -> None:
    """By wrk, interleaved. Nothing without a compiler."""
    program = bench.peers.wrk
    if program is None:
        bench.say("wrk is missing: the rows of backends in C are left out")
        return
    library = bench.fresh("compiled.so")
    try:
        compile_plugin(SOURCE, library)
    except TpyError as error:
        bench.say(f"compiled: left out: {error.message}")
        return
    repository = bench.fresh("compiled")
    write_builtin_identity(repository, "builtin")
    write_python_identity(repository, "python")
    write_compiled_identity(repository, "c_in_process", library, in_process=True)
    write_compiled_identity(repository, "c_in_worker", library)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(running(TpyPlan(repository=repository), bench.fresh("compiled.log")))
        models = {
            "tpy built-in": "builtin",
            "tpy C, in process": "c_in_process",
            "tpy python worker": "python",
            "tpy C, worker": "c_in_worker",
        }
        requests = {name: binary_request(model, IDENTITY_INPUT, VALUES) for name, model in models.items()}

        def drive(contender: Contender, connections: int, seconds: int) -> Load:
            port = contender.server.ports.http
            return wrk.drive(program, port, requests[contender.name], connections=connections, seconds=seconds)

        for row, names in ROWS.items():
            contenders = [Contender(name, server, models[name]) for name in names]
            for contender in contenders:
                check_identity(server.ports.http, requests[contender.name], VALUES)
                drive(contender, 16, WARM_UP_S)
            cases = bench.effort.cases(CASES, QUICK_CASES)
            measure_rounds(bench, row, contenders, cases, drive, whole_run=True, baseline=names[0])
