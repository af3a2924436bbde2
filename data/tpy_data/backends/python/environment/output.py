"""Copies a worker's output, line by line, into the server's log."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

LINE_BYTES_MAX = 8 * 1024
"""A longer line of stdout or stderr is cut into several."""

READ_BYTES = 64 * 1024

LAST_READS_MAX = 16
"""At the end each pipe is read so often at most: what it can hold. Who still writes into it outlives the worker."""

LogLine = Callable[[str, str], None]
"""Level and text."""


class OutputForwarder:
    """Owns the reading ends of a worker's stdout and stderr, and one thread that reads them until `close`."""

    def __init__(self, name: str, *, stdout: int, stderr: int, log: LogLine) -> None:
        self._log = log
        self._pending = {stdout: b"", stderr: b""}
        self._stderr = stderr
        self._last_error_line = ""
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in self._pending:
            os.set_blocking(descriptor, False)
        self._thread = threading.Thread(target=self._run, name=f"log {name}", daemon=True)
        self._thread.start()

    @property
    def last_error_line(self) -> str:
        """The newest line on stderr that was not empty."""
        return self._last_error_line

    def close(self) -> None:
        """Forward what is there, and end. Processes that the model left behind may still hold the pipes: not waited for."""
        os.write(self._wake_write, b".")
        self._thread.join()
        for descriptor in (*self._pending, self._wake_read, self._wake_write):
            os.close(descriptor)

    def _run(self) -> None:
        poller = select.poll()
        open_ones = set(self._pending)
        for descriptor in (*open_ones, self._wake_read):
            poller.register(descriptor, select.POLLIN)
        closing = False
        while not closing:
            ready = [descriptor for descriptor, _ in poller.poll()]
            closing = self._wake_read in ready
            for descriptor in list(open_ones) if closing else [d for d in ready if d in open_ones]:
                if not self._read(descriptor, everything=closing):
                    poller.unregister(descriptor)
                    open_ones.discard(descriptor)
        for descriptor in self._pending:
            self._lines(descriptor, b"\n" if self._pending[descriptor] else b"")

    def _read(self, descriptor: int, *, everything: bool) -> bool:
        """Returns True if there may be more later."""
        for _ in range(LAST_READS_MAX if everything else 1):
            try:
                chunk = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._lines(descriptor, chunk)
        return True

    def _lines(self, descriptor: int, chunk: bytes) -> None:
        *lines, rest = (self._pending[descriptor] + chunk).split(b"\n")
        while len(rest) > LINE_BYTES_MAX:
            lines.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._pending[descriptor] = rest
        for line in lines:
            if line.strip():
                self._emit(descriptor, line)

    def _emit(self, descriptor: int, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip()
        if descriptor == self._stderr:
            self._last_error_line = text
        self._log("warning" if descriptor == self._stderr else "info", text)
