"""Tiny requests: an identity model and 16 floats. What is measured is everything around the model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from benchmarks.bench import Bench
from benchmarks.grpc_exchange import call
from benchmarks.http_exchange import HttpRequest
from benchmarks.load import Load, keep_alive, perf_analyzer, wrk
from benchmarks.measurement import Measurement
from benchmarks.servers.models import (
    IDENTITY_INPUT,
    write_builtin_identity,
    write_mlserver_identity,
    write_python_identity,
)
from benchmarks.servers.plans import GrpclibPlan, MlserverPlan, TpyPlan, TritonPlan
from benchmarks.servers.process import Server, ServerPlan, running
from benchmarks.tensors import FloatArray, binary_request, check_identity, json_request

VALUES: FloatArray = np.arange(16, dtype=np.float32) * np.float32(0.25) + np.float32(0.125)
"""Exact in binary and short in decimal: every server writes the same digits, so formatting floats does not decide the row."""

LARGE: FloatArray = np.arange(3_000_000, dtype=np.float32)
"""12 MB."""

BASELINE = "Triton python"
MLSERVER = "MLServer"
CASES = (1, 16, 64)
QUICK_CASES = (1, 16)
_KEPT = (("python", "plain"), ("cached", "cached"))
WARM_UP_S = 1


class Contender(msgspec.Struct, frozen=True):
    """A model on a running server. `binary`: the server takes binary tensors over HTTP."""

    name: str
    server: Server
    model: str
    binary: bool = True


def measure_json(bench: Bench) -> None:
    """HTTP with JSON tensors, wrk; and the throughput again as multiples of MLServer's, from the same runs."""
    row = "HTTP JSON, 16 floats"
    _measure_wrk(bench, row, json_request, binary=False)
    for measurement in beside(bench.measurements, row, MLSERVER):
        bench.note(measurement)


def beside(measurements: Sequence[Measurement], row: str, baseline: str) -> list[Measurement]:
    """The throughputs of a row once more, as a row with another baseline; none where that was not measured. Contenders that the
    row has only for comparison are left out."""
    own = [one for one in measurements if one.row == row and one.metric == "throughput"]
    if all(one.contender != baseline for one in own):
        return []
    title = f"{row}, beside {baseline}"
    return [
        msgspec.structs.replace(one, row=title, baseline=baseline)
        for one in own
        if one.contender == baseline or one.contender.startswith("tpy ")
    ]


def measure_heads(bench: Bench) -> None:
    """HTTP with JSON tensors, each request with another head than the one before, wrk."""
    _measure_wrk(bench, "HTTP JSON, 16 floats, each with another head", json_request, binary=False, varied=True)


def measure_binary(bench: Bench) -> None:
    """HTTP with binary tensors, wrk."""
    _measure_wrk(bench, "HTTP binary, 16 floats", binary_request, binary=True)


def measure_connections(bench: Bench) -> None:
    """HTTP with JSON tensors, a new connection for each request, wrk."""

    def build(model: str, name: str, values: FloatArray) -> HttpRequest:
        request = json_request(model, name, values)
        return msgspec.structs.replace(request, headers={**request.headers, "Connection": "close"})

    _measure_wrk(bench, "HTTP JSON, 16 floats, a connection for each request", build, binary=False)


def measure_numbers(bench: Bench) -> None:
    """HTTP with JSON tensors of other sizes, wrk."""
    for count in (1_000, 10_000, 150_000):
        values = np.arange(count, dtype=np.float32) * np.float32(0.25) + np.float32(0.125)
        _measure_wrk(bench, f"HTTP JSON, {count:,} floats", json_request, binary=False, values=values, cases=(1, 8))


def measure_perf_analyzer(bench: Bench) -> None:
    """HTTP with binary tensors, perf_analyzer."""
    with fleet(bench) as contenders:
        able = [contender for contender in contenders if contender.binary]
        cases = bench.effort.cases((1, 16, 32), (16,))
        _measure_perf_analyzer(bench, "HTTP binary, 16 floats (perf_analyzer)", "http", able, VALUES, cases)


