"""A server as a subprocess of its own session, from its start to its end."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks import processes

HOST = "127.0.0.1"
SERVER_READY = "/v2/health/ready"
_READY_S_MAX = 60.0
_STOP_S_MAX = 15.0
_POLL_S = 0.004
"""Pause between two looks for readiness: the resolution of start-up times."""
_LOG_LINES_SHOWN = 30


class ServerFailed(Exception):
    """A server that did not start, did not become ready or died; the text has the end of its log."""


class Ports(msgspec.Struct, frozen=True):
    """Free ports of the loopback interface, for one server."""

    http: int
    grpc: int
    metrics: int


class ServerPlan(Protocol):
    """The plan for starting one server."""

    @property
    def name(self) -> str:
        """Short, for logs."""

    @property
    def ready_path(self) -> str:
        """The path that answers 200 as soon as the server and its models are ready."""

    def command(self, ports: Ports) -> Sequence[str]:
        """The command line; the server must listen on these ports of 127.0.0.1."""

    def environment(self) -> Mapping[str, str]:
        """Added to this process's environment."""


class Server:
    """A running server. `started_s` and `ready_s` are monotonic times."""

    def __init__(self, plan: ServerPlan, ports: Ports, process: subprocess.Popen[bytes], log: Path, started_s: float) -> None:
        self.name = plan.name
        self._ready_path = plan.ready_path
        self.ports = ports
        self.log = log
        self.started_s = started_s
        self.ready_s = started_s
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def family(self) -> tuple[int, ...]:
        """The server's process and its workers."""
        return processes.family(self.pid)

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far."""
        return processes.cpu_s(self.family())

    def wait_ready(self) -> None:
        """Return as soon as it and its models are ready. Raises ServerFailed."""
        deadline_s = time.monotonic() + _READY_S_MAX
        while not self._is_ready():
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.name} ended with status {self._process.returncode}\n{self.log_end()}")
            if time.monotonic() > deadline_s:
                raise ServerFailed(f"{self.name} was not ready after {_READY_S_MAX:.0f} s\n{self.log_end()}")
            time.sleep(_POLL_S)
        self.ready_s = time.monotonic()

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.ports.http, timeout=5)
        try:
            connection.request("GET", self._ready_path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def log_end(self) -> str:
        """The last lines of what it wrote."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES_SHOWN:])

    def stop(self) -> None:
        """End it and its workers: politely, then at once."""
        members = self.family()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in members[1:]:
            # A number may have been given to somebody else: only what is still in the server's session is ended.
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == self.pid:
                    os.kill(pid, signal.SIGKILL)


def free_ports() -> Ports:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind((HOST, 0))
        return Ports(*(each.getsockname()[1] for each in sockets))


def start(plan: ServerPlan, log: Path, *, cores: Sequence[int] | None = None) -> Server:
    """Start a server without waiting for it; its output goes to `log`; all its threads run on `cores` (None: everywhere)."""
    ports = free_ports()
    command = list(plan.command(ports))
    if cores is not None:
        command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
    with log.open("wb") as output:
        started_s = time.monotonic()
        process = subprocess.Popen(
            command,
            env={**os.environ, **plan.environment()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(plan, ports, process, log, started_s)


@contextlib.contextmanager
def running(plan: ServerPlan, log: Path, *, cores: Sequence[int] | None = None) -> Iterator[Server]:
    """A server that is ready, and is ended with the block. Raises ServerFailed."""
    server = start(plan, log, cores=cores)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()
