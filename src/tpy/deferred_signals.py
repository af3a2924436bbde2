"""Signal handlers of the program, which may raise, kept out of code that must not be interrupted."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

_signal: Any = importlib.import_module("_signal")
"""The functions behind those of `signal`, which spend most of their time on enumerations."""

_T = TypeVar("_T")
_Handler = Callable[[int, FrameType | None], object]

_INTERRUPTING = tuple(
    int(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
)
"""Signals whose handlers raise in some programs: Ctrl-C, time limits, orderly ends."""

MAIN_THREAD = threading.main_thread().ident
"""The thread that runs signal handlers."""


class DeferredSignals:
    """A block in which the main thread runs no signal handler of the program, but in `call_program`; what came meanwhile is
    handled at its end. Without effect in other threads, which run none. For one use.

    with DeferredSignals():               # Ctrl-C waits
        ...
        call_program(function, ...)       # raises it at once, and the block once more at its end, whatever became of that
    """

    current: DeferredSignals | None = None
    """The innermost block of the main thread."""

    __slots__ = ("_handlers", "_outer", "_pending", "_raised", "is_interruptible")

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] | None = None
        self._outer: DeferredSignals | None = None
        self._pending: list[int] = []
        self._raised: BaseException | None = None
        self.is_interruptible = False

    def __enter__(self) -> None:
        if threading.get_ident() == MAIN_THREAD:
            handlers = self._handlers = {}
            try:
                for number in _INTERRUPTING:
                    handler = _signal.getsignal(number)
                    if callable(handler):
                        handlers[number] = handler
                        _signal.signal(number, self._handle)
            except BaseException:  # by the handler of a signal that is not deferred yet
                _restore(handlers)
                raise
            self._outer, DeferredSignals.current = DeferredSignals.current, self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._handlers is None:
            return
        DeferredSignals.current = self._outer
        _restore(self._handlers)
        for number in self._pending:
            signal.raise_signal(number)
        if self._raised is not None:
            raise self._raised

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.is_interruptible or self._handlers is None:
            self._pending.append(number)
            return
        self.is_interruptible = False  # before it raises: whatever catches that is not the program's
        try:
            self._handlers[number](number, frame)
        except BaseException as error:
            self._raised = error
            raise
        self.is_interruptible = True


def _restore(handlers: dict[int, _Handler]) -> None:
    """Put all of these in force. One that is may raise before the others are."""
    try:
        for number, handler in handlers.items():
            _signal.signal(number, handler)
    except BaseException:
        _restore(handlers)
        raise


def call_program(function: Callable[..., _T], /, **arguments: Any) -> _T:
    """Returns what this function of the program returns, which signal handlers may interrupt."""
    block = DeferredSignals.current
    if block is None or threading.get_ident() != MAIN_THREAD:
        return function(**arguments)
    block.is_interruptible = True
    try:
        return function(**arguments)
    finally:
        block.is_interruptible = False