def measure_large(bench: Bench) -> None:
    """One request of 12 MB at a time, HTTP binary, our own load generator: perf_analyzer needs longer for one than a server."""
    with fleet(bench) as contenders:
        able = [contender for contender in contenders if contender.binary]
        requests = {contender.name: binary_request(contender.model, IDENTITY_INPUT, LARGE) for contender in able}
        for contender in able:
            check_identity(contender.server.ports.http, requests[contender.name], LARGE)

        def drive(contender: Contender, connections: int, seconds: int) -> Load:
            return keep_alive.drive(
                contender.server.ports.http, requests[contender.name], connections=connections, seconds=seconds
            )

        measure_rounds(bench, "HTTP binary, 12 MB in and out", able, (1,), drive, whole_run=True, megabytes=LARGE.nbytes / 1e6)


def measure_grpc(bench: Bench) -> None:
    """gRPC, perf_analyzer: tiny tensors, and one of 12 MB."""
    with fleet(bench) as contenders, running(GrpclibPlan(), bench.fresh("grpclib.log")) as grpclib:
        able = [contender for contender in contenders if contender.binary]
        able.append(Contender("grpclib on asyncio", grpclib, "identity"))
        for contender in able:
            for values in (VALUES, LARGE):
                call(contender.server.ports.grpc, contender.model, IDENTITY_INPUT, values)
        cases = bench.effort.cases((1, 16, 32, 64), (16,))
        _measure_perf_analyzer(bench, "gRPC, 16 floats (perf_analyzer)", "grpc", able, VALUES, cases)
        _measure_perf_analyzer(bench, "gRPC, 12 MB in and out (perf_analyzer)", "grpc", able, LARGE, (1,))


def measure_cache(bench: Bench) -> None:
    """One request again and again, HTTP binary, wrk: a python model whose answers are kept, beside one whose are not."""
    program = bench.peers.wrk
    if program is None:
        bench.say("wrk is missing: row 'response cache' is left out")
        return
    flags = ("--cache-config=local,size=16777216",)
    with contextlib.ExitStack() as stack:
        repository = bench.fresh("cache")
        write_python_identity(repository, "cached", cached=True)
        write_python_identity(repository, "plain")
        plans: list[ServerPlan] = [TpyPlan(repository=repository, flags=flags)]
        if bench.peers.triton is not None:
            plans.append(TritonPlan(triton=bench.peers.triton, repository=repository, flags=flags))
        contenders = []
        for plan in plans:
            server = stack.enter_context(running(plan, bench.fresh(f"cache-{plan.name}.log")))
            title = "Triton" if plan.name == "triton" else plan.name
            contenders += [Contender(f"{title} {how}", server, model) for how, model in _KEPT]
        requests = {contender.name: binary_request(contender.model, IDENTITY_INPUT, VALUES) for contender in contenders}
        for contender in contenders:
            check_identity(contender.server.ports.http, requests[contender.name], VALUES)

        def drive(contender: Contender, connections: int, seconds: int) -> Load:
            port = contender.server.ports.http
            return wrk.drive(program, port, requests[contender.name], connections=connections, seconds=seconds)

        measure_rounds(bench, "response cache, HTTP binary, 16 floats", contenders, (1, 16), drive, whole_run=True)


def _measure_perf_analyzer(
    bench: Bench, row: str, protocol: str, contenders: Sequence[Contender], values: FloatArray, cases: Sequence[int]
) -> None:
    program = bench.peers.perf_analyzer
    if program is None:
        bench.say(f"perf_analyzer is missing: row '{row}' is left out")
        return
    shape = f"{IDENTITY_INPUT}:{values.size}"

    def drive(contender: Contender, concurrency: int, seconds: int) -> Load:
        ports = contender.server.ports
        port = ports.grpc if protocol == "grpc" else ports.http
        return perf_analyzer.drive(
            program, port, contender.model, shape=shape, protocol=protocol, concurrency=concurrency, seconds=seconds
        )

    megabytes = values.nbytes / 1e6 if values is LARGE else None
    measure_rounds(bench, row, contenders, cases, drive, whole_run=False, megabytes=megabytes)


