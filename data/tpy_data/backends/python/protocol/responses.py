"""Responses: the requests that a worker answers through senders: those of a decoupled model, and those of another one whose
answer comes after their batch.

The worker has at most a window of untaken responses per request, so one slow caller does not hold up the others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from functools import partial

from tpy.backend import AnswerLater, ExecutionRequest, ExecutionResult, ResponseSender
from tpy.errors import Internal
from tpy.messages import Residency
from tpy_data.backends.python.protocol.connection import WorkerConnection
from tpy_data.backends.python.protocol.late_answer import LateAnswer
from tpy_data.backends.python.protocol.messages import decode_response, encode, result_of
from tpy_data.backends.python.protocol.small import are_small_texts
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ProtocolViolation, ReceivedFrame
from tpy_data.backends.python.worker.wire.core.windows import Receipts


class _Open:
    """One request that the worker has not ended. `is_given`: it knows of it; it `rests` between two iterations; `is_over` says
    that nobody waits for it."""

    __slots__ = ("is_given", "is_over", "receipts", "residency", "responses", "rests", "sender")

    def __init__(self, sender: ResponseSender, *, is_given: bool, residency: Residency | None = None) -> None:
        self.sender = sender
        self.residency = residency
        self.is_given = is_given
        self.receipts = Receipts()
        self.responses = 0
        self.rests = False
        self.is_over = False


class OpenResponses:
    """One per connection. Requests are numbered by the server if the model is decoupled, else by the worker."""

    def __init__(self, connection: WorkerConnection) -> None:
        self.failure_text = ""
        """The error of requests that are open when the worker is lost."""
        self._connection = connection
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}
        self._resting: dict[ResponseSender, int] = {}
        """Requests that were given back, until their next iteration."""
        self._next = 1
        connection.handlers[FrameKind.RESPONSE] = self._take_response

    def __len__(self) -> int:
        """Requests that are open."""
        return len(self._open)

    def open(self, request: ExecutionRequest) -> int:
        """The number of a request of a decoupled model: a new one, or that of the iterations before."""
        sender = request.sender
        if sender is None:
            raise Internal("a request of a decoupled model has no sender")
        with self._lock:
            number = self._resting.pop(sender, 0)
            known = self._open.get(number)
            if known is not None:
                known.rests = False  # watched since its first iteration
                return number
            number, self._next = self._next, self._next + 1
            self._open[number] = _Open(sender, is_given=False, residency=request.residency)
        sender.watch(partial(self._taken, number), partial(self._ended, number))
        return number

    def given(self, numbers: Sequence[int]) -> None:
        """The worker was sent these. It is notified now of the ones that nobody waits for any more."""
        ended = []
        with self._lock:
            for number in numbers:
                known = self._open.get(number)
                if known is not None and not known.is_given:
                    known.is_given = True
                    if known.is_over:
                        ended.append(number)
        if ended:
            self._connection.send(FrameKind.PROGRESS, 0, encode(((), ended)))

    def expect(self, number: int) -> AnswerLater:
        """The answer that the worker gives under this number."""
        late = LateAnswer()
        with self._lock:
            if number in self._open:
                raise ProtocolViolation(f"an answer under number {number}, under which another one is to come")
            self._open[number] = _Open(late, is_given=True)
        late.watch(partial(self._taken, number), partial(self._ended, number))
        return AnswerLater(begin=late.begin)

    def rest(self, number: int) -> bool:
        """The worker gives a request back. False when it has ended."""
        with self._lock:
            known = self._open.get(number)
            if known is None:
                return False
            known.rests = True
            self._resting[known.sender] = number
            if known.is_over:  # found out before it rested: there is no further iteration
                self._drop(number)
            return True

    def drop(self, numbers: Sequence[int]) -> None:
        """Somebody else ends these."""
        with self._lock:
            for number in numbers:
                self._drop(number)

    def end_all(self) -> None:
        """The worker is gone."""
        with self._lock:
            ended, self._open = list(self._open.values()), {}
            self._resting.clear()
        error = Internal(self.failure_text)
        for known in ended:
            with contextlib.suppress(ValueError):
                known.sender.send(ExecutionResult(error=error), final=True, wait=False)

    def _drop(self, number: int) -> None:
        known = self._open.pop(number, None)
        if known is not None and known.rests:
            self._resting.pop(known.sender, None)

    def _taken(self, number: int, count: int) -> None:
        """On the Trio thread."""
        with self._lock:
            known = self._open.get(number)
            due = 0 if known is None else known.receipts.taken(count)
        if due:
            self._connection.send(FrameKind.PROGRESS, 0, encode((((number, due),), ())))

    def _ended(self, number: int) -> None:
        """On the Trio thread, or at once in that which opens it."""
        with self._lock:
            known = self._open.get(number)
            if known is None:
                return
            known.is_over = True
            if not known.is_given:
                return
            if known.rests:
                self._drop(number)
        self._connection.send(FrameKind.PROGRESS, 0, encode(((), (number,))))

    def _take_response(self, message: ReceivedFrame, on_loop: bool) -> bool:
        index, final, answer = decode_response(message.header)
        number = message.stream
        if on_loop and answer is not None and not are_small_texts(answer.outputs):
            return False
        with self._lock:
            known = self._open.get(number)
        residency = None if known is None else known.residency
        result = None if answer is None else result_of(answer, message, self._connection.devices, residency)
        with self._lock:
            known = self._open.get(number)
            if known is None or (answer is None and not final):
                raise ProtocolViolation(f"a response for request {number}, which is not open or gets none")
            known.responses += 1
            if index != known.responses:
                raise ProtocolViolation(f"RESPONSE with number {index}, while {known.responses} was due")
            if final:
                del self._open[number]
            elif answer is not None:
                known.receipts.window.sent(sum([descriptor[5] for descriptor in answer.outputs]))
        known.sender.send(result, final=final, wait=False)
        return True
