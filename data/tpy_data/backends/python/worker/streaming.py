"""The worker's loop for a decoupled model: the main thread runs batches, another one reads, and any thread of the model answers.

The reading thread never waits for anything but the socket, so whatever the server says is taken at once: that is what lets the
server write while the model's threads write to it.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from .call_line import CallLine
from .channel import Channel
from .core.batch import Array, Layout
from .core.frames import HEADER_BYTES_MAX, NUMBER_MAX, Frame, Kind, ProtocolViolation
from .core.windows import Window
from .failures import ModelFailure, TritonError, describe
from .messages import answer_of, requests_of, speakable
from .request import InferenceRequest, answer_through
from .response import InferenceResponse
from .response_sender import DROPPED, WayBack
from .runner import ModelRunner
from .segments import Borrower, Lender

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decoder = json.JSONDecoder()


class _Flow:
    """One request that has not ended: how much of it is on its way, and whether anybody waits."""

    __slots__ = ("_room", "_window", "ended", "responses", "rests")

    def __init__(self) -> None:
        self.responses = 0
        """That were sent; changed by whoever speaks."""
        self.ended = False
        self.rests = False
        self._window = Window()
        self._room = threading.Condition()

    def wait_room(self, size: int) -> bool:
        """Wait until a response of `size` bytes may be sent, and count it. False when nobody waits for it."""
        with self._room:
            while self._window.is_full and not self.ended:
                self._room.wait()
            if not self.ended:
                self._window.sent(size)
            return not self.ended

    def taken(self, count: int) -> None:
        """Raises ProtocolViolation for more than were sent."""
        with self._room:
            self._window.taken(count)
            self._room.notify_all()

    def end(self) -> None:
        """Nobody waits any more."""
        with self._room:
            self.ended = True
            self._room.notify_all()


class _Order(NamedTuple):
    """A batch as it was received. `file` is that of its segment, or None."""

    header: dict[str, Any]
    data: memoryview
    file: int | None
    number: int


class StreamingWorker:
    """Serves one decoupled model. `run_coroutine` is for its runner."""

    def __init__(self, channel: Channel, outputs: frozenset[str], calls: CallLine) -> None:
        self._calls = calls
        self._executed = 0
        self._channel = channel
        self._outputs = outputs
        self._lender = Lender()
        self._borrower = Borrower(writable=True)
        self._lending = threading.Lock()
        self._speaking = threading.Lock()
        self._flows: dict[int, _Flow] = {}
        """Changed under `_speaking`, so that nothing is said of a request after its end was."""
        self._inbox: queue.SimpleQueue[_Order | int | Exception | None] = queue.SimpleQueue()
        """Batches, numbers of requests whose senders were dropped, None to finalize, or why the server cannot be heard."""
        self._ways: Sequence[WayBack] = ()
        self._starting: Sequence[InferenceRequest] = ()
        """The batch that `execute` is called with."""
        self._runner: ModelRunner | None = None
        self._loop: Any = None

    def serve(self, runner: ModelRunner) -> None:
        """Until FINALIZE. Raises Closed when the server is gone."""
        self._runner = runner
        threading.Thread(target=self._read, name="tpy-reader", daemon=True).start()
        while True:
            item = self._inbox.get()
            match item:
                case _Order():
                    self._execute(runner, item)
                case int():
                    self._deliver(item, None, InferenceResponse(error=TritonError(DROPPED)), True)
                case None:
                    break
                case _:
                    raise item
            del item  # it holds the batch's tensors

    def stop(self) -> None:
        """The event loop of an async model ends."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run an async `execute` beside the next batches, on an event loop in a thread of its own."""
        import asyncio

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="tpy-event-loop", daemon=True).start()
        ids = [request.request_id() for request in self._starting]
        asyncio.run_coroutine_threadsafe(self._see_through(coroutine, tuple(self._ways), ids), self._loop)

    def run_beside(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, on the loop of an async `execute` once there is one."""
        import asyncio

        if self._loop is None:
            return asyncio.run(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _see_through(self, coroutine: Coroutine[Any, Any, Any], ways: Sequence[WayBack], ids: Sequence[str]) -> None:
        try:
            await coroutine
        except BaseException as error:
            if self._runner is not None:
                self._runner.report(error, ids)  # also when every request has had its answer
            text = f"Failed to process the request(s), message: {describe(error, sys._getframe())}"
            for way in ways:
                if not way.ended:
                    way.send(InferenceResponse(error=TritonError(text)), final=True)

    # The reading thread

    def _read(self) -> None:
        try:
            while self._hear(self._channel.receive()):
                pass
        except Exception as error:
            for flow in list(self._flows.values()):
                flow.end()
            self._inbox.put(error)

    def _hear(self, frame: Frame) -> bool:
        header = _decoder.decode(str(frame.header, "utf-8"))
        if frame.kind is Kind.FINALIZE:
            self._inbox.put(None)
            return False
        if frame.kind not in (Kind.EXECUTE, Kind.PROGRESS):
            raise ProtocolViolation(f"unexpected {frame.kind.name}")
        with self._lending:
            self._borrower.drop(header["d"])
            self._lender.take_back(header["r"])
        if frame.kind is Kind.EXECUTE:
            for number in header["n"]:
                self._flows.setdefault(number, _Flow()).rests = False  # there already in another iteration
            is_new = header["s"] is not None and header["s"][2]
            self._inbox.put(_Order(header, frame.data, self._channel.take_file() if is_new else None, frame.number))
            return True
        for number, count in header["t"]:
            flow = self._flows.get(number)
            if flow is not None:
                flow.taken(count)
        for number in header["e"]:
            flow = self._flows.get(number)
            if flow is not None:
                flow.end()
                if flow.rests:
                    self._flows.pop(number, None)
        return True

    # Batches

    def _execute(self, runner: ModelRunner, order: _Order) -> None:
        header = order.header
        self._executed += 1
        if order.number != self._executed & NUMBER_MAX:
            raise ProtocolViolation(f"a batch with number {order.number}, while {self._executed} was due")
        segment: Array | None = None
        if header["s"] is not None:
            with self._lending:
                segment = self._borrower.borrow(header["s"][0], header["s"][1], order.file)
        numbers = header["n"]
        ways = []
        requests = requests_of(header["q"], order.data, segment, self._outputs)
        segment = None
        for request, number, entry in zip(requests, numbers, header["q"], strict=True):
            flow = self._flows[number]
            way = WayBack(
                partial(self._deliver, number, entry[5]),
                is_cancelled=partial(getattr, flow, "ended"),
                dropped=partial(self._inbox.put, number),
            )
            answer_through(request, way)
            ways.append(way)
        del request, way
        failure = ""
        self._ways, self._starting = ways, requests
        self._calls.batch = self._executed
        try:
            given_back = [numbers[index] for index in runner.start(requests)]
        except ModelFailure as error:
            failure = speakable(str(error))
            given_back = []
        self._channel.require_own()
        self._calls.batch = 0
        self._ways = self._starting = ()
        if failure:
            for way in ways:
                way.close()
        for number, way in zip(numbers, ways, strict=False):
            if number in given_back:
                way.close()
                self._given_back(number)
        ways.clear()
        del way  # there is at least one request
        del requests  # not cleared: it may be a coroutine's now
        with self._lending:
            settled = {"r": self._borrower.take_released(), "d": self._lender.take_dropped()}
        with self._speaking:
            if failure:
                for number in numbers:
                    self._flows.pop(number, None)
            if len(failure) > HEADER_BYTES_MAX // 8:
                failure = failure[: HEADER_BYTES_MAX // 8]
            given_back = [number for number in given_back if number in self._flows]  # the others have ended
            told = _encode({**settled, "a": failure, "g": given_back})
            self._channel.send(Kind.RESULT, told.encode(), [], 0, -1, order.number)

    def _given_back(self, number: int) -> None:
        """The request rests until its next iteration; when nobody waits for it any more, there is none."""
        with self._speaking:
            flow = self._flows.get(number)
            if flow is not None:
                flow.rests = True
                if flow.ended:
                    self._flows.pop(number, None)

    def _deliver(self, number: int, wanted: Sequence[str] | None, response: InferenceResponse | None, final: bool) -> None:
        """Send one response; waits for room unless it is the final one. Any thread. Raises Closed when the server is gone, and in
        a process that the model has forked."""
        self._channel.require_own()  # before anything is written into memory that the server sees
        flow = self._flows.get(number)
        if flow is None:
            return
        layout = Layout()
        answer = None if response is None else answer_of(response, wanted, layout)
        if flow.ended or (not final and answer is not None and not flow.wait_room(sum([entry[5] for entry in answer[3]]))):
            if not final:
                return
            answer, layout = None, Layout()  # the server still wants to hear of the end
        text = _encode(answer)
        if len(text) > HEADER_BYTES_MAX // 2:
            layout = Layout()
            text = _encode(
                [1, f"a response with {len(text)} bytes of texts, parameters and names is too long to be sent", "", []]
            )
        with self._lending:
            loan = None
            if layout.segment_bytes:
                try:
                    loan = self._lender.lend(layout.placed, layout.segment_bytes)
                except OSError as error:
                    text = _encode([1, f"no shared memory for {layout.segment_bytes} bytes of outputs: {error}", "", []])
                    layout = Layout()
            layout.placed.clear()
            segment = None if loan is None else [loan.number, loan.size, loan.descriptor >= 0]
            settled = {"r": self._borrower.take_released(), "d": self._lender.take_dropped()}
        header = _encode({"n": number, "f": final, "s": segment, **settled})
        try:
            with self._speaking:
                if number not in self._flows:
                    return  # the batch has failed meanwhile
                if final:
                    del self._flows[number]
                flow.responses += 1
                file = -1 if loan is None else loan.descriptor
                told = f'{header[:-1]},"a":{text}}}'.encode()
                self._channel.send(Kind.RESPONSE, told, layout.data, layout.data_bytes, file, flow.responses)
        finally:
            if loan is not None:
                loan.sent()
