"""Copies the output of a worker, or of a plug-in's process, line by line, into the server's log."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

LINE_BYTES_MAX = 8 * 1024
"""A longer line of stdout or stderr is cut into several."""

READ_BYTES = 64 * 1024

LAST_READS_MAX = 16
"""At the end each pipe is read so often at most: what it can hold. Who still writes into it outlives the worker."""

LogLine = Callable[[str, str], None]
"""Level and text."""


class OutputForwarder:
    """Owns the reading ends of a process' stdout and stderr, and a thread that reads them until `close`: the process never waits
    for whoever reads the log."""

    def __init__(self, name: str, *, stdout: int, stderr: int, log: LogLine) -> None:
        self._log = log
        self._pending = {stdout: b"", stderr: b""}
        self._stderr = stderr
        self._last_error_line = ""
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in self._pending:
            os.set_blocking(descriptor, False)
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name=f"log {name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._wake_read)
            os.close(self._wake_write)
            raise

    @property
    def last_error_line(self) -> str:
        """The newest line on stderr that was not empty."""
        return self._last_error_line

    def close(self) -> None:
        """Forward what is there, and end. Processes that the model left behind may still hold the pipes: not waited for.
        Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        os.write(self._wake_write, b".")
        thread.join()
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


@contextmanager
def forwarded(name: str, log: LogLine) -> Iterator[tuple[OutputForwarder, int, int]]:
    """A forwarder, with the ends of its pipes for the process that is started in the block: its stdout and stderr. Raises
    OSError, and RuntimeError without memory for a thread."""
    with ExitStack() as undo, ExitStack() as inherited:
        reading: list[int] = []
        writing: list[int] = []
        for _ in range(2):
            for descriptor, ends, stack in zip(os.pipe(), (reading, writing), (undo, inherited), strict=True):
                ends.append(descriptor)
                stack.callback(os.close, descriptor)
        forwarder = OutputForwarder(name, stdout=reading[0], stderr=reading[1], log=log)
        undo.pop_all()
        undo.callback(forwarder.close)
        yield forwarder, writing[0], writing[1]
        undo.pop_all()


_LEVELS = {"INFO": "info", "WARNING": "warning", "ERROR": "error"}


def log_of_plugin(name: str, logger: logging.Logger) -> LogLine:
    """Logs lines of a plug-in's process under its name. They have a level in front when they are of its log."""

    def log(level: str, text: str) -> None:
        first, _, rest = text.partition(" ")
        if first in _LEVELS:
            level, text = _LEVELS[first], rest
        logger.log(logging.getLevelNamesMapping()[level.upper()], "%(plugin)s: %(text)s", {"plugin": name, "text": text})

    return log
