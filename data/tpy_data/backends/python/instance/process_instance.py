"""An instance whose model runs in a worker process."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from queue import Empty
from typing import NoReturn

from tpy.backend import (
    BatchListener,
    ExecutionBatch,
    ExecutionRequest,
    ExecutionResult,
    InstanceFailure,
    Outcome,
    WaitingBatch,
)
from tpy.backend.engine import EngineLimits
from tpy.errors import TpyError, Unavailable
from tpy.limits import WORKER_CHECK_S
from tpy.process_output import LogLine
from tpy.units import NS_PER_S
from tpy_data.backends.python.environment.process import memory_bytes
from tpy_data.backends.python.instance.loading import StartedWorker
from tpy_data.backends.python.instance.outcome import Answers, BatchExtra, Waiter, outcome_of
from tpy_data.backends.python.instance.start import WorkerStart
from tpy_data.backends.python.protocol.connection import WorkerConnection, unhealthy
from tpy_data.backends.python.protocol.messages import (
    ModelAnswer,
    decode_count,
    decode_failed,
    decode_ready,
    decode_result,
    encode,
    encode_batches,
    standard_frame,
    standard_result,
    unreadable,
)
from tpy_data.backends.python.protocol.responses import OpenResponses
from tpy_data.backends.python.protocol.small import HEADER_BYTES_MAX, TEXT_BYTES_MAX, are_small, are_small_texts
from tpy_data.backends.python.settings import PythonSettings
from tpy_data.backends.python.worker.wire.core.batch import Layout
from tpy_data.backends.python.worker.wire.core.frames import FrameKind, ProtocolViolation, ReceivedFrame
from tpy_data.backends.python.worker.wire.core.session import SessionState
from tpy_data.backends.python.worker.wire.endpoint import Closed
from tpy_data.backends.states import ImplicitState


class ProcessInstance:
    """One instance in its own process (a `ModelInstance`, `QueuedInstance`, `WatchedInstance` and `ChecksReadiness`).

    Batches are numbered from 1 on, and executed in this order. Of batches begun together, the worker starts all but the first
    only with a token, which `revoke` takes away. An engine's batches are begun one by one, also while others are held."""

    def __init__(
        self,
        worker: StartedWorker,
        start: WorkerStart,
        settings: PythonSettings,
        log: LogLine,
        *,
        state: ImplicitState | None = None,
        execute_limit_s: float | None = None,
    ) -> None:
        ready = decode_ready(worker.loaded)
        self.has_readiness_check = ready.is_ready
        self.engine_limits = None if ready.limits is None else EngineLimits(sequences=ready.limits[0], tokens=ready.limits[1])
        """As `LimitedInstance.engine_limits`."""
        self._unhealthy = self._end_reason = unhealthy(start.name)
        self._settings = settings
        self._log = log
        self._state = state
        self._is_decoupled = start.decoupled
        self._takes_devices = start.takes_devices
        self._execute_limit_s = execute_limit_s
        self._pid: int | None = worker.connection.pid
        self._connection: WorkerConnection = worker.connection
        self._questions = worker.questions
        self._calls = worker.calls
        self._watch = self._connection.end_watch()
        self._responses = OpenResponses(self._connection)
        self._listener: BatchListener | None = None
        self._has_news = False
        self._lock = threading.Lock()
        """Held while `held` or `_revoked` changes."""
        self.held: deque[ExecutionBatch] = deque()
        self._extras: dict[int, BatchExtra] = {}
        """Of batches that have one, by number: none of a plain model has."""
        self._number = 1
        """Of the oldest batch that is held."""
        self._start_ns = 0
        """The start of that one: when it was sent, or the one before it ended."""
        self._revoked = 0
        """Batches behind the held ones, until the worker says that it does not start them."""
        self._none_over = False
        """True from `begin` to the next result. The first batch of those begun together needs no token, so until that is over the
        worker cannot say of those behind it that they are not started."""
        self._questions.is_cancelled = self._is_cancelled
        self._questions.find_waiting = self._find_waiting
        connection = self._connection
        connection.handlers[FrameKind.RESULT] = self._take_result
        connection.handlers[FrameKind.NOT_STARTED] = self._take_not_started
        connection.handlers[FrameKind.FAILED] = self._take_failed
        connection.on_loss.insert(0, self._lose)
        connection.after_read = self._settle
        connection.watch(start.server)

    @property
    def pid(self) -> int | None:
        """The worker's process id, None once it has ended."""
        return self._pid

    def host_memory_bytes(self) -> int:
        """As `HasHostMemory.host_memory_bytes`: the worker's."""
        pid = self._pid
        return 0 if pid is None else memory_bytes(pid)

    def give_memory_back(self) -> None:
        """As `GivesMemoryBack.give_memory_back`: shared memory for inputs. The worker itself gives back what it has."""
        self._connection.give_memory_back()

    @property
    def end_reason(self) -> str:
        """As `WatchedInstance.end_reason`: Triton's text, then how the worker ended, as far as that is known. Waits a moment for
        one that is ending, and not for one that lives: `isinstance` with `WatchedInstance` reads this, too."""
        if self._end_reason == self._unhealthy and (self._connection.is_lost() or self._watch.has_ended()):
            self._end_reason += self._connection.how_lost()
        return self._end_reason

    @end_reason.setter
    def end_reason(self, reason: str) -> None:
        self._end_reason = reason

    @property
    def is_busy(self) -> bool:
        """As `QueuedInstance.is_busy`."""
        return bool(self.held or self._revoked)

    def check_ready(self, timeout_s: float) -> bool:
        """As `ChecksReadiness.check_ready`; any thread."""
        return self._questions.check_ready(timeout_s)

    def show_stack(self) -> None:
        """As `ShowsStack.show_stack`: the worker writes it, in the handler of a signal."""
        with self._lock:
            if self._pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGURG)

    def end_fileno(self) -> int:
        """As `WatchedInstance.end_fileno`."""
        return self._watch.fileno()

    # Batches

    def begin(self, batches: Sequence[ExecutionBatch], listener: BatchListener) -> int:
        """As `QueuedInstance.begin`: one batch if it takes long to be written down, or needs the state that those before
        leave."""
        connection, state = self._connection, self._state
        if connection.lost is not None:
            return 0
        is_single = state is not None or self.engine_limits is not None
        count = 1 if is_single or (len(batches) > 1 and not are_small(batches)) else len(batches)
        ahead = count - 1
        if ahead and not connection.tokens.give(ahead):
            ahead = 0
        begun = batches[: ahead + 1]
        given = [batch.requests for batch in begun] if state is None else [state.requests(begun[0].requests)]
        is_busy = connection.helper.is_busy
        frame = None  # made before the instance holds the batches, so that it does not when that fails
        if not is_busy and not self._is_decoupled:
            frame = standard_frame(self._number, given)
        with self._lock:
            number = self._number + len(self.held)
            self.held.extend(begun)
            if state is not None:
                self._extras[number] = BatchExtra(given[0])
            self._listener = listener
            self._none_over = True
        if connection.is_lost():  # maybe before it knew of these
            with self._lock:
                if len(self.held) == len(begun):  # else it will report these with the others
                    self._take_all()
                    return 0
        if number == self._number:
            self._start_ns = time.monotonic_ns()
        if frame is not None and connection.send_frame(frame):
            return len(begun)
        if is_busy or (not ahead and not are_small([begun[0]])):
            connection.later(partial(self._send, number, given))
        else:
            self._send(number, given)
        return len(begun)

    def _send(self, number: int, given: Sequence[Sequence[ExecutionRequest]]) -> None:
        """Send the batches from this number on, with these requests."""
        layout = Layout(self._connection.devices)
        numbers: list[int] | None = None
        try:
            if self._is_decoupled:
                numbers = []
                for index, requests in enumerate(given):
                    extra = self._extra(number + index, requests)
                    extra.numbers = [self._responses.open(request) for request in requests]
                    numbers.extend(extra.numbers)
            header = encode_batches(given, numbers, layout, on_device=self._takes_devices)
        except TpyError as error:
            layout.forget()
            self._complete_unsent(number, error)
            return
        try:
            loan = self._connection.lend(layout)
        except (OSError, MemoryError) as error:
            layout.forget()
            text = f"no shared memory for {layout.segment_bytes} bytes of inputs: {error}"
            self._complete_unsent(number, Unavailable(text))
        except TpyError as error:
            layout.forget()
            self._send_readable(number, given, error)
        else:
            self._connection.send(FrameKind.EXECUTE, number, header, layout, loan)
            if numbers is not None:
                self._responses.given(numbers)

    def _send_readable(self, number: int, given: Sequence[Sequence[ExecutionRequest]], error: TpyError) -> None:
        """A client has made a segment shorter, or the like: send the others' requests."""
        requests = given[0]  # and the only ones: large batches are begun one by one
        refused = {index: refusal for index, request in enumerate(requests) if (refusal := unreadable(request))}
        extra = self._extra(number, requests)
        if not refused or extra.refused or len(given) > 1 or self._is_decoupled:
            self._complete_unsent(number, error)
            return
        if len(refused) == len(requests):
            self._complete_unsent(number, list(refused.values()))
            return
        extra.refused = refused
        extra.requests = [request for index, request in enumerate(requests) if index not in refused]
        self._send(number, [extra.requests])

    def _extra(self, number: int, requests: Sequence[ExecutionRequest]) -> BatchExtra:
        """That of the batch with this number."""
        return self._extras.setdefault(number, BatchExtra(requests))

    def _complete_unsent(self, number: int, outcome: Outcome) -> None:
        """End what is held from this number on, which cannot be sent. Its tokens belong to nobody."""
        if self.engine_limits is not None:  # the worker is given an empty batch: what was begun is completed in order
            unseen = self._extra(number, ())
            self._responses.drop(unseen.numbers)
            unseen.unsent, unseen.numbers, unseen.requests = outcome, (), ()
            self._connection.send(FrameKind.EXECUTE, number, encode([()]))
            return
        with self._lock:
            if len(self.held) > 1:  # before another thread sees that nothing is held, and gives tokens for the next batches
                self._connection.tokens.take(len(self.held) - 1)
            unsent, extras = self._take_all()
        now_ns = time.monotonic_ns()
        for batch, extra in zip(unsent, extras, strict=True):
            if extra is not None:
                self._responses.drop(extra.numbers)
            times = batch.times
            times.start_ns = times.start_ns or now_ns
            times.input_end_ns = times.output_start_ns = times.end_ns = now_ns
            self._complete(batch, extra, outcome, None)
        self._connection.later(self._settle)  # the listener expects no call inside of `begin`

    def _take_all(self) -> tuple[list[ExecutionBatch], list[BatchExtra | None]]:
        """Hold nothing any more, under the lock. Returns what was held."""
        held = list(self.held)
        extras = [self._extras.pop(self._number + index, None) for index in range(len(held))]
        self.held.clear()
        self._drop(self._number + len(held), self._revoked)
        self._revoked = 0
        return held, extras

    def _drop(self, number: int, count: int) -> None:
        """Forget what is kept of `count` batches from this number on, which are not started; under the lock."""
        for each in range(number, number + count):
            extra = self._extras.pop(each, None)
            if extra is not None:
                self._responses.drop(extra.numbers)

    def revoke(self) -> Sequence[ExecutionBatch]:
        """As `QueuedInstance.revoke`."""
        with self._lock:
            most = len(self.held) - 1
            count = self._connection.tokens.take(most) if most > 0 else 0
            self._revoked += count
            revoked = [self.held.pop() for _ in range(count)]
            self._drop(self._number + len(self.held), count)
        revoked.reverse()
        return revoked

    def check(self) -> float:
        """As `QueuedInstance.check`."""
        self._connection.require_alive()
        limit_s = self._execute_limit_s
        if limit_s is None or not self.is_busy:
            return WORKER_CHECK_S
        left_s = limit_s - (time.monotonic_ns() - self._start_ns) / NS_PER_S
        if left_s <= 0:
            self.show_stack()
            self._connection.how_lost()  # a moment for that, before it is ended
            self.end_reason = f"{self._unhealthy} It was ended: execute did not return within {limit_s:g} s"
            self._connection.lose(TimeoutError(f"execute did not return within {limit_s:g} s"))
            return WORKER_CHECK_S
        return min(left_s, WORKER_CHECK_S)

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """Run the batch in the worker, and wait for it.

        Raises InstanceFailure when the worker died or sent what no worker sends; Internal, with Triton's text, when the model
        failed the batch as a whole.
        """
        waiter = Waiter()
        if not self.begin([batch], waiter):
            self._end_process()
            raise InstanceFailure(self.end_reason, begun=False)
        outcome: Outcome | InstanceFailure | None = None
        while outcome is None:
            try:
                outcome = waiter.said.get(timeout=self.check())
            except Empty:
                continue
        if isinstance(outcome, InstanceFailure):
            self._end_process()
        if isinstance(outcome, (InstanceFailure, TpyError)):
            raise outcome
        return () if self._is_decoupled and not any(result.reschedule for result in outcome) else outcome

    def _take_result(self, message: ReceivedFrame, on_loop: bool) -> bool:
        answers: Answers
        standard = None
        if not self._is_decoupled and message.segment is None and len(message.header) <= HEADER_BYTES_MAX:
            standard = standard_result(message, TEXT_BYTES_MAX)
        if standard is not None:
            times, answers = standard
        else:
            times, answers = decode_result(message.header)
            if on_loop and isinstance(answers, tuple):
                for answer in answers:
                    if isinstance(answer, ModelAnswer) and not are_small_texts(answer.outputs):
                        return False
        if message.stream != self._number:
            self._refuse_number(message)
        if not self.held:
            raise ProtocolViolation(f"RESULT while no batch was held, and {self._revoked} were revoked")
        batch = self.held[0]
        extra = self._extras.get(self._number) if self._extras else None
        if standard is not None and extra is None and len(standard[1]) == len(batch.requests):
            outcome: Outcome = standard[1]
        else:
            seen = BatchExtra(batch.requests) if extra is None else extra
            outcome = outcome_of(answers, message, seen, self._connection.devices, self._responses, decoupled=self._is_decoupled)
            outcome = outcome if seen.unsent is None else seen.unsent
        # A worker is believed as far as it says nothing impossible. A batch behind another starts when that has ended.
        start_ns, phases = self._start_ns, batch.times
        phases.start_ns = phases.start_ns or start_ns
        phases.input_end_ns, phases.output_start_ns = times[0], times[1]
        self._start_ns = phases.end_ns = min(max(times[2], start_ns), time.monotonic_ns())
        with self._lock:
            self.held.popleft()
            following = self.held[0] if self.held else None
            if extra is not None:
                self._extras.pop(self._number, None)
            self._number += 1
            self._none_over = False
        self._complete(batch, extra, outcome, following)
        return True

    def _complete(
        self, batch: ExecutionBatch, extra: BatchExtra | None, outcome: Outcome, following: ExecutionBatch | None
    ) -> None:
        """This became of a batch that is not held any more."""
        if extra is not None and extra.waiting is not None:
            extra.waiting.completed = True
        if self._state is not None and not isinstance(outcome, TpyError):
            outcome = self._state.keep(batch.requests, outcome)
        if self._listener is not None:
            self._listener.completed(batch, outcome, following)
        self._has_news = True

    def _take_not_started(self, message: ReceivedFrame, on_loop: bool) -> bool:
        said = decode_count(message.header)
        if message.stream != self._number:
            self._refuse_number(message)
        with self._lock:
            if self._none_over or self.held or said != self._revoked:
                raise ProtocolViolation(
                    f"{said} batches not started, while {len(self.held)} were held, and {self._revoked} were revoked"
                )
            self._drop(self._number, said)  # again: they may have been sent after they were revoked
            self._number += said
            self._revoked = 0
        self._has_news = True
        return True

    def _take_failed(self, message: ReceivedFrame, on_loop: bool) -> bool:
        _, self.end_reason = decode_failed(message.header)
        raise Closed(self.end_reason)

    def _refuse_number(self, message: ReceivedFrame) -> NoReturn:
        raise ProtocolViolation(f"{message.kind.name} with number {message.stream}, while {self._number} was due")

    # Questions of the model

    def _is_cancelled(self, number: int, index: int) -> bool:
        requests: Sequence[ExecutionRequest] = ()
        if self.held and number == self._number:
            extra = self._extras.get(number)
            requests = self.held[0].requests if extra is None else extra.requests
        if not 0 <= index < len(requests):
            raise ProtocolViolation(f"asked for request {index} of batch {number}, while {self._number} was executed")
        return requests[index].is_cancelled()

    def _find_waiting(self, number: int) -> WaitingBatch | None:
        with self._lock:
            index = number - self._number
            if not 0 <= index < len(self.held):
                return None
            batch = self.held[index]
            extra = self._extra(number, batch.requests)
            if extra.waiting is None:
                extra.waiting = WaitingBatch(batch.requests)
            return extra.waiting

    # The end

    def close(self) -> None:
        """Finalize the model and end its process, after the batches that were begun; bounded by finalize-timeout-seconds and
        EXIT_GRACE_S."""
        self._watch.close()
        connection = self._connection
        while self.is_busy and not connection.is_lost():
            connection.drive(lambda: not self.is_busy, self.check())
        if self._pid is None or connection.is_lost():
            self._end_process()
            return
        limit_s = self._settings.finalize_timeout_s
        connection.send(FrameKind.FINALIZE, 0, b"{}")
        if not connection.drive(lambda: connection.state is SessionState.ENDED, limit_s):
            pid, self._pid = self._pid, None
            how = f"did not finalize within {limit_s:g} s and {connection.give_up()}"
            self._log("error", f"worker process {pid} {how}")
        elif connection.is_lost():
            self._end_process()
        else:
            pid, self._pid = self._pid, None
            self._log("verbose", f"worker process {pid} {connection.finish()}")

    def _end_process(self) -> None:
        """The worker is lost."""
        with self._lock:
            pid, self._pid = self._pid, None
        if pid is not None:
            why = self._connection.lost
            self._log("error", f"worker process {pid} {self._connection.give_up()} ({why})")

    def _lose(self) -> None:
        """The worker is lost: what was begun fails, or waits for another instance; what is open beside that fails."""
        reason = self.end_reason
        with self._lock:
            was_busy = self.is_busy
            lost, extras = self._take_all()
        begun = bool(lost) and not self._connection.is_unread
        for index, extra in enumerate(extras):
            if extra is None:
                continue
            if extra.waiting is not None:
                extra.waiting.completed = True
            if index or not begun:
                self._responses.drop(extra.numbers)
        self._responses.failure_text = reason
        self._responses.end_all()
        if was_busy and self._listener is not None:
            self._listener.failed(InstanceFailure(reason, begun=begun), lost)
            self._has_news = True

    def _settle(self) -> None:
        """Notify the listener that this is all for now."""
        if self._has_news and self._listener is not None:
            self._has_news = False
            self._listener.settled()
