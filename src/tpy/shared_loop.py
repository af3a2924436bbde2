"""SharedLoop: a Trio loop whose synchronous work other threads may do themselves while it waits for I/O."""

from __future__ import annotations

import math
import select
import threading
from collections.abc import Callable
from typing import Any

import trio

_LOOP_BUSY_S_MAX = 0.002
"""The time that a thread waits for its turn before it leaves the work to the loop: longer than the pieces of the engine's work,
shorter than a wait that a caller would notice."""


class Errand:
    """A job that a thread does for a worker. `run` does it, and returns what is to be called on the loop then."""

    __slots__ = ("run",)

    def __init__(self) -> None:
        self.run: Callable[[], Callable[[], None]] | None = None


class _Epoll:
    """The epoll object of a loop, whose `poll` gives others their turns while it waits. What it finds is dealt with when the loop
    has its turn again, so that no task is woken by the loop and cancelled by another thread at the same time."""

    def __init__(self, epoll: select.epoll, poll: Callable[[float, int], list[tuple[int, int]]]) -> None:
        self.poll = poll
        self.register = epoll.register
        self.modify = epoll.modify
        self.unregister = epoll.unregister
        self.fileno = epoll.fileno
        self.close = epoll.close


class SharedLoop:
    """Trio's functions that do not wait may be called in one thread at a time: that of the loop or, while the loop waits for I/O,
    one that has called `enter`. So a call into the loop need not wake its thread, and wait for the interpreter twice.

    Made inside `trio.run`. A lock says whose turn it is. The loop's thread has it but for the time in which it waits for I/O; who
    leaves something for the loop to do (a task that is to go on, an earlier deadline) wakes it.

    Trio has no public way to make a run the current one of another thread; what is used of its internals is in this class, and
    `open` returns None where it is not as expected.
    """

    def __init__(self, context: Any, runner: Any) -> None:
        self._context = context
        self._runner = runner
        self._token = trio.lowlevel.current_trio_token()
        self._wakes_at = math.inf
        self._turn = threading.Lock()
        self._turn.acquire()  # the loop's
        self.errand: Errand | None = None
        """Of the thread that has entered: who gives a job to a worker may leave it here."""
        self._epoll: select.epoll = runner.io_manager._epoll
        runner.io_manager._epoll = _Epoll(self._epoll, self._poll)

    @staticmethod
    def open() -> SharedLoop | None:
        """Of the run that this is called in; None where Trio is another one than this was written for."""
        try:
            from trio._core._run import GLOBAL_RUN_CONTEXT as context  # noqa: N811

            runner = context.runner
            runner.deadlines.next_deadline()
            len(runner.runq)
            epoll: object = runner.io_manager._epoll
            if not isinstance(epoll, select.epoll):
                return None
        except (ImportError, AttributeError):
            return None
        return SharedLoop(context, runner)

    def _poll(self, timeout: float, events_max: int) -> list[tuple[int, int]]:
        """In the loop's thread, in place of the epoll object's."""
        self._wakes_at = self._runner.deadlines.next_deadline()
        self._turn.release()
        try:
            return self._epoll.poll(timeout, events_max)
        finally:
            self._turn.acquire()

    def call(self, function: Callable[[], None], /) -> None:
        """Have this called, which must not raise: at once in this thread, or soon in the loop's. Raises RunFinishedError when the
        loop has ended. In the main thread: inside DeferredSignals."""
        if not self.enter(function):
            self._token.run_sync_soon(function)

    def perform(self, function: Callable[[], None]) -> None:
        """As `call`; a job that this gives to an idle worker, whose jobs may run anywhere, is done in this thread at once.
        In the main thread: inside DeferredSignals."""
        errand = Errand()
        if not self.enter(function, errand):
            self._token.run_sync_soon(function)
        elif errand.run is not None:
            self.call(errand.run())

    def enter(self, function: Callable[[], None], errand: Errand | None = None) -> bool:
        """Call this, which must not raise, in this thread, as if it were the loop's; returns False when the loop has no time for
        it now. In the main thread: inside DeferredSignals."""
        turn = self._turn
        if not turn.acquire(blocking=False) and not turn.acquire(timeout=_LOOP_BUSY_S_MAX):  # the second is dear
            return False
        self.errand = errand
        own = self._context.__dict__
        before = dict(own) if own else None  # of a thread with a Trio run of its own
        if before:
            own.clear()
        runner = self._context.runner = self._runner
        try:
            function()
        except BaseException as error:  # a bug: it is the loop's, as if it had called
            self._token.run_sync_soon(_raise, error)
        finally:
            own.clear()
            if before:
                own.update(before)
            self.errand = None
            if runner.runq or runner.deadlines.next_deadline() < self._wakes_at:
                self._token.run_sync_soon(_nothing, idempotent=True)
            turn.release()
        return True


def _raise(error: BaseException) -> None:
    raise error


def _nothing() -> None:
    """Wakes the loop."""
