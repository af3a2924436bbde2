"""Tokens: what a worker takes one of before each further batch of a run, and the server takes back."""

from __future__ import annotations

import contextlib
import socket
import threading

_AT_ONCE = int(socket.MSG_DONTWAIT)


class Tokens:
    """One byte each, taken by the first reader: the worker, which has the reading end too (`worker_end`), or the server.

    Any thread. Nothing blocks, whatever the worker does to its end: it can neither add tokens, nor make a read of ours wait.
    """

    def __init__(self) -> None:
        """Raises OSError."""
        self._giving, self._taking = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lock = threading.Lock()

    @property
    def worker_end(self) -> int:
        """For the worker to inherit."""
        return self._taking.fileno()

    def give(self, count: int) -> bool:
        """Put so many there. False when none can be."""
        with self._lock, contextlib.suppress(OSError):
            return self._giving.send(bytes(count), _AT_ONCE) > 0
        return False

    def take(self, most: int) -> int:
        """Take back what is there, at most so many; none after `close`."""
        with self._lock, contextlib.suppress(OSError):
            return len(self._taking.recv(most, _AT_ONCE))
        return 0

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._giving.close()
            self._taking.close()
