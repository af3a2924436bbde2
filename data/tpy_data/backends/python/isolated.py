"""An instance whose model runs in a worker process."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from tpy.backend import AnswerLater, ExecutionBatch, ExecutionRequest, ExecutionResult, InstanceFailure
from tpy.errors import Internal
from tpy.units import NS_PER_S
from tpy_data.backends.python import translation
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
    """One instance in a process of its own (a `ModelInstance`). Everything runs in the instance's thread."""

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
        self._execute_end_ns = 0
        self._checks_readiness = checks_readiness
        self._side = talk.side
        self._talk: Conversation | None = talk
        self._name = talk.name
        self._settings = settings
        self._log = log
        self._lender = Lender()
        self._borrower = Borrower(writable=False)

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

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """Run the batch in the worker.

        Raises InstanceFailure when the worker died or sent what no worker sends; Internal, with Triton's text, when the model
        failed the batch as a whole.
        """
        talk = self._talk
        if talk is None:
            raise InstanceFailure(unhealthy(self._name))
        try:
            self._send(talk, batch.requests)
            batch.times.inputs_ready()
            frame = self._hear(talk)
            while frame.kind is Kind.IS_CANCELLED:
                self._answer_cancelled(talk, batch.requests, _decode_index(frame.header))
                frame = self._hear(talk)
            talk.side.calls.end_batch()
            batch.times.outputs_begin()
            return self._results(talk, frame, len(batch.requests))
        except LOST as error:
            how = talk.give_up()
            self._talk = None
            self._log("error", f"worker process {talk.pid} {how} ({error})")
            raise InstanceFailure(unhealthy(self._name)) from error
        except TimeoutError:
            talk.give_up()
            self._talk = None
            raise InstanceFailure(overdue(self._name, self._execute_limit_s)) from None

    def _hear(self, talk: Conversation) -> Frame:
        """The worker's next word. Raises TimeoutError when `execute` takes longer than it may."""
        if self._execute_limit_s is None:
            return talk.hear()
        return talk.hear_within(max(self._execute_end_ns - time.monotonic_ns(), 0) / NS_PER_S)

    def close(self) -> None:
        """Finalize the model and end its process; bounded by finalize-timeout-seconds and EXIT_GRACE_S."""
        if self._talk is not None:
            talk, self._talk = self._talk, None
            how = talk.stop(self._settings.finalize_timeout_s)
            self._log("verbose", f"worker process {talk.pid} {how}")

    def _send(self, talk: Conversation, requests: Sequence[ExecutionRequest]) -> None:
        layout = Layout()
        text = encode_requests(requests, layout)
        loan = lend_inputs(self._lender, layout)
        header = {
            "s": None if loan is None else (loan.number, loan.size, loan.descriptor >= 0),
            "r": self._borrower.take_released(),
            "d": self._lender.take_dropped(),
            "q": msgspec.Raw(text),
        }
        talk.side.calls.begin_batch(requests)
        if self._execute_limit_s is not None:
            self._execute_end_ns = time.monotonic_ns() + round(self._execute_limit_s * NS_PER_S)
        talk.say(Kind.EXECUTE, _encode(header), layout, loan)

    @staticmethod
    def _answer_cancelled(talk: Conversation, requests: Sequence[ExecutionRequest], index: int) -> None:
        if not 0 <= index < len(requests):
            raise ProtocolViolation(f"asked for request {index} of {len(requests)}")
        talk.say(Kind.CANCELLED, b"true" if requests[index].is_cancelled() else b"false")

    def _results(self, talk: Conversation, frame: Frame, count: int) -> list[ExecutionResult]:
        said = _decode_result(frame.header)
        self._borrower.drop(said.d)
        self._lender.take_back(said.r)
        if isinstance(said.a, str):
            if said.s is not None:
                raise ProtocolViolation("a segment came with an error")
            raise Internal(said.a)
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
