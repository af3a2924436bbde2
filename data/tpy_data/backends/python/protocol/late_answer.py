"""LateAnswer: the answer of one request of a model that answers once, which comes after its batch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from tpy.backend import ExecutionResult, ResponseSender


class LateAnswer:
    """`begin` is called by the engine, `send` by the model's side, in any order and each at most once that counts. `watch` has
    its argument called, on the Trio thread, when nobody waits any more."""

    __slots__ = ("_ended", "_lock", "_result", "_sender", "is_cancelled")

    def __init__(self) -> None:
        self.is_cancelled = False
        self._ended: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._sender: ResponseSender | None = None
        self._result: ExecutionResult | None = None

    def watch(self, taken: Callable[[int], None], ended: Callable[[], None]) -> None:
        """As `ResponseSender.watch`: `taken` is not called for a final response."""
        self._ended = ended

    def is_full(self) -> bool:
        """Never: it has one response."""
        return False

    def begin(self, sender: ResponseSender) -> None:
        """The engine waits from now on."""
        sender.watch(_nothing, self._end)
        with self._lock:
            self._sender, result = sender, self._result
        if result is not None:
            self._send(sender, result)

    def send(self, result: ExecutionResult | None, *, final: bool = True, wait: bool = False) -> None:
        """The answer is there. The first one counts."""
        with self._lock:
            if self._result is not None:
                return
            self._result, sender = result, self._sender
        if sender is not None and result is not None:
            self._send(sender, result)

    @staticmethod
    def _send(sender: ResponseSender, result: ExecutionResult) -> None:
        with contextlib.suppress(ValueError):
            sender.send(result, final=True, wait=False)

    def _end(self) -> None:
        self.is_cancelled = True
        if self._ended is not None:
            self._ended()


def _nothing(count: int) -> None:
    pass
