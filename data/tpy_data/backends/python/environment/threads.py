"""Threads of the backend for what the loop must not do, or cannot do because no loop runs."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from tpy.backend import Demand

READY_MAX = 64
"""Descriptors looked at per poll."""


class JobThread:
    """A thread that does jobs in order, started with the first. `close` it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._open = 0
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """True if a job is not done yet."""
        return self._open > 0

    def run(self, job: Callable[[], None]) -> bool:
        """Do this after the jobs before; nothing after `close`, which returns False. It must not raise. Raises RuntimeError, and
        does nothing, when no thread can be started."""
        with self._lock:
            if self._is_closed:
                return False
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._open += 1
            self._jobs.put(job)
        return True

    def wait_idle(self) -> None:
        """Until the jobs that were given so far are done. Not in a job."""
        if self._thread is not None and not self._is_closed:
            done = threading.Event()
            self.run(done.set)
            done.wait()

    def close(self) -> None:
        """Do what was given, and end; nothing more is done."""
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # it holds tensors
            with self._lock:
                self._open -= 1


class ThreadReader(Protocol):
    """Reads a descriptor. May be called from any one thread."""

    def fileno(self) -> int: ...

    def ready(self) -> Demand:
        """Something has come."""
        ...


class ReaderThread:
    """A thread that watches the connections of workers where no loop does: in tests, tools, and a server that ends. Started with
    the first. `close` it."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._readers: dict[int, ThreadReader] = {}
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread: threading.Thread | None = None
        self._closing = False

    def add(self, reader: ThreadReader) -> None:
        """Watch this from now on, until it says otherwise."""
        with self._lock:
            descriptor = reader.fileno()
            if self._closing or descriptor < 0:
                return
            self._readers[descriptor] = reader
            self._poll.register(descriptor, select.EPOLLIN)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="python-workers", daemon=True)
                thread.start()
                self._thread = thread

    def discard(self, reader: ThreadReader) -> None:
        """Watch it no longer; before its descriptor is closed."""
        with self._lock:
            descriptor = reader.fileno()
            if self._readers.get(descriptor) is reader:
                del self._readers[descriptor]
                with contextlib.suppress(OSError, ValueError):  # ValueError: closed already
                    self._poll.unregister(descriptor)

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closing = True
            os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        self._poll.close()
        os.close(self._wake)

    def _run(self) -> None:
        while not self._closing:
            for descriptor, _ in self._poll.poll(maxevents=READY_MAX):
                reader = self._readers.get(descriptor)
                if reader is not None and _read(reader) is Demand.PAUSE:
                    self.discard(reader)


def _read(reader: ThreadReader) -> Demand:
    while (after := reader.ready()) is Demand.CONTINUE:
        pass
    return after
