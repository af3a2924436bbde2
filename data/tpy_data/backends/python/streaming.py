"""An instance of a decoupled model that runs in a worker process.

    instance thread     says EXECUTE, waits until the worker's `execute` has returned
    pump thread         hears everything: responses go to their senders, the result of `execute` to the instance thread;
                        and says PROGRESS: how many responses were taken, and for which requests nobody waits any more
    Trio thread         tells the pump of both (`_Open`), without ever waiting

The pump never waits for a sender: the worker has at most a window of untaken responses per request, so one slow caller does not
hold up the other requests of the instance.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import select
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure, ResponseSender
from tpy.errors import Internal
from tpy_data.backends.python.answers import Answer, result_of
from tpy_data.backends.python.conversation import LOST, Conversation, overdue, unhealthy
from tpy_data.backends.python.isolated import encode_requests, lend_inputs
from tpy_data.backends.python.output_lines import LogLine
from tpy_data.backends.python.process import LIVENESS_CHECK_S
from tpy_data.backends.python.settings import PythonSettings
from tpy_data.backends.python.worker.channel import Closed
from tpy_data.backends.python.worker.core.batch import Array, Layout
from tpy_data.backends.python.worker.core.frames import Frame, Kind, ProtocolViolation
from tpy_data.backends.python.worker.core.windows import Receipts
from tpy_data.backends.python.worker.segments import Borrower, Lender


class _Response(msgspec.Struct, frozen=True):
    n: int
    f: bool
    s: tuple[int, int, bool] | None
    r: tuple[int, ...]
    d: tuple[int, ...]
    a: Answer | None


class _Returned(msgspec.Struct, frozen=True):
    r: tuple[int, ...]
    d: tuple[int, ...]
    a: str
    """Why the whole batch failed, "" when it did not."""
    g: tuple[int, ...]
    """The requests that are to be executed again."""


_encode = msgspec.json.Encoder().encode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_returned = msgspec.json.Decoder(_Returned).decode


class _Verdict(NamedTuple):
    """What became of a batch, or of the finalization: why it failed, "" for not; and which requests are given back."""

    failure: str
    given_back: tuple[int, ...] = ()


_FINALIZED = _Verdict("")
_UNREAD = _Verdict("the worker is lost, and never had the batch")


class _News:
    """What the Trio thread has to tell the pump. `poke` wakes it."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._items: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    def add(self, number: int, taken: int) -> None:
        """So many responses of a request were taken; -1: nobody waits for it any more. Never waits for long."""
        with self._lock:
            if self.descriptor >= 0:
                self._items.append((number, taken))
                os.eventfd_write(self.descriptor, 1)

    def collect(self) -> list[tuple[int, int]]:
        """Everything that was added."""
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.descriptor)
            items = list(self._items)
            self._items.clear()
        return items

    def close(self) -> None:
        """Nobody listens any more."""
        with self._lock:
            os.close(self.descriptor)
            self.descriptor = -1


class _Open:
    """One request that the worker has not ended. `receipts` are the pump's. It `rests` between two iterations; `is_over` says
    that nobody waits for it."""

    __slots__ = ("_news", "_number", "is_over", "receipts", "responses", "rests", "sender")

    def __init__(self, number: int, sender: ResponseSender, news: _News) -> None:
        self.sender = sender
        self.receipts = Receipts()
        self.responses = 0
        self.rests = False
        self.is_over = False
        self._number = number
        self._news = news

    def taken(self, count: int) -> None:
        """On the Trio thread."""
        self._news.add(self._number, count)

    def ended(self) -> None:
        """On the Trio thread, or at once in that of the instance."""
        self._news.add(self._number, -1)


