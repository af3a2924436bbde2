"""Batch: requests that an instance executes together, and what becomes of them. Exceptions of backends in `execute` are logged
with model, instance, request ids and traceback, a limited number per instance and time."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure, ModelInstance, Outcome, PhaseTimes, flaw_of
from tpy.clock import Clock
from tpy.devices import ArrayReference
from tpy.echo import echo, echo_list
from tpy.errors import Fault, Internal, TpyError
from tpy.limits import FAILURE_REPORTS_INSTANCES_MAX, FAILURE_REPORTS_MAX, FAILURE_REPORTS_S
from tpy.messages import Place, Tensor
from tpy_data.engine.requests.handle import Execution
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.exception_text import exception_text

_log = logging.getLogger(__name__)
_TEXT = "%(instance)s: execute failed (model '%(model)s'%(requests)s): %(error)s\n%(left_out)s%(traceback)s"


class FailureLog:
    """Logs the failures of all instances that execute in threads of the server, a limited number of each: a model that always
    fails must not fill the log. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[float, int]] = {}
        """By instance: the beginning of the while, and the failures in it."""

    def report(self, instance_name: str, tickets: Sequence[RequestTicket], error: BaseException) -> None:
        """Log that these requests failed with `error`, unless there were too many of the kind lately."""
        left_out = self._admit(instance_name)
        if left_out is None:
            return
        ids = echo_list((f"'{echo(ticket.id)}'" for ticket in tickets if ticket.id), ", ")
        context = {
            "instance": instance_name,
            "model": tickets[0].owner.name if tickets else "",
            "requests": f", request id {ids}" if ids else "",
            "error": exception_text(error),
            "left_out": f"({left_out} failures before this one are not in the log)\n" if left_out else "",
            "traceback": _traceback_of(error),
        }
        _log.error(_TEXT, context)

    def _admit(self, instance_name: str) -> int | None:
        """The number of failures left out before this one; None if this one is, too."""
        with self._lock:
            now_s, left_out = self._clock(), 0
            since_s, count = self._counts.get(instance_name, (now_s, 0))
            if now_s - since_s >= FAILURE_REPORTS_S:
                since_s, left_out, count = now_s, max(0, count - FAILURE_REPORTS_MAX), 0
            if instance_name not in self._counts and len(self._counts) >= FAILURE_REPORTS_INSTANCES_MAX:
                self._counts.clear()
            self._counts[instance_name] = (since_s, count + 1)
            return None if count >= FAILURE_REPORTS_MAX else left_out


