"""The server that is attacked, and how an attack is measured."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.models import write_models
from tests.e2e.server import ServerProcess, child_processes

from .probe import Felt, probing

_PATIENCE_S = 10.0
_ENDS_S_MAX = 15.0
_MEMORY_KIB_MAX = 14_000_000
"""Of the attacked server: an attack that succeeds must not take the machine with it."""


@dataclass(slots=True)
class Outcome:
    """Of one attack. `wrong` and `lost` also count what the attacker's own good requests met."""

    felt: Felt = field(default_factory=Felt)
    wrong: int = 0
    lost: int = 0
    alive: bool = True
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something that the table shows at the end of the row."""
        self.notes.append(text)


class Arena:
    """A running server with the models of tests/chaos, and an attack's outcome."""

    def __init__(self, server: ServerProcess, repository: Path) -> None:
        self.server = server
        self.repository = repository
        self.outcome = Outcome()
        self.end: Callable[[], None] = lambda: None
        """Actions before the server is told to stop, outside of the measurement."""

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout_s: float = _PATIENCE_S,
        headers: dict[str, str] | None = None,
        address: str | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of an answer over a connection of its own, to the HTTP port if no address is given; status 0 when
        there was none."""
        connection = http.client.HTTPConnection(address or self.server.http, timeout=timeout_s)
        try:
            sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, sent, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def infer(
        self, model: str, values: Sequence[float] = (1.0, 2.0, 3.0), *, factor: float = 1.0, timeout_s: float = 10.0
    ) -> int:
        """Ask a model that multiplies, count what is wrong or lost; the status."""
        shape = [1, len(values)]
        tensor = {"name": "INPUT", "shape": shape, "datatype": "FP32", "data": list(values)}
        status, body = self.ask("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]}, timeout_s=timeout_s)
        if status != 200:
            self.outcome.lost += 1
        elif json.loads(body)["outputs"][0]["data"] != [factor * value for value in values]:
            self.outcome.wrong += 1
        return status

    def within(self, seconds: float, ask: Callable[[], object]) -> float | None:
        """The time that it took until `ask` was true; None if it was not."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            if ask():
                return time.monotonic() - began
            time.sleep(0.005)
        return None

    def is_ready(self, model: str) -> bool:
        """Returns True if the server says so."""
        return self.ask("GET", f"/v2/models/{model}/ready", timeout_s=2.0)[0] == 200


@contextmanager
def serving(
    folder: Path,
    *flags: str,
    write: Callable[[Path], None] = lambda repository: None,
    limits: str = "",
    memory_kib: int = _MEMORY_KIB_MAX,
    apart: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Arena]:
    """A server of the models of tests/chaos, and those that `write` writes, with a bound on its memory and these other `limits`
    (commands of a shell); `apart` in namespaces, so that it can have mounts. Left, it is told to stop: one that does not, or is
    gone already, is not alive."""
    namespaces = ("unshare", "-rm") if apart else ()
    launcher = (*namespaces, "sh", "-c", f'ulimit -v {memory_kib} {limits} && exec "$@"', "sh")
    repository = folder / "models"
    write_models(repository)
    write(repository)
    server = ServerProcess(*flags, repositories=[repository], launcher=launcher, environment=environment)
    server.__enter__()
    arena = Arena(server, repository)
    try:
        yield arena
    finally:
        arena.end()
        arena.outcome.alive = arena.outcome.alive and server.process.poll() is None
        workers = server.children()
        _stop(arena)
        for pid in workers:
            _end(pid)
        subprocess.run(["rm", "-rf", str(folder)], check=False)  # shutil.rmtree cannot go as deep as an attack


def _stop(arena: Arena) -> None:
    process = arena.server.process
    if process.poll() is not None:
        arena.outcome.note(f"ended by itself with {process.returncode}")
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_ENDS_S_MAX)
    except subprocess.TimeoutExpired:
        arena.outcome.alive = False
        arena.outcome.note("SIGTERM does not end it")
        for pid in (*child_processes(process.pid), process.pid):
            _end(pid)
        process.wait()


def _end(pid: int) -> None:
    """A worker that its server left; one that is stopped does not hear anything else."""
    try:
        if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes() or b"tpy" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


@contextmanager
def measured(arena: Arena) -> Iterator[Outcome]:
    """Probe while the block attacks."""
    with probing(arena.server.http, arena.server.process.pid) as felt:
        yield arena.outcome
    arena.outcome.felt = felt
    arena.outcome.wrong += felt.wrong
    arena.outcome.lost += felt.lost
