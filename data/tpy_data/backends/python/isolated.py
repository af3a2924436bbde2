"""An instance whose model runs in a worker process."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from tpy.backend import AnswerLater, ExecutionBatch, ExecutionRequest, ExecutionResult, InstanceFailure, Outcome, PhaseTimes
from tpy.errors import Internal, TpyError
from tpy.limits import PROMPT_SILENCE_S_MAX
from tpy.units import NS_PER_S
from tpy_data.backends.python import at_once, translation
from tpy_data.backends.python.answers import Answer, result_of
from tpy_data.backends.python.call_desk import CallDesk
from tpy_data.backends.python.conversation import LOST, Conversation, overdue, unhealthy
from tpy_data.backends.python.output_lines import LogLine
from tpy_data.backends.python.process import Spawner, WorkerProcess
from tpy_data.backends.python.settings import PythonSettings
from tpy_data.backends.python.start import WorkerStart
from tpy_data.backends.python.worker.core.batch import Array, Layout
from tpy_data.backends.python.worker.core.frames import HEADER_BYTES_MAX, Frame, Kind, ProtocolViolation
from tpy_data.backends.python.worker.core.session import State
from tpy_data.backends.python.worker.segments import Borrower, Lender, Loan

SLOW_START_S = 30
"""A model that still initialises is mentioned in the log this often."""


class _Result(msgspec.Struct, frozen=True):
    s: tuple[int, int, bool] | None
    r: tuple[int, ...]
    d: tuple[int, ...]
    t: tuple[int, int, int]
    """In ns: when it was handed to the model, came back from it, and was said."""
    a: tuple[Answer | int, ...] | str
    """One answer per request, or the number under which it comes later; or why the whole batch failed."""


_encode = msgspec.json.Encoder().encode
_decode_result = msgspec.json.Decoder(_Result).decode
_decode_index = msgspec.json.Decoder(int).decode
_decode_text = msgspec.json.Decoder(str).decode


def start_worker(
    start: WorkerStart, settings: PythonSettings, spawner: Spawner, log: LogLine
) -> tuple[Conversation, msgspec.Raw]:
    """Start a worker and have it load its model; the talk with it, and what it said when it was ready (JSON).

    Raises Internal with the reason when the model does not load: the model's own failure with its text, a worker that died,
    or one that took longer than the settings allow.
    """
    process = WorkerProcess(start.name, start.interpreter, spawner, log, host=start.host)
    calls = CallDesk(start.name, start.server, log)
    side = spawner.side_desk.open(start.name, process.side, start.metrics, log, calls)
    talk = Conversation(start.name, process, side, streaming=start.decoupled)
    try:
        talk.say(Kind.LOAD, start.order())
        talk.hear_within(settings.start_timeout_s)
        frame = _hear_loaded(talk, start, settings.initialize_timeout_s, log)
    except TimeoutError:
        starting = talk.state is State.STARTING
        talk.give_up()
        if starting:
            what, limit_s = "its interpreter did not start", settings.start_timeout_s
        else:
            step = "auto_complete_config" if start.mode == "auto_complete" else "initialize"
            what, limit_s = f"{step} did not return", settings.initialize_timeout_s
        raise Internal(f"Stub process '{start.name}' is not ready: {what} within {limit_s:g} s") from None
    except LOST:
        raise talk.give_up_starting() from None
    except BaseException:
        talk.give_up()
        raise
    if frame.kind is Kind.FAILED:
        talk.give_up()
        raise Internal(_decode_text(frame.header))
    return talk, msgspec.Raw(bytes(frame.header))


def _hear_loaded(talk: Conversation, start: WorkerStart, limit_s: float, log: LogLine) -> Frame:
    waited_s = 0.0
    while True:
        step_s = min(SLOW_START_S, limit_s - waited_s)
        try:
            return talk.hear_within(step_s)
        except TimeoutError:
            waited_s += step_s
            if waited_s >= limit_s:
                raise
            log("warning", f"still loading the model after {waited_s:g} s; it is given {limit_s:g} s")


class IsolatedInstance:
    """One instance in a process of its own (a `ModelInstance`, and a `PromptInstance` for what is small)."""

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
        self._checks_readiness = checks_readiness
        self._side = talk.side
        self._talk: Conversation | None = talk
        self._name = talk.name
        self._settings = settings
        self._log = log
        self._lender = Lender()
        self._borrower = Borrower(writable=False)
        self._watch = talk.watch()
        self._open: deque[ExecutionBatch] = deque()
        self._number = 0
        """Of the oldest open batch."""
        self._start_ns = 0
        self._taken_back = 0
        self._counting = threading.Lock()
        """Held while `_open` gets shorter or `_taken_back` changes: the thread may finish a run of which others take back."""
        self._none_over = False
        """Of what was begun together."""
        self._rest: memoryview | None = None
        """Of a message that could not be sent at once."""
        self._left: Frame | None = None
        """A message that the Trio thread does not deal with."""
        self._lost: Exception | None = None

    @property
    def has_readiness_check(self) -> bool:
        """Whether the model has an is_ready."""
        return self._checks_readiness

    def check_ready(self, timeout_s: float) -> bool:
        """As `tpy.backend.ChecksReadiness`; any thread."""
        return self._side.check_ready(timeout_s)

    @property
    def pid(self) -> int | None:
        """The worker's process id, None when there is none any more."""
        return None if self._talk is None else self._talk.pid

    @property
    def end_reason(self) -> str:
        """As `tpy.backend.WatchedInstance`."""
        return unhealthy(self._name)

    def end_fileno(self) -> int:
        """As `tpy.backend.WatchedInstance`."""
        return self._watch.fileno()

    @property
    def is_prompt(self) -> bool:
        """As `PromptInstance`. Where time is limited the thread watches over it, which has it after `PROMPT_SILENCE_S_MAX` at the
        earliest, and after twice that at the latest."""
        return self._execute_limit_s is None or self._execute_limit_s >= 2 * PROMPT_SILENCE_S_MAX

    @property
    def open_batches(self) -> int:
        """As `PromptInstance`."""
        return len(self._open)

    @property
    def is_stuck(self) -> bool:
        """As `PromptInstance`."""
        return self._left is not None or self._lost is not None or self._rest is not None

    def fileno(self) -> int:
        """As `PromptInstance`."""
        return -1 if self._talk is None else self._talk.fileno()

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """Run the batch in the worker.

        Raises InstanceFailure when the worker died or sent what no worker sends; Internal, with Triton's text, when the model
        failed the batch as a whole.
        """
        talk = self._talk
        if talk is None:
            raise InstanceFailure(unhealthy(self._name), begun=False)
        try:
            self._send(talk, batch)
        except LOST as error:
            self._lost = error
        outcomes: list[Outcome] = []
        self.finish(outcomes.append)
        if isinstance(outcomes[0], TpyError):
            raise outcomes[0]
        return outcomes[0]

    def begin(self, batches: Sequence[ExecutionBatch]) -> bool:
        """As `PromptInstance`: false for what takes long to be written down, and for what does not fit into a message."""
        talk = self._talk
        if talk is None or not at_once.are_brief(batches):
            return False
        layout = Layout()
        try:
            text = encode_requests([request for batch in batches for request in batch.requests], layout)
        except Internal:
            return False
        if layout.segment_bytes:
            return False
        ahead = len(batches) - 1
        if ahead and not talk.tokens.give(ahead):
            return False
        calls = talk.side.calls.batches
        numbers = [calls.begin(batch.requests) for batch in batches]
        self._number = numbers[0]
        self._open.extend(batches)
        self._none_over = True
        header = self._header(text, None)
        self._start_ns = time.monotonic_ns()
        try:
            self._rest = talk.say_at_once(Kind.RUN if ahead else Kind.EXECUTE, header, layout, self._number) or None
        except LOST as error:
            self._lost = error
        return True

    def collect(self, take: Callable[[Outcome], None]) -> None:
        """As `PromptInstance`."""
        talk = self._talk
        if talk is None or self.is_stuck:
            return
        try:
            frame = talk.hear_at_once()
            while frame is not None:
                if frame.kind is Kind.IS_CANCELLED or not self._take(talk, frame, take, brief=True):
                    self._left = frame
                    return
                frame = talk.hear_buffered()
        except Exception as error:  # whatever it is, the instance's thread sees to it: the loop must not end
            self._lost = error

    def take_back(self) -> int:
        """As `PromptInstance`."""
        talk = self._talk
        if talk is None:
            return 0
        with self._counting:
            most = len(self._open) - 1 - self._taken_back
            count = talk.tokens.take(most) if most > 0 else 0
            self._taken_back += count
            return count

    def finish(self, take: Callable[[Outcome], None]) -> None:
        """As `PromptInstance`."""
        talk = self._talk
        if talk is None:
            raise InstanceFailure(unhealthy(self._name), begun=False)
        try:
            if self._lost is not None:
                raise self._lost
            if self._rest is not None:
                rest, self._rest = self._rest, None
                talk.say_rest(rest)
            while self._open:
                frame, self._left = self._left or self._hear(talk), None
                if frame.kind is Kind.IS_CANCELLED:
                    self._answer_cancelled(talk, frame)
                else:
                    self._take(talk, frame, take)
        except TimeoutError:
            talk.give_up()
            self._let_go()
            raise InstanceFailure(overdue(self._name, self._execute_limit_s)) from None
        except Exception as error:
            begun = not talk.is_unread_order(error)
            how = talk.give_up()
            self._let_go()
            self._log("error", f"worker process {talk.pid} {how} ({error})")
            raise InstanceFailure(unhealthy(self._name), begun=begun) from error

    def close(self) -> None:
        """Finalize the model and end its process; bounded by finalize-timeout-seconds and EXIT_GRACE_S."""
        self._watch.close()
        if self._talk is not None:
            talk, self._talk = self._talk, None
            how = talk.stop(self._settings.finalize_timeout_s)
            self._log("error" if talk.state is State.BROKEN else "verbose", f"worker process {talk.pid} {how}")

    def _let_go(self) -> None:
        """The worker is gone. What failed refers to this instance through its traceback, so that without this the shared memory
        would stay until the garbage collector comes by; what was borrowed stays as long as somebody looks at it."""
        self._talk = self._lost = self._left = self._rest = None
        self._lender, self._borrower = Lender(), Borrower(writable=False)

    def _hear(self, talk: Conversation) -> Frame:
        """The worker's next word. Raises TimeoutError when `execute` takes longer than it may."""
        if self._execute_limit_s is None:
            return talk.hear()
        spent_s = (time.monotonic_ns() - self._start_ns) / NS_PER_S
        return talk.hear_within(max(self._execute_limit_s - spent_s, 0))

    def _send(self, talk: Conversation, batch: ExecutionBatch) -> None:
        layout = Layout()
        text = encode_requests(batch.requests, layout)
        loan = lend_inputs(self._lender, layout)
        header = self._header(text, loan)
        self._number = talk.side.calls.batches.begin(batch.requests)
        self._open.append(batch)
        self._none_over = True
        self._start_ns = time.monotonic_ns()
        talk.say(Kind.EXECUTE, header, layout, loan, number=self._number)

    def _header(self, queue: bytes, loan: Loan | None) -> bytes:
        return _encode(
            {
                "s": None if loan is None else (loan.number, loan.size, loan.descriptor >= 0),
                "r": self._borrower.take_released(),
                "d": self._lender.take_dropped(),
                "q": msgspec.Raw(queue),
            }
        )

    def _answer_cancelled(self, talk: Conversation, frame: Frame) -> None:
        frame.require_number(self._number)
        requests, index = self._open[0].requests, _decode_index(frame.header)
        if not 0 <= index < len(requests):
            raise ProtocolViolation(f"asked for request {index} of {len(requests)}")
        talk.say(Kind.CANCELLED, b"true" if requests[index].is_cancelled() else b"false", number=self._number)

    def _take(self, talk: Conversation, frame: Frame, take: Callable[[Outcome], None], *, brief: bool = False) -> bool:
        """Take what became of the oldest open batch, or that no other is begun. False, with `brief`, when that takes longer.
        Raises ProtocolViolation or msgspec.DecodeError."""
        if brief and not at_once.is_brief(frame):
            return False
        frame.require_number(self._number)
        if frame.kind is Kind.NOT_BEGUN:
            self._take_not_begun(talk, _decode_index(frame.header))
            return True
        count = len(self._open)
        if count <= self._taken_back or (frame.kind is Kind.RESULT) != (count == 1):
            raise ProtocolViolation(f"{frame.kind.name} while {count} batches were open, {self._taken_back} of them taken back")
        said = _decode_result(frame.header)
        if brief and not at_once.are_plain(said.a):
            return False
        batch = self._open[0]
        outcome = self._outcome(talk, frame, said, len(batch.requests))
        self._set_times(batch.times, said.t)
        with self._counting:
            self._open.popleft()
        self._number += 1
        self._none_over = False
        talk.side.calls.batches.end()
        take(outcome)
        return True

    def _take_not_begun(self, talk: Conversation, said: int) -> None:
        with self._counting:
            count, taken_back = len(self._open), self._taken_back
            if self._none_over or said != count or count != taken_back:
                raise ProtocolViolation(f"{said} batches not begun, while {count} were open, {taken_back} of them taken back")
            self._open.clear()
            self._taken_back = 0
        talk.side.calls.batches.not_begun(count)

    def _set_times(self, times: PhaseTimes, said: tuple[int, int, int]) -> None:
        """A worker is believed as far as it says nothing impossible. A batch of a run starts when the one before has ended."""
        start_ns = self._start_ns
        times.start_ns = times.start_ns or start_ns
        times.input_end_ns, times.output_start_ns = said[0], said[1]
        self._start_ns = times.end_ns = min(max(said[2], start_ns), time.monotonic_ns())

    def _outcome(self, talk: Conversation, frame: Frame, said: _Result, count: int) -> Outcome:
        self._borrower.drop(said.d)
        self._lender.take_back(said.r)
        if isinstance(said.a, str):
            if said.s is not None:
                raise ProtocolViolation("a segment came with an error")
            return Internal(said.a)
        if len(said.a) != count:
            raise ProtocolViolation(f"a result for {len(said.a)} of {count} requests")
        segment: Array | None = None
        if said.s is not None:
            number, size, is_new = said.s
            segment = self._borrower.borrow(number, size, talk.take_file() if is_new else None)
        expect = talk.side.expect
        return [
            result_of(answer, frame.data, segment) if isinstance(answer, Answer) else AnswerLater(begin=expect(answer).begin)
            for answer in said.a
        ]


def encode_requests(requests: Sequence[ExecutionRequest], layout: Layout) -> bytes:
    """The requests as a worker takes them, their tensors laid out. Raises Internal for texts that are too long."""
    queue = []
    for request in requests:
        correlation_id, flags = translation.correlation_and_flags(request.sequence)
        queue.append(
            (
                request.id,
                correlation_id,
                flags,
                request.timeout_us,
                translation.parameters_text(request.parameters),
                translation.wanted_of(request),
                [layout.add(name, given.datatype.number, translation.storage(given)) for name, given in request.inputs.items()],
            )
        )
    text = _encode(queue)
    if len(text) > HEADER_BYTES_MAX // 2:
        raise Internal(f"a batch with {len(text)} bytes of request ids, parameters and names is too long to be sent")
    return text


def lend_inputs(lender: Lender, layout: Layout) -> Loan | None:
    """The segment with what the layout placed there, None when that is nothing. Raises Internal without memory."""
    if not layout.segment_bytes:
        return None
    try:
        return lender.lend(layout.placed, layout.segment_bytes)
    except OSError as error:
        raise Internal(f"no shared memory for {layout.segment_bytes} bytes of inputs: {error}") from error