class StreamingInstance:
    """One instance in a process of its own (a `ModelInstance`)."""

    def __init__(
        self,
        talk: Conversation,
        settings: PythonSettings,
        log: LogLine,
        *,
        checks_readiness: bool = False,
        execute_limit_s: float | None = None,
    ) -> None:
        self._execute_limit_s = execute_limit_s
        self._failure_text = unhealthy(talk.name)
        self._checks_readiness = checks_readiness
        self._talk = talk
        self._watch = talk.watch()
        self._settings = settings
        self._log = log
        self._lender = Lender()
        self._borrower = Borrower(writable=False)
        self._speaking = threading.Lock()
        """Of the lender as well: both are used by the instance's thread and by the pump."""
        self._numbers = itertools.count()
        self._open: dict[int, _Open] = {}
        self._given: list[int] = []
        """The requests of the last batch."""
        self._batch = 0
        """Its number."""
        self._news = _News()
        self._lost = False
        self._verdicts: queue.SimpleQueue[_Verdict | None] = queue.SimpleQueue()
        """Of each batch, and of the finalization; None or _UNREAD when the worker is lost."""
        self._resting: dict[ResponseSender, int] = {}
        """Requests that were given back, until their next iteration."""
        self._pump = threading.Thread(target=self._run_pump, name=f"{talk.name} responses", daemon=True)
        self._pump.start()

    @property
    def has_readiness_check(self) -> bool:
        """Whether the model has an is_ready."""
        return self._checks_readiness

    def check_ready(self, timeout_s: float) -> bool:
        """As `tpy.backend.ChecksReadiness`; any thread."""
        return self._talk.side.check_ready(timeout_s)

    @property
    def end_reason(self) -> str:
        """As `tpy.backend.WatchedInstance`."""
        return self._failure_text

    def end_fileno(self) -> int:
        """As `tpy.backend.WatchedInstance`."""
        return self._watch.fileno()

    @property
    def pid(self) -> int | None:
        """The worker's process id, None when there is none any more."""
        return None if self._lost else self._talk.pid

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """Hand the batch to the worker and wait until `execute` has returned there; answers go through the senders.

        Raises InstanceFailure when the worker died or sent what no worker sends; Internal, with Triton's text, when the model
        failed the batch as a whole.
        """
        numbers: list[int] = []
        self._given = numbers
        try:
            self._send(batch, numbers)
        except LOST:
            self._talk.cut()  # the pump sees to the rest
            raise InstanceFailure(self._failure_text, begun=False) from None
        batch.times.inputs_ready()
        try:
            verdict = self._verdicts.get(timeout=self._execute_limit_s)
        except queue.Empty:
            self._failure_text = overdue(self._talk.name, self._execute_limit_s)
            self._talk.cut()
            verdict = self._verdicts.get()  # the pump ends the worker
        self._talk.side.calls.batches.end()
        if verdict is None or verdict is _UNREAD:
            raise InstanceFailure(self._failure_text, begun=verdict is None)
        if verdict.failure:
            self._drop(numbers)
            raise Internal(verdict.failure)
        return self._given_back(numbers, verdict.given_back) if verdict.given_back else ()

    def _drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._open.pop(number, None)

    def _number_of(self, sender: ResponseSender) -> int:
        """A new number, or that of the iterations before."""
        number = self._resting.pop(sender, None)
        if number is None or number not in self._open:
            number = next(self._numbers)
            self._open[number] = _Open(number, sender, self._news)
        return number

    def _given_back(self, numbers: Sequence[int], given_back: Sequence[int]) -> list[ExecutionResult]:
        results = []
        for number in numbers:
            open_request = self._open.get(number) if number in given_back else None
            if open_request is not None:
                open_request.rests = True
                self._resting[open_request.sender] = number
                if open_request.is_over:  # found out before it rested
                    self._drop_resting(number)
            results.append(ExecutionResult(reschedule=open_request is not None))
        return results

    def _drop_resting(self, number: int) -> None:
        """Nobody waits for a request that rests: there is no further iteration of it."""
        open_request = self._open.pop(number, None)
        if open_request is not None:
            self._resting.pop(open_request.sender, None)

    def close(self) -> None:
        """Finalize the model and end its process; bounded by finalize-timeout-seconds and EXIT_GRACE_S."""
        limit_s = self._settings.finalize_timeout_s
        self._watch.close()
        if not self._lost:
            try:
                with self._speaking:
                    self._talk.say(Kind.FINALIZE, b"{}")
                self._verdicts.get(timeout=limit_s)
            except queue.Empty:
                self._log("error", f"worker process {self._talk.pid} did not finalize within {limit_s:g} s")
                self._talk.cut()
            except LOST:
                self._talk.cut()
        self._pump.join()
        if not self._lost:
            self._lost = True
            how = self._talk.finish()
            self._log("verbose", f"worker process {self._talk.pid} {how}")
        self._end_open(Internal(unhealthy(self._talk.name)))
        self._news.close()

    def _send(self, batch: ExecutionBatch, numbers: list[int]) -> None:
        """The numbers of the requests go into `numbers`. Raises Closed when the worker cannot have it."""
        layout = Layout()
        text = encode_requests(batch.requests, layout)
        with self._speaking:  # of the watching as well: the worker must not hear of a request before it has it
            if self._lost:
                raise Closed("the worker is lost")  # and what is open was ended
            try:
                self._open_requests(batch, numbers)
                loan = lend_inputs(self._lender, layout)
                header = {
                    "n": numbers,
                    "s": None if loan is None else (loan.number, loan.size, loan.descriptor >= 0),
                    "r": self._borrower.take_released(),
                    "d": self._lender.take_dropped(),
                    "q": msgspec.Raw(text),
                }
                self._batch = self._talk.side.calls.batches.begin(batch.requests)
                self._talk.say(Kind.EXECUTE, _encode(header), layout, loan, number=self._batch)
            except BaseException:
                self._drop(numbers)  # before the pump can end them
                raise

    def _open_requests(self, batch: ExecutionBatch, numbers: list[int]) -> None:
        for request in batch.requests:
            if request.sender is None:
                raise Internal("a request of a decoupled model has no sender")
            number = self._number_of(request.sender)
            numbers.append(number)
            open_request = self._open[number]
            if open_request.rests:
                open_request.rests = False  # watched since its first iteration
            else:
                request.sender.watch(open_request.taken, open_request.ended)

    # The pump

    def _run_pump(self) -> None:
        poller = select.poll()
        poller.register(self._talk.fileno(), select.POLLIN)
        poller.register(self._news.descriptor, select.POLLIN)
        try:
            while True:
                ready = [descriptor for descriptor, _ in poller.poll(LIVENESS_CHECK_S * 1000)]
                if not ready:
                    self._talk.require_alive()
                if self._news.descriptor in ready:
                    self._tell_progress()
                if self._talk.fileno() in ready and not self._hear():
                    return
        except LOST as error:
            self._lose(str(error), error)
        except Exception as error:  # a bug of ours in here must not leave anybody waiting
            self._lose(f"{type(error).__name__}: {error}", error)

    def _hear(self) -> bool:
        """Everything that has arrived. False when the worker has finalized."""
        frame: Frame | None = self._talk.hear()
        while frame is not None:
            if frame.kind is Kind.RESPONSE:
                self._respond(frame)
            elif frame.kind is Kind.RESULT:
                frame.require_number(self._batch)
                said = _decode_returned(frame.header)
                self._settle(said.r, said.d)
                self._verdicts.put(_Verdict(said.a, said.g))
            else:
                self._verdicts.put(_FINALIZED)
                return False
            frame = self._talk.hear_buffered()
        return True

    def _respond(self, frame: Frame) -> None:
        said = _decode_response(frame.header)
        self._settle(said.r, said.d)
        segment: Array | None = None
        if said.s is not None:
            number, size, is_new = said.s
            segment = self._borrower.borrow(number, size, self._talk.take_file() if is_new else None)
        open_request = self._open.get(said.n)
        if open_request is None or (said.a is None and not said.f):
            raise ProtocolViolation(f"a response for request {said.n}, which is not open or gets none")
        open_request.responses += 1
        frame.require_number(open_request.responses)
        result = None if said.a is None else result_of(said.a, frame.data, segment)
        if said.f:
            del self._open[said.n]
        elif said.a is not None:
            open_request.receipts.window.sent(sum([descriptor[5] for descriptor in said.a.outputs]))
        open_request.sender.send(result, final=said.f, wait=False)

    def _settle(self, returned: Sequence[int], dropped: Sequence[int]) -> None:
        self._borrower.drop(dropped)
        if returned:
            with self._speaking:
                self._lender.take_back(returned)

    def _tell_progress(self) -> None:
        taken: list[tuple[int, int]] = []
        ended: list[int] = []
        counts: dict[int, int] = {}
        for number, count in self._news.collect():
            if count < 0:
                ended.append(number)
                open_request = self._open.get(number)
                if open_request is not None:
                    open_request.is_over = True
                    if open_request.rests:
                        self._drop_resting(number)
            else:
                counts[number] = counts.get(number, 0) + count
        for number, count in counts.items():
            open_request = self._open.get(number)
            if open_request is not None and (told := open_request.receipts.taken(count)):
                taken.append((number, told))
        if taken or ended:
            with self._speaking:
                said = {
                    "t": taken,
                    "e": ended,
                    "r": self._borrower.take_released(),
                    "d": self._lender.take_dropped(),
                }
                self._talk.say(Kind.PROGRESS, _encode(said))

    def _lose(self, why: str, error: Exception) -> None:
        self._lost = True
        self._talk.cut()  # lets go whoever is sending, before the lock is asked for
        with self._speaking:
            is_unread = self._talk.is_unread_order(error)
            how = self._talk.give_up()
        self._log("error", f"worker process {self._talk.pid} {how} ({why})")
        if is_unread:
            self._drop(self._given)
        self._end_open(Internal(self._failure_text))
        self._verdicts.put(_UNREAD if is_unread else None)

    def _end_open(self, error: Internal) -> None:
        for number in list(self._open):
            open_request = self._open.pop(number, None)
            if open_request is not None:
                with contextlib.suppress(ValueError):
                    open_request.sender.send(ExecutionResult(error=error), final=True, wait=False)
