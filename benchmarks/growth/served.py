"""Costs of a request to a whole server, while one thing grows: batches, clients, tensors, models, connections."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks import processes
from benchmarks.bench import Bench
from benchmarks.growth.curves import Point
from benchmarks.growth.models import ROW_FLOATS, write_rows_identity
from benchmarks.http_exchange import AnswerReader, HttpRequest
from benchmarks.load import Load, LoadFailed, keep_alive, perf_analyzer, wrk
from benchmarks.rows.tiny import VALUES
from benchmarks.servers.models import IDENTITY_INPUT, write_builtin_identity, write_python_identity
from benchmarks.servers.peers import PerfAnalyzer
from benchmarks.servers.plans import TpyPlan, TritonPlan
from benchmarks.servers.process import HOST, Server, running
from benchmarks.servers.statistics import answered
from benchmarks.tensors import FloatArray, ask, binary_request

BATCHES = (1, 2, 4, 8, 16, 32, 64)
BATCH_CLIENTS = 64
"""More than the largest batch has rows would only wait longer."""

CONNECTIONS_BUSY = 16
CONCURRENCIES = (1, 4, 16, 64, 256)
SIZES = (64, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
MODELS = (1, 10, 100, 1000)
CONNECTIONS = (1, 10, 100, 500, 1000, 2000)
POLL_FLAGS = ("--model-control-mode=poll", "--repository-poll-secs=1")

_OVER_GRPC = ("builtin", "identity")
"""Of tpy and of Triton: what gRPC adds is the same for every model of a server."""

_REST_S = 5.0
_SETTLE_S = 1.0
_ANSWER_S_MAX = 60.0

Drive = Callable[[], Load]


def batches(bench: Bench) -> Iterator[Point]:
    """Rows that come together in a request, and rows that the server puts together."""
    sizes = bench.effort.cases(BATCHES, (1, 8, 64))
    repository = bench.fresh("batches")
    write_rows_identity(repository, "rows", batch=max(sizes), together=False)
    for size in sizes:
        write_rows_identity(repository, f"up_to_{size}", batch=size, together=True)
    with running(TpyPlan(repository=repository), bench.fresh("batches.log")) as server:
        for _ in bench.rounds():
            for size in sizes:
                many = binary_request("rows", IDENTITY_INPUT, np.ones((size, ROW_FLOATS), np.float32))
                yield Point("batch", "rows in each request, built-in", size, _http_us(bench, server, "rows", many, 16))
                model = f"up_to_{size}"
                one = binary_request(model, IDENTITY_INPUT, np.ones((1, ROW_FLOATS), np.float32))
                name = f"single rows, the server joins up to this many, python worker, {BATCH_CLIENTS} clients"
                yield Point("batch", name, size, _http_us(bench, server, model, one, BATCH_CLIENTS))


def concurrency(bench: Bench) -> Iterator[Point]:
    """Clients that each wait for their answer."""
    with _identities(bench, "concurrency") as models:
        for _ in bench.rounds():
            for count in bench.effort.cases(CONCURRENCIES, (1, 16, 256)):
                for name, server, model in models:
                    request = binary_request(model, IDENTITY_INPUT, VALUES)
                    yield Point("concurrency", name, count, _http_us(bench, server, model, request, count))


def sizes(bench: Bench) -> Iterator[Point]:
    """One tensor of that size each way, one request at a time; over HTTP by our own load generator."""
    with _identities(bench, "sizes") as models:
        for _ in bench.rounds():
            for size in bench.effort.cases(SIZES, (SIZES[0], 1 << 18, SIZES[-1])):
                values: FloatArray = np.ones(size // 4, np.float32)
                for name, server, model in models:
                    request = binary_request(model, IDENTITY_INPUT, values)
                    yield Point("size", name, size, _size_us(bench, server, model, request))
                program = bench.peers.perf_analyzer
                if program is not None:
                    for name, server, model in models:
                        if model in _OVER_GRPC:
                            yield Point("size", f"{name}, gRPC", size, _grpc_us(bench, program, server, model, size))


def models(bench: Bench) -> Iterator[Point]:
    """Built-in models that do nothing while one of them is busy; the repository is polled each second."""
    for count in bench.effort.cases(MODELS, (1, 100)):
        repository = bench.fresh(f"models-{count}")
        for number in range(count):
            write_builtin_identity(repository, f"model{number}")
        name = "tpy, built-in models"
        with running(TpyPlan(repository=repository, flags=POLL_FLAGS), bench.fresh(f"models-{count}.log")) as server:
            request = binary_request("model0", IDENTITY_INPUT, VALUES)
            for _ in bench.rounds():
                for clients in (1, CONNECTIONS_BUSY):
                    series = f"{clients} client{'s' * (clients > 1)}"
                    yield Point("models", series, count, _http_us(bench, server, "model0", request, clients))
            time.sleep(_SETTLE_S)
            before_s = server.cpu_s()
            time.sleep(_REST_S)
            yield Point("models-idle", name, count, (server.cpu_s() - before_s) / _REST_S * 1e3)
            yield Point("models-memory", name, count, _resident_mb(server))


def connections(bench: Bench) -> Iterator[Point]:
    """Connections that are open and silent while 16 others are busy; and as many busy ones."""
    counts = bench.effort.cases(CONNECTIONS, (1, 100, 2000))
    repository = bench.fresh("connections")
    write_builtin_identity(repository, "builtin")
    request = binary_request("builtin", IDENTITY_INPUT, VALUES)
    for count in counts:
        with running(TpyPlan(repository=repository), bench.fresh(f"connections-{count}.log")) as server:
            with idle_connections(server.ports.http, request, count):
                yield Point("connections-memory", "tpy", count, _resident_mb(server))
                for _ in bench.rounds():
                    silent_us = _http_us(bench, server, "builtin", request, CONNECTIONS_BUSY)
                    yield Point("connections", f"silent, {CONNECTIONS_BUSY} others busy", count, silent_us)
            for _ in bench.rounds():
                yield Point("connections", "all busy", count, _http_us(bench, server, "builtin", request, count))


@contextlib.contextmanager
def idle_connections(port: int, request: HttpRequest, count: int) -> Iterator[None]:
    """This many connections, each of which has had one answer. Raises LoadFailed when one of them was closed meanwhile."""
    with contextlib.ExitStack() as stack:
        message = request.to_bytes(f"{HOST}:{port}")
        opened = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection((HOST, port), timeout=_ANSWER_S_MAX))
            one.sendall(message)
            reader = AnswerReader()
            while not reader.feed(memoryview(one.recv(65_536))):
                pass
            opened.append(one)
        yield
        for one in opened:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if not one.recv(1):
                    raise LoadFailed(f"the server closed one of {count} silent connections")


@contextlib.contextmanager
def _identities(bench: Bench, name: str) -> Iterator[Sequence[tuple[str, Server, str]]]:
    """Identity models of every kind, and Triton's where it is installed: series, server, model."""
    with contextlib.ExitStack() as stack:
        repository = bench.fresh(name)
        write_python_identity(repository, "worker")
        write_python_identity(repository, "thread", in_thread=True)
        write_builtin_identity(repository, "builtin")
        server = stack.enter_context(running(TpyPlan(repository=repository), bench.fresh(f"{name}.log")))
        models = [
            ("tpy python worker", server, "worker"),
            ("tpy python thread", server, "thread"),
            ("tpy built-in", server, "builtin"),
        ]
        if bench.peers.triton is not None:
            repository = bench.fresh(f"{name}-triton")
            write_python_identity(repository, "identity")
            plan = TritonPlan(triton=bench.peers.triton, repository=repository)
            models.append(("Triton python", stack.enter_context(running(plan, bench.fresh(f"{name}-triton.log"))), "identity"))
        for _, server, model in models:
            ask(server.ports.http, binary_request(model, IDENTITY_INPUT, VALUES))
        yield models


