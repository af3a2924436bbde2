"""WatchedDescriptors: what backends have the loop read for them, such as the socket of a worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tpy.backend import Demand, DescriptorReader
from tpy.reactor import Reactor
from tpy.unexpected import unexpected_error


class WatchedDescriptors:
    """The descriptors that the reactor watches for readers of backends. All of it on the Trio thread."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._watched: set[_Watched] = set()
        self._is_running = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Watch in this block. After it readers are told that nobody watches (`DescriptorReader.unwatched`)."""
        with self._reactor.running():
            try:
                self._is_running = True
                yield
            finally:
                self._is_running = False
                for watched in tuple(self._watched):
                    watched.end()

    def add(self, descriptor: int, reader: DescriptorReader) -> None:
        """Watch this descriptor, which is owned from now on. Its reader is told at once if it cannot be watched."""
        watched = _Watched(descriptor, reader, self._reactor, self._watched)
        with contextlib.suppress(OSError):  # the system has no memory for one more: a thread reads it
            if self._is_running:
                self._reactor.add(watched)
                return
        watched.end()


class _Watched:
    """A descriptor that a reader has the reactor watch. Owns it, and is one of `all_watched` until it is closed."""

    def __init__(self, descriptor: int, reader: DescriptorReader, reactor: Reactor, all_watched: set[_Watched]) -> None:
        self.is_continuing = False
        self._descriptor = descriptor
        self._reader = reader
        self._reactor = reactor
        self._all = all_watched
        self._all.add(self)

    def fileno(self) -> int:
        return self._descriptor

    def receive(self) -> Demand:
        if self not in self._all:  # closed in between
            return Demand.PAUSE
        demand = self._reader.ready()
        if demand is Demand.PAUSE:  # and maybe it is watched again by now, by another descriptor
            self._close()
        return demand

    proceed = receive

    def end(self, error: BaseException | None = None) -> None:
        """Nobody watches any more, although the reader did not say so."""
        if error is not None:
            unexpected_error("reading what a worker sends failed unexpectedly")
        self._close()
        self._reader.unwatched()

    def _close(self) -> None:
        self._reactor.discard(self)
        self._all.discard(self)
        os.close(self._descriptor)