def _measure_wrk(
    bench: Bench,
    row: str,
    build: Callable[[str, str, FloatArray], HttpRequest],
    *,
    binary: bool,
    values: FloatArray = VALUES,
    cases: Sequence[int] = CASES,
    varied: bool = False,
) -> None:
    program = bench.peers.wrk
    if program is None:
        bench.say(f"wrk is missing: row '{row}' is left out")
        return
    with fleet(bench) as contenders:
        able = [contender for contender in contenders if contender.binary or not binary]
        requests = {contender.name: build(contender.model, IDENTITY_INPUT, values) for contender in able}
        for contender in able:
            check_identity(contender.server.ports.http, requests[contender.name], values)

        def drive(contender: Contender, connections: int, seconds: int) -> Load:
            port = contender.server.ports.http
            request = requests[contender.name]
            return wrk.drive(program, port, request, connections=connections, seconds=seconds, varied=varied)

        for contender in able:
            drive(contender, 16, WARM_UP_S)
        measure_rounds(bench, row, able, bench.effort.cases(cases, QUICK_CASES), drive, whole_run=True)


def measure_rounds(
    bench: Bench,
    row: str,
    contenders: Sequence[Contender],
    cases: Sequence[int],
    drive: Callable[[Contender, int, int], Load],
    *,
    whole_run: bool,
    megabytes: float | None = None,
    baseline: str = BASELINE,
) -> None:
    """Interleaved. CPU time per request only when `whole_run`: when the generator reports every request that it sent. `megabytes`
    is the size of a request's tensor, where throughput is to be told in MB/s too."""
    for number in bench.rounds():
        for connections in cases:
            for contender in contenders:
                measure_once(
                    bench,
                    row,
                    contender,
                    connections,
                    drive,
                    number=number,
                    whole_run=whole_run,
                    megabytes=megabytes,
                    baseline=baseline,
                )


def measure_once(
    bench: Bench,
    row: str,
    contender: Contender,
    connections: int,
    drive: Callable[[Contender, int, int], Load],
    *,
    number: int,
    whole_run: bool = True,
    megabytes: float | None = None,
    baseline: str = BASELINE,
) -> None:
    """Drives one contender with N connections in round `number`, and keeps its values."""
    before_s = contender.server.cpu_s()
    load = drive(contender, connections, bench.effort.seconds)
    cpu_us = (contender.server.cpu_s() - before_s) / load.answered * 1e6
    values = [("throughput", "requests/s", load.per_s), ("p99 latency", "ms", load.latency_p99_ms)]
    if megabytes is not None:
        values.append(("data in, and as much out", "MB/s", load.per_s * megabytes))
    if whole_run:
        values.append(("CPU of the server's processes", "us/request", cpu_us))
    case = f"{connections} connection{'s' * (connections > 1)}"
    bench.note_each(values, row=row, case=case, contender=contender.name, baseline=baseline, number=number)


@contextlib.contextmanager
def fleet(bench: Bench, flags: tuple[str, ...] = ()) -> Iterator[Sequence[Contender]]:
    """Every server that is installed, running and ready, with its identity models; all run at once, one is driven at a time.
    `flags` are for tpy."""
    with contextlib.ExitStack() as stack:

        def launch(plan: ServerPlan) -> Server:
            return stack.enter_context(running(plan, bench.fresh(f"{plan.name}.log")))

        repository = bench.fresh("tpy")
        write_python_identity(repository, "worker")
        write_python_identity(repository, "thread", in_thread=True)
        write_builtin_identity(repository, "builtin")
        tpy = launch(TpyPlan(repository=repository, flags=flags))
        contenders = [
            Contender("tpy python worker", tpy, "worker"),
            Contender("tpy python thread", tpy, "thread"),
            Contender("tpy built-in", tpy, "builtin"),
        ]
        if bench.peers.triton is not None:
            repository = bench.fresh("triton")
            write_python_identity(repository, "identity")
            contenders.append(
                Contender(BASELINE, launch(TritonPlan(triton=bench.peers.triton, repository=repository)), "identity")
            )
        if bench.peers.mlserver is not None:
            repository = bench.fresh("mlserver")
            write_mlserver_identity(repository, "identity")
            server = launch(MlserverPlan(program=bench.peers.mlserver, repository=repository, model="identity"))
            contenders.append(Contender(MLSERVER, server, "identity", binary=False))
        yield contenders