def _http_us(bench: Bench, server: Server, model: str, request: HttpRequest, clients: int) -> float:
    """By wrk, or by our own load generator where there is no wrk."""
    program, port, seconds = bench.peers.wrk, server.ports.http, bench.effort.seconds
    if program is None:
        return _cpu_us(server, model, lambda: keep_alive.drive(port, request, connections=clients, seconds=seconds))
    return _cpu_us(server, model, lambda: wrk.drive(program, port, request, connections=clients, seconds=seconds))


def _size_us(bench: Bench, server: Server, model: str, request: HttpRequest) -> float:
    seconds = bench.effort.seconds
    return _cpu_us(server, model, lambda: keep_alive.drive(server.ports.http, request, connections=1, seconds=seconds))


def _grpc_us(bench: Bench, program: PerfAnalyzer, server: Server, model: str, size: int) -> float:
    shape, seconds = f"{IDENTITY_INPUT}:{size // 4}", bench.effort.seconds

    def drive() -> Load:
        return perf_analyzer.drive(
            program, server.ports.grpc, model, shape=shape, protocol="grpc", concurrency=1, seconds=seconds
        )

    return _cpu_us(server, model, drive)


def _cpu_us(server: Server, model: str, drive: Drive) -> float:
    """CPU time of the server's processes for each request that the server itself counted."""
    before, before_s = answered(server, model), server.cpu_s()
    drive()
    taken_s = server.cpu_s() - before_s
    return taken_s / max(1, answered(server, model) - before) * 1e6


def _resident_mb(server: Server) -> float:
    return sum(processes.memory(pid).resident for pid in server.family()) / 1e6
