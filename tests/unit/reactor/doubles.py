"""Descriptors that a reactor reads, and what looks at it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio
import trio.lowlevel
import trio.testing

from tpy.demand import Demand
from tpy.reactor import Reactor


async def settle() -> None:
    """Wait until nothing has happened for a while."""
    await trio.testing.wait_all_tasks_blocked(0.003)


class Counter:
    """An eventfd that is read by the reactor: `work` is done for each time that it is."""

    def __init__(self, work: Callable[[], Demand] = lambda: Demand.READ) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.is_continuing = False
        self.taken = 0
        self.errors: list[BaseException | None] = []
        self.work = work

    def fileno(self) -> int:
        return self.descriptor

    def receive(self) -> Demand:
        self.taken += os.eventfd_read(self.descriptor)
        return self.work()

    def proceed(self) -> Demand:
        return self.work()

    def end(self, error: BaseException | None = None) -> None:
        self.errors.append(error)

    def add(self, count: int = 1) -> None:
        os.eventfd_write(self.descriptor, count)


@contextmanager
def counters(reactor: Reactor, count: int = 1) -> Iterator[list[Counter]]:
    made = [Counter() for _ in range(count)]
    for counter in made:
        reactor.add(counter)
    try:
        yield made
    finally:
        for counter in made:
            reactor.discard(counter)
            os.close(counter.descriptor)


def in_a_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


class IoWaits(trio.abc.Instrument):
    """Counts the turns of Trio."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1
