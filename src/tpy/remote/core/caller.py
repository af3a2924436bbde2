"""Caller: the frontend's side of the table of requests. What the engine sends goes to the sinks of frontends, or waits for them.

    number taken -> SUBMIT sent -> responses ... -> the final one      or  cancelled

The engine sends ahead only so much as the window of a request allows; what a sink has taken is reported, which moves the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from tpy.errors import Unavailable
from tpy.limits.remote import REMOTE_REQUESTS_MAX, REMOTE_WINDOW_BYTES, REMOTE_WINDOW_RESPONSES
from tpy.messages import InferenceResponse
from tpy.remote.core.framing import ProtocolError
from tpy.remote.core.messages import Cancel, Taken
from tpy.services import ResponseSink

Emit = Callable[[msgspec.Struct], None]
"""Sends a message. Raises nothing."""

_REPORT_RESPONSES = REMOTE_WINDOW_RESPONSES // 4
_REPORT_BYTES = REMOTE_WINDOW_BYTES // 4
_HELD_MAX = REMOTE_WINDOW_RESPONSES + 1
"""The window, and an error that ends the request in place of what waits."""


class PendingRequest:
    """One request, for the frontend that submitted it: implements RequestHandle."""

    __slots__ = ("_caller", "_held", "_paused", "_sink", "_taken", "_taken_bytes", "complete", "number")

    def __init__(self, caller: Caller, number: int, sink: ResponseSink) -> None:
        self.number = number
        self.complete = False
        """True once the engine has sent the last response."""
        self._caller = caller
        self._sink: ResponseSink | None = sink
        self._held: deque[tuple[InferenceResponse, int]] = deque()
        self._paused = False
        self._taken = 0
        self._taken_bytes = 0

    def cancel(self) -> None:
        """See RequestHandle."""
        if self._sink is not None:
            self._sink = None
            self._held.clear()
            self._caller.forget(self)

    def pause(self) -> None:
        """See RequestHandle."""
        self._paused = True

    def resume(self) -> None:
        """See RequestHandle."""
        self._paused = False
        while self._held and not self._paused and self._sink is not None:
            self._deliver(*self._held.popleft())

    def receive(self, response: InferenceResponse, size: int) -> None:
        """A response came, whose tensors have `size` bytes. Raises ProtocolError for one after the last, or beyond the window."""
        if self.complete or len(self._held) >= _HELD_MAX:
            raise ProtocolError(f"a response to request {self.number}, which should not have one")
        self.complete = response.final
        if response.error is not None:
            self._held.clear()
        elif self._paused or self._held:
            self._held.append((response, size))
            return
        self._deliver(response, size)

    def _deliver(self, response: InferenceResponse, size: int) -> None:
        sink = self._sink
        if sink is None:
            return
        if response.final:
            self._sink = None  # it refers to us, and would wait for the garbage collector
            self._caller.forget(self)
        else:
            self._taken += 1
            self._taken_bytes += size
            if self._taken >= _REPORT_RESPONSES or self._taken_bytes >= _REPORT_BYTES:
                self._caller.emit(Taken(self.number, self._taken))
                self._taken = self._taken_bytes = 0
        sink.deliver(response)


class Caller:
    """All requests of a frontend process that have not ended."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self._requests: dict[int, PendingRequest] = {}
        self._newest = 0

    @property
    def pending(self) -> int:
        """The number of requests that have not ended."""
        return len(self._requests)

    def begin(self, sink: ResponseSink) -> PendingRequest:
        """A request that is about to be sent. Raises Unavailable when there are too many."""
        if len(self._requests) >= REMOTE_REQUESTS_MAX:
            raise Unavailable(f"the server has too many requests: a frontend process may have {REMOTE_REQUESTS_MAX}")
        self._newest += 1
        pending = self._requests[self._newest] = PendingRequest(self, self._newest, sink)
        return pending

    def withdraw(self, pending: PendingRequest) -> None:
        """It could not be sent."""
        del self._requests[pending.number]

    def find(self, number: int) -> PendingRequest | None:
        """The request of that number; None when it has been cancelled. Raises ProtocolError for one that never was."""
        if not 0 < number <= self._newest:
            raise ProtocolError(f"a response to request {number}, the newest is {self._newest}")
        return self._requests.get(number)

    def forget(self, pending: PendingRequest) -> None:
        """It has ended, or nobody waits for it: the engine is told when it does not know."""
        if self._requests.pop(pending.number, None) is not None and not pending.complete:
            self.emit(Cancel(pending.number))
