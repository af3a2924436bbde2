"""Responses: what a model answers through senders: all requests of a decoupled model, and requests of other models whose answer
comes after their batch. Any thread of the model sends."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Sequence
from functools import partial

from ..model.messages import answer_of, failed_answer
from ..pb_utils.failures import ErrorCode
from ..pb_utils.response import DROPPED, InferenceResponse, SingleAnswer, StreamedAnswer
from ..wire.core.batch import Layout
from ..wire.core.frames import FrameKind, ReceivedFrame
from ..wire.core.windows import Window
from ..wire.endpoint import Closed
from .connection import TEXT_BYTES_MAX, ServerConnection, decode, encode


class Flow:
    """A request that is answered through senders, until its last response. `ended`: nobody waits for it any more; `rests`: it is
    between two iterations."""

    __slots__ = ("ended", "lock", "responses", "rests", "window")

    def __init__(self) -> None:
        self.ended = False
        self.rests = False
        self.responses = 0
        """That were sent."""
        self.window = Window()
        self.lock = threading.Lock()
        """Of the window."""


class WorkerResponses:
    """One per worker."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._flows: dict[int, Flow] = {}
        self._late = itertools.count(1)
        self._sending = threading.Lock()
        """Responses of one request are sent in order, and nothing after its end."""
        connection.handlers[FrameKind.PROGRESS] = self._take_progress
        connection.on_loss.append(self._lose)

    def open(self, number: int) -> None:
        """A request of a decoupled model has come, or comes again for another iteration."""
        self._flows.setdefault(number, Flow()).rests = False

    def streamed_answer(self, number: int, wanted: Sequence[str] | None) -> StreamedAnswer:
        """The response sink of a request of a decoupled model."""
        flow = self._flows[number]
        return StreamedAnswer(
            partial(self._deliver, number, wanted),
            is_cancelled=partial(self.is_ended, flow),
            dropped=partial(self._drop, number),
            is_full=partial(self._is_full, flow),
        )

    def _is_full(self, flow: Flow) -> bool:
        if not flow.window.is_full:
            return False
        self._connection.poll()
        return flow.window.is_full and not flow.ended

    def is_ended(self, flow: Flow) -> bool:
        """Returns True when nobody waits for the request any more."""
        if not flow.ended:
            self._connection.poll()
        return flow.ended

    def end(self, numbers: Sequence[int]) -> None:
        """These have failed, or are not started: nothing more is sent of them."""
        with self._sending:
            for number in numbers:
                self._flows.pop(number, None)

    def rest(self, number: int) -> bool:
        """The request is to be executed again. False when it has ended, or nobody waits for it: then it is not."""
        with self._sending:
            flow = self._flows.get(number)
            if flow is None:
                return False
            flow.rests = True
            if flow.ended:
                self._flows.pop(number, None)
            return True

    def open_late(self) -> tuple[int, Flow]:
        """A number for a request whose answer comes after its batch."""
        number = next(self._late)
        flow = self._flows[number] = Flow()
        return number, flow

    def go_late(self, number: int, wanted: Sequence[str] | None, sink: SingleAnswer) -> None:
        """The server knows that number: the answer goes there, at once if it was sent meanwhile."""
        sent = sink.go_late(partial(self._deliver_late, number, wanted))
        if sent is not None:
            self._deliver_late(number, wanted, sent)

    def _deliver_late(self, number: int, wanted: Sequence[str] | None, response: InferenceResponse) -> None:
        error = response.error()
        if error is not None and self._flows.pop(number, None) is not None:
            # Perhaps in the middle of garbage collection: the sender was dropped.
            answer = failed_answer(error.message()[: TEXT_BYTES_MAX // 8], int(error.code()))
            self._connection.post(FrameKind.RESPONSE, number, [1, True, answer])
        else:
            with contextlib.suppress(Closed):
                self._deliver(number, wanted, response, True)

    def _drop(self, number: int) -> None:
        """Nobody can send anything any more. In the middle of garbage collection."""
        flow = self._flows.pop(number, None)
        if flow is not None:
            self._connection.post(FrameKind.RESPONSE, number, [flow.responses + 1, True, failed_answer(DROPPED)])

    def _deliver(self, number: int, wanted: Sequence[str] | None, response: InferenceResponse | None, final: bool) -> None:
        """Send one response; waits for room unless it is the final one. Raises Closed when the server is gone, and in a process
        that the model has forked."""
        self._connection.require_own()
        flow = self._flows.get(number)
        if flow is None:
            return
        layout = self._connection.layout()
        answer = None if response is None else answer_of(response, wanted, layout)
        if flow.ended or (not final and answer is not None and not self._wait_room(flow, sum([each[5] for each in answer[3]]))):
            if not final:
                return
            layout.forget()
            answer, layout = None, Layout()  # the server still wants to know of the end
        text = encode(answer)
        if len(text) > TEXT_BYTES_MAX:
            text = f"a response with {len(text)} bytes of texts, parameters and names is too long to be sent"
            layout.forget()
            text, layout = encode(failed_answer(text)), Layout()
        with self._sending:
            if number not in self._flows:
                layout.forget()
                return  # the batch has failed meanwhile
            if final:
                del self._flows[number]
            flow.responses += 1
            head = f"[{flow.responses},{'true' if final else 'false'},"
            try:
                self._connection.send(FrameKind.RESPONSE, number, f"{head}{text}]", layout)
            except OSError as error:
                layout.forget()
                text = f"no shared memory for {layout.segment_bytes} bytes of outputs: {error}"
                text = encode(failed_answer(text, int(ErrorCode.UNAVAILABLE)))
                self._connection.send(FrameKind.RESPONSE, number, f"{head}{text}]")

    def _wait_room(self, flow: Flow, size: int) -> bool:
        """Wait until a response of `size` bytes may be sent, and count it. False when nobody waits for it."""
        while True:
            with flow.lock:
                if flow.ended:
                    return False
                if not flow.window.is_full:
                    flow.window.sent(size)
                    return True
            self._connection.wait(lambda: flow.ended or not flow.window.is_full)

    def _take_progress(self, message: ReceivedFrame) -> None:
        taken, ended = decode(message.header)
        for number, count in taken:
            flow = self._flows.get(number)
            if flow is not None:
                with flow.lock:
                    flow.window.taken(count)
        for number in ended:
            flow = self._flows.get(number)
            if flow is not None:
                flow.ended = True
                if flow.rests:
                    self._flows.pop(number, None)

    def _lose(self) -> None:
        for flow in list(self._flows.values()):
            flow.ended = True
