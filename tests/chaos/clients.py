"""Clients that are a burden: too many, idle, and those that send half of a request and stay."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until

from .load import loading
from .models import write_models
from .skipped import Skipped

_IDLE = 2000
_HALF = 150
"""Connections for each kind of half a request."""

_DESCRIPTORS = 160
_GET = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_HALVES = {
    "nothing": ("http", b""),
    "half a request line": ("http", b"POST /v2/models/affine/in"),
    "half of the headers": ("http", b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: x\r\nContent-"),
    "half of the body": ("http", b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"),
    "half of a chunk": ("http", b"POST /v2/models/affine/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n{"),
    "half of a preface": ("grpc", _PREFACE[:10]),
    "half of a frame": ("grpc", _PREFACE + b"\x00\x00\x06\x04\x00\x00\x00"),
    "half of a header block": (
        "grpc",
        _PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\x00\x00\x02\x01\x00\x00\x00\x00\x01\x83\x86",
    ),
}


def half_requests(folder: Path) -> str:
    """Many of each kind, while others are served; they are no hindrance to the stop either."""
    write_models(folder / "models")
    kinds = len(_HALVES)
    _want_files(_HALF * kinds)
    with ServerProcess(repositories=[folder / "models"]) as server, ExitStack() as stack:
        with loading(server) as load:
            for address, half in _HALVES.values():
                for _ in range(_HALF):
                    connection = stack.enter_context(_connection(server, address))
                    connection.sendall(half)
            load.ledger.wait_answered(500)
            load.ledger.wait_answered(20, "affine", "copy", "chain", "sum", "count")
        load.ledger.check()
        assert server.stop() == 0
    return f"{_HALF * kinds:,} halves of {kinds} kinds: {load.ledger}"


def idle(folder: Path) -> str:
    """Connections that were answered once and then say nothing."""
    write_models(folder / "models")
    _want_files(_IDLE)
    with ServerProcess(repositories=[folder / "models"]) as server:
        before = server.open_files().total()
        resident = _resident_bytes(server)
        with loading(server) as load:
            with ExitStack() as stack:
                connections = [stack.enter_context(_connection(server, "http")) for _ in range(_IDLE)]
                for connection in connections:
                    assert _alive(connection)
                cost = (_resident_bytes(server) - resident) // _IDLE
                load.ledger.wait_answered(1000)
                for connection in connections:
                    assert _alive(connection)
            load.ledger.wait_answered(20, "affine", "copy", "chain", "sum", "count")
        load.ledger.check()
        wait_until(lambda: server.open_files().total() <= before)
    return f"{_IDLE:,} idle connections of {cost / 1024:.0f} KiB, all still served afterwards: {load.ledger}"


def descriptors(folder: Path) -> str:
    """More connections than the server may have; those that it has are served, and others when one of them leaves."""
    write_models(folder / "models")
    launcher = ("sh", "-c", f'ulimit -n {_DESCRIPTORS} && exec "$@"', "sh")
    with ServerProcess(repositories=[folder / "models"], launcher=launcher) as server:
        before = server.open_files().total()
        with loading(server) as load:
            with ExitStack() as stack:
                connections = [stack.enter_context(_connection(server, "http")) for _ in range(_DESCRIPTORS)]
                for connection in connections:
                    connection.sendall(_GET)
                server.wait_log("connections wait: the system has no room for them")
                load.ledger.wait_answered(200)
                load.ledger.wait_answered(20, "affine", "copy", "chain", "sum", "count")
                served = connections[0]
                assert served.recv(1000).startswith(b"HTTP/1.1 200")
                waiting = connections[-1]
                for connection in connections[:-1]:
                    connection.close()
                assert waiting.recv(1000).startswith(b"HTTP/1.1 200")
            load.ledger.wait_answered(20, "affine", "copy", "chain", "sum", "count")
        load.ledger.check()
        wait_until(lambda: server.open_files().total() <= before)
    return f"{_DESCRIPTORS} connections for {_DESCRIPTORS} descriptors: {load.ledger}"


@contextmanager
def _connection(server: ServerProcess, protocol: str) -> Iterator[socket.socket]:
    host, port = (server.http if protocol == "http" else server.grpc).split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        yield connection


def _alive(connection: socket.socket) -> bool:
    connection.sendall(_GET)
    return connection.recv(1000).startswith(b"HTTP/1.1 200")


def _want_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 500
    if hard not in (resource.RLIM_INFINITY,) and hard < wanted:
        raise Skipped(f"{count} connections need {wanted} open files, this process may have {hard}")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _resident_bytes(server: ServerProcess) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
