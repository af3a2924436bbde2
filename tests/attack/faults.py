"""Faults around the server: descriptors, updates, a Redis, handshakes, and labels of metrics."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.chaos.models import python_config
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder

from .arena import Arena, Outcome, measured, serving

_DESCRIPTORS = 100
_HANDSHAKES = 300
_HALF_HANDSHAKES = 1500
_UPDATES_S = 8.0
_CERTIFICATES = Path(__file__).parents[1] / "frontends" / "grpc" / "transport" / "certificates"

_GENERATION = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array([{number}], np.float32))]) for _ in requests]
"""

_GENERATION_CONFIG = """
backend: "python"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "labels.txt" } ]
"""

_METRICS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(name="users", description="users", kind=pb_utils.MetricFamily.COUNTER)
        self.kept = []

    def execute(self, requests):
        for request in requests:
            for number in request.inputs()[0].as_numpy().ravel():
                try:
                    self.kept.append(self.family.Metric(labels={"user": str(number) + 200 * "x"}))
                    self.kept[-1].increment(1)
                except Exception as error:
                    pass
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]
"""


def no_descriptors(folder: Path) -> Outcome:
    """More connections to each port than the server may have descriptors; what it has is served, the log says it in one line."""
    with serving(folder, limits=f"&& ulimit -n {_DESCRIPTORS}") as arena:
        begin = len(arena.server.log)
        with measured(arena) as outcome, ExitStack() as stack:
            for address in (arena.server.grpc, arena.server.http):
                for _ in range(_DESCRIPTORS):
                    stack.enter_context(_connection(address))
            arena.within(2.0, lambda: False)
        said = arena.server.log[begin:]
        outcome.note(f"{said.count('Traceback')} tracebacks and {len(said.splitlines())} lines in the log")
        outcome.wrong += said.count("Traceback")
        arena.infer("affine", factor=2.0)
    return outcome


@contextmanager
def _connection(address: str) -> Iterator[socket.socket]:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        yield connection


def update_while_decoding(folder: Path) -> Outcome:
    """Large bodies for a model that is replaced again and again: value and label of an answer are of the same generation."""

    def write(repository: Path) -> None:
        _write_generation(repository, 0)

    with serving(folder, "--model-control-mode=explicit", "--load-model=*", write=write) as arena:
        stop = threading.Event()
        counts = {"answers": 0, "refused": 0}
        with measured(arena) as outcome:
            threads = [threading.Thread(target=_classify, args=(arena, stop, counts)) for _ in range(3)]
            for thread in threads:
                thread.start()
            until = time.monotonic() + _UPDATES_S
            updates = 0
            while time.monotonic() < until:
                updates += 1
                _write_generation(arena.repository, updates)
                arena.ask("POST", "/v2/repository/models/generation/load", {})
            stop.set()
            for thread in threads:
                thread.join()
        outcome.note(f"{updates} updates, {counts['answers']} answers, {counts['refused']} refused")
    return outcome


def _write_generation(repository: Path, number: int) -> None:
    folder = ModelFolder(repository, "generation")
    folder.file("labels.txt", f"{number}.000000\n").python(_GENERATION.replace("{number}", f"{number}.0"))
    folder.config(f"{_GENERATION_CONFIG}# {number}\n")


def _classify(arena: Arena, stop: threading.Event, counts: dict[str, int]) -> None:
    values = [float(number) for number in range(250_000)]
    tensor = {"name": "INPUT", "shape": [len(values)], "datatype": "FP32", "data": values}
    body = json.dumps({"inputs": [tensor], "outputs": [{"name": "OUTPUT", "parameters": {"classification": 1}}]}).encode()
    while not stop.is_set():
        status, answer = arena.ask("POST", "/v2/models/generation/infer", body)
        if status != 200:
            counts["refused"] += 1
            arena.outcome.lost += 1
            continue
        counts["answers"] += 1
        value, _, label = json.loads(answer)["outputs"][0]["data"][0].split(":")
        arena.outcome.wrong += float(value) != float(label)


def strange_redis(folder: Path, *, poisoned: bool) -> Outcome:
    """A Redis that answers nonsense, or nothing: requests of a cached model are answered all the same."""

    def write(repository: Path) -> None:
        ModelFolder(repository, "kept").config(AFFINE_CONFIG + "response_cache { enable: true }\n").affine(1, 2.0)

    with _redis(b"$400000000\r\nxx" if poisoned else b"") as port:
        flag = f"--cache-config=redis,host=127.0.0.1,port={port}"
        with serving(folder, flag, write=write) as arena, measured(arena) as outcome:
            slowest = 0.0
            for number in range(20):
                began = time.monotonic()
                arena.infer("kept", (float(number), 1.0, 2.0), factor=2.0, timeout_s=5.0)
                slowest = max(slowest, time.monotonic() - began)
            outcome.note(f"slowest answer of a cached model {1000 * slowest:.0f} ms")
    return outcome


@contextmanager
def _redis(answer: bytes) -> Iterator[int]:
    """Listens, reads, and answers each piece with these bytes."""

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while connection.recv(65536):
                    connection.sendall(answer)
            except OSError:
                pass

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def stalled_handshakes(folder: Path) -> Outcome:
    """TLS handshakes on the gRPC port that stop after some bytes: another client gets through."""
    flags = (
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={_CERTIFICATES / 'server.pem'}",
        f"--grpc-server-key={_CERTIFICATES / 'server.key'}",
        f"--grpc-root-cert={_CERTIFICATES / 'ca.pem'}",
    )
    with serving(folder, *flags) as arena, measured(arena) as outcome, ExitStack() as stack:
        for number in range(_HANDSHAKES):
            connection = stack.enter_context(_connection(arena.server.grpc))
            connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[: number % 12])
        began = time.monotonic()
        context = ssl.create_default_context(cafile=str(_CERTIFICATES / "ca.pem"))
        context.check_hostname = False
        context.set_alpn_protocols(["h2"])
        try:
            with _connection(arena.server.grpc) as plain, context.wrap_socket(plain) as secure:
                outcome.note(
                    f"{_HANDSHAKES} stalled, another took {1000 * (time.monotonic() - began):.0f} ms ({secure.version()})"
                )
        except OSError as error:
            outcome.lost += 1
            outcome.note(f"another got {error!r}")
    return outcome


def half_handshakes(folder: Path) -> Outcome:
    """Clients that send the first message of TLS all at once, which makes the server sign, and go."""
    flags = (
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={_CERTIFICATES / 'server.pem'}",
        f"--grpc-server-key={_CERTIFICATES / 'server.key'}",
        f"--grpc-root-cert={_CERTIFICATES / 'ca.pem'}",
    )
    context = ssl.create_default_context(cafile=str(_CERTIFICATES / "ca.pem"))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    with serving(folder, *flags) as arena, measured(arena) as outcome:
        for _ in range(4):
            with ExitStack() as stack:
                connections = [stack.enter_context(_connection(arena.server.grpc)) for _ in range(_HALF_HANDSHAKES)]
                arena.within(1.0, lambda: False)  # until all are accepted
                # They are there together when it goes on.
                arena.server.process.send_signal(signal.SIGSTOP)
                for connection in connections:
                    connection.sendall(hello)
                arena.server.process.send_signal(signal.SIGCONT)
                outcome.lost += not connections[-1].recv(1)
        arena.infer("affine", factor=2.0)
    return outcome


def metric_labels(folder: Path, *, labels: int) -> Outcome:
    """A model that makes a metric for each value that a request brings."""

    def write(repository: Path) -> None:
        ModelFolder(repository, "labels").config(python_config("-1", batch=0, count=1)).python(_METRICS)

    with serving(folder, write=write) as arena, measured(arena) as outcome:
        for begin in range(0, labels, 500):
            values = [float(begin + number) for number in range(500)]
            tensor = {"name": "INPUT", "shape": [500], "datatype": "FP32", "data": values}
            status, _ = arena.ask("POST", "/v2/models/labels/infer", {"inputs": [tensor]})
            outcome.lost += status != 200
        began = time.monotonic()
        host, port = arena.server.metrics.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read()
        connection.close()
        took_ms = 1000 * (time.monotonic() - began)
        outcome.note(f"{labels} sent, {page.count(b'user=')} kept, a page of {len(page) / 1e6:.1f} MB in {took_ms:.0f} ms")
    return outcome


def nothing(folder: Path) -> Outcome:
    """No attack: what the machine itself costs."""
    with serving(folder) as arena, measured(arena) as outcome:
        arena.within(3.0, lambda: False)
    return outcome
