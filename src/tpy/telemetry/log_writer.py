"""LogWriter: writes the lines of a log in a thread, so that a pipe that nobody reads, or a disk that hangs, delays nobody."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TextIO

from tpy.limits import LOG_CLOSE_S_MAX, LOG_PAUSE_S, LOG_PIECE_CHARACTERS_MAX, LOG_WAITING_CHARACTERS_MAX


class LogFile:
    """A file to append to, opened by its name. Raises OSError when that fails."""

    def __init__(self, path: str, *, may_wait: bool = True, mode: int = 0o666) -> None:
        """Without `may_wait` a pipe that nobody reads is an error, and not waited for. `mode` is for a new file."""
        self.path = os.path.abspath(path)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags if may_wait else flags | os.O_NONBLOCK, mode)
        os.set_blocking(self._descriptor, True)

    def write(self, text: str) -> None:
        """Append all of it. Raises OSError."""
        _write(self._descriptor, text)

    def complain(self, error: OSError) -> None:
        """Say on standard error that this file cannot be written, unless that takes time itself."""
        write_at_once(sys.stderr, f"tpy: the log file '{self.path}' cannot be written: {error}\n")

    def close(self) -> None:
        """Close the file; unwritten text is lost."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class LogStream:
    """Standard error, say, which is somebody else's to close."""

    path = ""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
        self._descriptor = _descriptor_of(stream)

    def write(self, text: str) -> None:
        """Write all of it. Raises OSError."""
        if self._descriptor is None:
            self._stream.write(text)
        else:
            # Not through the stream: its lock would be held for as long as nobody reads, and the end of the process takes it.
            _write(self._descriptor, text)

    def complain(self, error: OSError) -> None:
        """No-op: standard error is what cannot be written."""

    def close(self) -> None:
        """Leave the stream open."""


class _Confirmation(NamedTuple):
    """Stands behind a line; `done` is told whether that was written."""

    done: Callable[[bool], None]


_Item = str | LogFile | _Confirmation


class LogWriter:
    """Owns `destination`, and the thread that writes to it, from the first line until `close`. When lines can be written again,
    `on_recovered` is called in that thread with the number of dropped ones."""

    def __init__(self, destination: LogFile | LogStream, *, on_recovered: Callable[[int], None]) -> None:
        self.dropped = 0
        """Lines that did not fit, or could not be written."""
        self._destination = destination
        self._on_recovered = on_recovered
        self._told = 0  # of `dropped`
        self._complained = False
        self._lock = threading.RLock()  # a signal or a finalizer may log inside of `write`
        self._waiting: list[_Item] = []
        self._characters = 0
        self._asleep = False
        self._closing = threading.Event()
        self._wake = threading.Semaphore(0)
        self._idle = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Have a line written. Returns at once; from any thread."""
        with self._lock:
            if self._characters + len(line) > LOG_WAITING_CHARACTERS_MAX or self._closing.is_set():
                self.dropped += 1
                return
            self._characters += len(line)
            self._put(line)

    def write_confirmed(self, line: str, done: Callable[[bool], None]) -> None:
        """The same, and have `done` called with whether it was written: in the thread that writes, or in this call when there is
        no room for it."""
        with self._lock:
            lost = self.dropped
            self.write(line)
            if self.dropped == lost:
                self._put(_Confirmation(done))
                return
        done(False)

    def switch(self, destination: LogFile) -> None:
        """Write what comes from now on there; the former file is closed when what was before is written."""
        with self._lock:
            self._put(destination)

    def flush(self) -> None:
        """Return when all is written, or the time for it is up."""
        with self._idle:
            self._idle.wait_for(lambda: not self._waiting and not self._characters, LOG_CLOSE_S_MAX)

    def close(self) -> None:
        """Write what waits, for a moment at most, and end."""
        self._closing.set()
        self._wake.release()
        with self._lock:
            if self._waiting and self._thread is None:
                self._start()
        if self._thread is None:
            self._destination.close()
        else:
            self._thread.join(LOG_CLOSE_S_MAX)

    def _put(self, item: _Item) -> None:
        self._waiting.append(item)
        if self._thread is None:
            self._start()
        elif self._asleep:
            self._asleep = False
            self._wake.release()

    def _start(self) -> None:
        """Start the thread. If the machine has no threads left, lines wait, as far as they fit, and the next one tries again."""
        thread = threading.Thread(target=self._run, name="log", daemon=True)
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._lock:
                items, self._waiting = self._waiting, []
                self._asleep = not items
                if not items:
                    self._idle.notify_all()
            if items:
                self._write_all(items)
                self._closing.wait(LOG_PAUSE_S)
            elif self._closing.is_set():
                break
            else:
                self._wake.acquire()
        self._destination.close()

    def _write_all(self, items: list[_Item]) -> None:
        wrote = False
        for piece in _pieces(items):
            if isinstance(piece, LogFile):
                self._destination.close()
                self._destination = piece
                self._complained = False
                continue
            if isinstance(piece, _Confirmation):
                piece.done(wrote)
                continue
            wrote = self._try(piece)
            with self._lock:
                self._characters -= sum(map(len, piece))
        if wrote and self.dropped > self._told:
            lost, self._told = self.dropped - self._told, self.dropped
            self._on_recovered(lost)

    def _try(self, lines: list[str]) -> bool:
        """Write them, or count them as lost. Returns whether they were written."""
        try:
            self._destination.write("".join(lines))
        except (OSError, ValueError) as error:  # ValueError: a stream that was closed
            with self._lock:
                self.dropped += len(lines)
            if isinstance(error, OSError) and not self._complained:
                self._complained = True
                self._destination.complain(error)
            return False
        return True


def write_at_once(stream: TextIO, text: str) -> None:
    """Write what can be written without waiting; the rest is lost, as is everything when nobody reads."""
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
        descriptor = _descriptor_of(stream)
        if descriptor is None:
            stream.write(text)
            return
        for begin in range(0, len(text), LOG_PIECE_CHARACTERS_MAX // 4):  # four bytes a character at most
            if not _is_writable(descriptor, 0):
                return
            _write(descriptor, text[begin : begin + LOG_PIECE_CHARACTERS_MAX // 4])


def _pieces(items: Iterable[_Item]) -> Iterator[list[str] | LogFile | _Confirmation]:
    """The lines, some at a time, and what is between them."""
    lines: list[str] = []
    size = 0
    for item in items:
        if lines and (not isinstance(item, str) or size + len(item) > LOG_PIECE_CHARACTERS_MAX):
            yield lines
            lines, size = [], 0
        if not isinstance(item, str):
            yield item
        else:
            lines.append(item)
            size += len(item)
    if lines:
        yield lines


def _write(descriptor: int, text: str) -> None:
    rest = memoryview(text.encode("utf-8", "backslashreplace"))
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever shares it has made it so
            _is_writable(descriptor, -1)


def _is_writable(descriptor: int, timeout_ms: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    return bool(poller.poll(timeout_ms))


def _descriptor_of(stream: TextIO) -> int | None:
    """None for a stream that is in memory."""
    try:
        descriptor = stream.fileno()
        os.fstat(descriptor)
    except (OSError, ValueError):
        return None
    return descriptor
