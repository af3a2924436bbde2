"""A server whose calls are recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until
from tests.hot_path.traced_server import ALL_THREADS, BEGIN, END
from tests.hot_path.walks import Calls


@contextmanager
def traced_server(
    target: Path,
    *flags: str,
    repositories: Sequence[Path],
    environment: Mapping[str, str] | None = None,
    all_threads: bool = False,
) -> Iterator[Traced]:
    """A server that writes its records to `target`: of the loop's thread, or of all, with callers."""
    program = Path(__file__).with_name("traced_server.py")
    command = (str(program), *((ALL_THREADS,) if all_threads else ()), str(target), "serve")
    with ServerProcess(*flags, repositories=repositories, program=command, environment=environment) as server:
        yield Traced(server, target)


class Traced:
    """A server whose calls are recorded."""

    def __init__(self, server: ServerProcess, target: Path) -> None:
        self.server = server
        self._target = target

    def record(self, ask: Callable[[], None]) -> Calls:
        """The calls for what `ask` does."""
        self._settle()  # the answer leaves before all is booked
        self._begin()
        self._settle()
        ask()
        self._settle()
        os.kill(self.server.process.pid, END)
        return self._read()

    def record_shutdown(self) -> Calls:
        """The calls from SIGTERM to the end."""
        self._settle()
        self._begin()
        self.server.stop()
        return self._read()

    def _begin(self) -> None:
        os.kill(self.server.process.pid, BEGIN)
        wait_until(self._begun.exists)

    def _read(self) -> Calls:
        wait_until(self._target.exists)
        calls: Calls = json.loads(self._target.read_text())
        self._target.unlink()
        self._begun.unlink()
        return calls

    @property
    def _begun(self) -> Path:
        return self._target.with_suffix(".begun")

    def _settle(self) -> None:
        """Wait until the loop's thread has nothing to do."""
        schedule = Path(f"/proc/{self.server.process.pid}/schedstat")  # its time on a processor, first
        before = [""]

        def rests() -> bool:
            seen, before[0] = before[0], schedule.read_text()
            return seen == before[0]

        wait_until(rests)
