"""Our own load generator: sockets that are kept open, one request in flight on each. For large requests, and where it must run on
given cores or stop after a number of requests.

`drive` starts it as its own program (`python -m benchmarks.load.keep_alive`, settings as one JSON argument), so that
it shares no interpreter lock with anything.
"""

from __future__ import annotations

import itertools
import json
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from benchmarks.http_exchange import AnswerReader, HttpRequest
from benchmarks.load import Load
from benchmarks.load.child import run_child

_HOST = "127.0.0.1"
_RECEIVE_BYTES = 1 << 20
_STALL_S = 60.0
"""No answer on any connection for so long ends the run with an error."""


class _Settings(TypedDict):
    port: int
    request_file: str
    request_ends: list[int]
    connections: int
    seconds: float
    requests: int


def drive(
    port: int,
    request: HttpRequest | Sequence[HttpRequest],
    *,
    connections: int,
    seconds: float,
    requests: int = sys.maxsize,
    cores: Sequence[int] | None = None,
) -> Load:
    """Keep `connections` busy with `request` (several: each connection with one of them, in turn) until `seconds` have passed or
    `requests` are answered, whichever comes first; the last ones sent are waited for. Raises LoadFailed when a request fails."""
    different = [request] if isinstance(request, HttpRequest) else request
    encoded = [one.to_bytes(f"{_HOST}:{port}") for one in different]
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(encoded))
        file.flush()
        settings: _Settings = {
            "port": port,
            "request_file": file.name,
            "request_ends": list(itertools.accumulate(map(len, encoded))),
            "connections": connections,
            "seconds": seconds,
            "requests": requests,
        }
        text, cpu_s = run_child([sys.executable, "-m", "benchmarks.load.keep_alive", json.dumps(settings)], cores=cores)
    result = json.loads(text.splitlines()[-1])
    return Load(cpu_s=cpu_s, **result)


class _Connection:
    """One connection: sends the request, reads the answer, notes how long it took, sends again."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection((_HOST, port), timeout=_STALL_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._reader = AnswerReader()
        self._sent_s = 0.0

    def send(self) -> None:
        """Send the whole request; waits while the server does not take it."""
        self._sent_s = time.perf_counter()
        self.socket.sendall(self._request)

    def receive(self, buffer: bytearray) -> float | None:
        """Take what has arrived. Returns the request's latency in seconds when its answer is complete."""
        count = self.socket.recv_into(buffer)
        if not count:
            raise ConnectionError("the server closed a connection before its answer was complete")
        return time.perf_counter() - self._sent_s if self._reader.feed(memoryview(buffer)[:count]) else None


def _run(settings: _Settings) -> dict[str, float]:
    content = Path(settings["request_file"]).read_bytes()
    requests = itertools.cycle(content[begin:end] for begin, end in itertools.pairwise([0, *settings["request_ends"]]))
    buffer = bytearray(_RECEIVE_BYTES)
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        begin_s = time.perf_counter()
        end_s = begin_s + settings["seconds"]
        sent = 0
        for _ in range(min(settings["connections"], settings["requests"])):
            connection = _Connection(settings["port"], next(requests))
            connection.send()
            sent += 1
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while len(latencies) < sent:
            events = selector.select(_STALL_S)
            if not events:
                raise TimeoutError(f"no answer for {_STALL_S:.0f} s")
            for key, _ in events:
                latency = key.data.receive(buffer)
                if latency is not None:
                    latencies.append(latency)
                    if sent < settings["requests"] and time.perf_counter() < end_s:
                        key.data.send()
                        sent += 1
        seconds = time.perf_counter() - begin_s
    return {"answered": len(latencies), "seconds": seconds, **_percentiles(latencies)}


def _percentiles(latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    at = {50: ordered[len(ordered) // 2], 99: ordered[len(ordered) * 99 // 100]}
    return {f"latency_p{percent}_ms": seconds * 1e3 for percent, seconds in at.items()}


if __name__ == "__main__":
    print(json.dumps(_run(json.loads(sys.argv[1]))))