def _traceback_of(error: BaseException) -> str:
    """As Python shows it, without our own call of the backend."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    try:
        return "".join(traceback.TracebackException(type(error), error, trace).format()).rstrip()
    except Exception:
        return "<its traceback cannot be read>"


_FAILURES = FailureLog()


_SENT = ExecutionResult()
"""In place of a result of a decoupled model, whose answers go another way."""


class Batch(ExecutionBatch):
    """One batch on one instance: what its backend is given, and what becomes of it. `tickets` are its `requests`.

    When it is over, `results` holds one result per ticket, in order. `failure` says that, and why, the instance can run nothing
    any more; then `is_started` false that it cannot have seen anything of the batch. `is_executed` false: its only request had
    ended before its turn. `notes_begin`: somebody wants to know of one of its requests when it is begun. `cpu_ns`: the CPU time
    of the thread that executed it, None where that was not measured.
    """

    __slots__ = ("cpu_ns", "failure", "instance_name", "is_executed", "is_started", "notes_begin", "results", "tickets")

    def __init__(self, instance_name: str, tickets: Sequence[RequestTicket]) -> None:
        self.instance_name = instance_name
        self.requests = self.tickets = tickets
        self.times = PhaseTimes()
        self.results: Sequence[ExecutionResult] = ()
        self.failure: str | None = None
        self.cpu_ns: int | None = None
        self.is_executed = True
        self.is_started = True
        self.notes_begin = False
        for ticket in tickets:
            if ticket.sender is not None or ticket.record is not None:
                self.notes_begin = True
                break

    def begin(self, now_ns: int) -> None:
        """The instance turns to it. Any thread, as everything here but `execution`."""
        self.times.start_ns = now_ns
        for ticket in self.tickets:
            if ticket.sender is not None:
                ticket.sender.began_ns = now_ns
            elif ticket.record is not None and not ticket.abandoned:
                ticket.record.started_ns = now_ns

    def execute(self, instance: ModelInstance, clock: Clock, takes: frozenset[Place] = frozenset()) -> None:
        """Execute on an instance that takes inputs in these places, beside the host's memory. Whatever the model raises becomes
        the answer of these requests, and of no others."""
        try:
            for ticket in self.tickets:
                if ticket.residency is not None and ticket.residency.inputs:
                    ticket.inputs = within_reach(ticket.inputs, takes)
            results = instance.execute(self)
            if not results and self.tickets[0].sender is not None:
                results = [_SENT] * len(self.tickets)
            self.completed(results)
        except InstanceFailure as failure:
            self.fail(failure, clock)
        except TpyError as error:
            if isinstance(error, Fault) and not error.is_logged:
                _FAILURES.report(self.instance_name, self.tickets, error)
            self.completed(error)
        except BaseException as error:  # also sys.exit() in model code, which must end neither this thread nor the server
            _FAILURES.report(self.instance_name, self.tickets, error)
            self._fail(Internal(failed_to_process(self.instance_name, error)))
        self.times.end_ns = clock.now_ns()

    def completed(self, outcome: Outcome) -> None:
        """This has become of the batch."""
        if isinstance(outcome, TpyError):
            # Without its traceback, whose frames would keep the batch's tensors alive.
            self._fail(outcome.with_traceback(None))
            return
        flaw = f"{len(outcome)} results for {len(self.tickets)} requests" if len(outcome) != len(self.tickets) else None
        for result in outcome:
            flaw = flaw or flaw_of(result)
        if flaw is not None and len(outcome) == len(self.tickets):  # an output on a device is one, unless it may stay there
            flaws = [flaw_of(result, ticket.residency) for result, ticket in zip(outcome, self.tickets, strict=True)]
            flaw = next((each for each in flaws if each is not None), None)
        if flaw is None:
            self.results = outcome
        else:
            self._fail(Internal(f"instance '{self.instance_name}' gave {flaw}"))

    def fail(self, failure: InstanceFailure, clock: Clock) -> None:
        """The instance has failed with this batch."""
        self.failure = str(failure)
        self.is_started = failure.begun
        for ticket in () if failure.begun else self.tickets:
            if ticket.record is not None and not ticket.abandoned:
                ticket.record.started_ns = None
        self._fail(Internal(self.failure))
        self.times.end_ns = clock.now_ns()
        self.times.start_ns = self.times.start_ns or self.times.end_ns

    @property
    def is_abandoned(self) -> bool:
        """True when its only request has ended."""
        return len(self.tickets) == 1 and self.tickets[0].abandoned

    @property
    def took_ns(self) -> int:
        """The time that the instance took for it, once it is over: at least 1, but 0 for one that was not executed."""
        return max(1, self.times.end_ns - self.times.start_ns) if self.is_executed else 0

    def execution(self) -> Execution:
        """The times of a batch that was executed: never negative. What the backend did not say counts as inference."""
        times = self.times
        start_ns, end_ns = times.start_ns, times.end_ns
        input_end_ns, output_start_ns = times.input_end_ns, times.output_start_ns or end_ns
        if not start_ns <= input_end_ns <= output_start_ns <= end_ns:
            end_ns = max(start_ns, end_ns)
            input_end_ns = min(max(input_end_ns, start_ns), end_ns)
            output_start_ns = min(max(output_start_ns, input_end_ns), end_ns)
        return Execution(start_ns, input_end_ns - start_ns, output_start_ns - input_end_ns, end_ns - output_start_ns)

    def _fail(self, error: TpyError) -> None:
        self.results = [ExecutionResult(error=error)] * len(self.tickets)


def within_reach(inputs: Mapping[str, Tensor], takes: frozenset[Place]) -> Mapping[str, Tensor]:
    """Returns the inputs; an input in a place that the model does not accept is copied. Blocking."""
    found = {}
    for name, tensor in inputs.items():
        array: object = tensor.array
        if isinstance(array, ArrayReference):
            tensor = Tensor(tensor.name, tensor.datatype, array.within_reach(takes))
        found[name] = tensor
    return found


def failed_to_process(instance_name: str, error: BaseException) -> str:
    """The error text for a request whose batch raised this."""
    return f"Failed to process the request(s) for model '{instance_name}', message: {exception_text(error)}"
