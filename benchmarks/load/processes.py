"""Do more processes of `tpy perf` send more? The server is four processes that answer every request with the same bytes.

    python -m benchmarks.load.processes [--seconds 2] [--rounds 3]

Prints requests per second and the client's CPU time for a request with one, two and four processes, in turn. On a machine whose
cores are all busy the CPU time tells: it stays the same, so that as many cores do as many times the work.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import statistics
from collections.abc import Sequence

from tpy_tools.load import Level, Meter, RawTemplate, Rules, Target, Workload
from tpy_tools.load.core.http1 import encode_request

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_SERVERS = 4
_CONCURRENCY = 16
_PROCESSES = (1, 2, 4)


class _Answers(asyncio.Protocol):
    """Answers whatever comes: a request is one segment."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.WriteTransport)
        self._transport.write(_ANSWER)


def _serve(listener: socket.socket) -> None:
    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(_Answers, sock=listener)
        await server.serve_forever()

    asyncio.run(forever())


def measure(port: int, processes: int, seconds: float) -> tuple[float, float]:
    """Requests per second, and microseconds of CPU time for each."""
    target = Target(host="127.0.0.1", port=port)
    request = RawTemplate(content=encode_request("POST", "/", target.authority, {}, b"x" * 64))
    rules = Rules(window_s=seconds / 3, stable_percent=1e6, workers=processes)
    result = Meter(Workload(target=target, model="", streams=[[request]]), rules).measure(Level(concurrency=_CONCURRENCY))
    return result.requests_per_s, result.cpu_us_per_request


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure in turn, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        servers = [multiprocessing.Process(target=_serve, args=(listener,), daemon=True) for _ in range(_SERVERS)]
        for server in servers:
            server.start()
        port = listener.getsockname()[1]
        found: dict[int, list[tuple[float, float]]] = {count: [] for count in _PROCESSES}
        for _ in range(asked.rounds):
            for count in _PROCESSES:
                found[count].append(measure(port, count, asked.seconds))
        for server in servers:
            server.kill()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {_CONCURRENCY} requests in flight")
    for count, rounds in found.items():
        per_s, cpu_us = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(f"{count} processes: {per_s:8.0f} requests/s, {cpu_us:5.1f} us of CPU a request")


if __name__ == "__main__":
    main()
