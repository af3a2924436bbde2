"""A `tpy serve` subprocess on free ports, for tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

_START_S_MAX = 120.0
_STOP_S_MAX = 60.0


class ServerProcess:
    """Starts the server and waits until it says where it serves. Use it as a context manager; leaving it stops the server with
    SIGTERM and checks that it ended in order."""

    def __init__(self, *flags: str, repositories: Sequence[Path] = (), expect_exit: int = 0) -> None:
        self._flags = [*(f"--model-repository={path}" for path in repositories), *flags]
        self._expect_exit = expect_exit
        self._ready = threading.Event()
        self._lines: list[str] = []
        self._addresses: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ServerProcess:
        self.start()
        if not self._ready.wait(_START_S_MAX):
            self._kill()
            raise TimeoutError(f"tpy serve did not start:\n{self.log}")
        if self.process.poll() is not None and self._expect_exit == 0:
            raise RuntimeError(f"tpy serve ended with {self.process.returncode}:\n{self.log}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        code = self.stop()
        if kind is None:
            assert code == self._expect_exit, f"exit code {code}:\n{self.log}"

    def start(self) -> None:
        """Start the process; do not wait."""
        command = [sys.executable, "-m", "tpy", "serve", "--http-address=127.0.0.1", "--http-port=0", "--metrics-port=0"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [*command, *self._flags],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def process(self) -> subprocess.Popen[str]:
        """The running process."""
        assert self._process is not None
        return self._process

    @property
    def http(self) -> str:
        """host:port of the HTTP API."""
        return self._addresses["HTTP"]

    @property
    def metrics(self) -> str:
        """host:port of the metrics."""
        return self._addresses["metrics"]

    @property
    def log(self) -> str:
        """All that the server has written so far."""
        return "".join(self._lines)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._kill()
            raise

    def _kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self._lines.append(line)
                found = re.fullmatch(r"Started (\w+) service at (\S+)\n", line)
                if found:
                    self._addresses[found[1]] = found[2]
                    if found[1] == "metrics":
                        self._ready.set()
        self._ready.set()
