"""BatchRun: one batch on one instance. The job that goes to the instance's thread and comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure, ModelInstance, Outcome, PhaseTimes
from tpy.clock import Clock
from tpy.errors import Internal, TpyError
from tpy.limits import RUN_SLICE_NS_MAX
from tpy_data.engine.exception_text import exception_text
from tpy_data.engine.executor import Worker
from tpy_data.engine.outputs import flaw_of
from tpy_data.engine.ticket import Execution, RequestTicket

if TYPE_CHECKING:
    from tpy_data.engine.prompt_line import PromptLine

_SENT = ExecutionResult()
"""In place of a result of a decoupled model, whose answers go another way."""


class InstanceSlot(NamedTuple):
    """A running instance as the request path needs it. `number` is the one the scheduler knows; `failed` is told why, on the
    Trio thread, when the instance can run nothing any more; `worked` after a batch that it ran without that."""

    number: int
    name: str
    instance: ModelInstance
    worker: Worker
    worked: Callable[[], None]
    failed: Callable[[str], None]
    line: PromptLine | None = None
    """There when its instance is prompt."""


class BatchOwner(Protocol):
    """Who takes finished batches. With `returns_unbegun`, a batch that an instance failed with before it had begun it waits for
    another one; otherwise it is over like any that failed."""

    returns_unbegun: bool

    def batch_finished(self, run: BatchRun) -> None:
        """Called on the Trio thread."""
        ...


class BatchRun:
    """`results` holds one result per ticket, in order, once the job is finished. `failure` says that, and why, the instance can
    run nothing any more; `begun` False that it had not begun this batch, which is to be given to another one."""

    __slots__ = ("_clock", "_owner", "begun", "failure", "results", "slot", "tickets", "times")

    def __init__(self, slot: InstanceSlot, tickets: Sequence[RequestTicket], clock: Clock, owner: BatchOwner) -> None:
        self.slot = slot
        self.tickets = tickets
        self.times = PhaseTimes()
        self.results: Sequence[ExecutionResult] = ()
        self.failure: str | None = None
        self.begun = True
        self._clock = clock
        self._owner = owner

    def begin(self) -> None:
        """The instance's thread turns to this batch."""
        self.times.start_ns = now_ns = self._clock.now_ns()
        for ticket in self.tickets:
            if ticket.sender is None:
                break
            ticket.sender.began_ns = now_ns

    def run(self) -> None:
        """Execute. Whatever the model raises becomes the answer of these requests, and of no others."""
        try:
            results = self.slot.instance.execute(ExecutionBatch(self.tickets, self.times))
            if not results and self.tickets[0].sender is not None:
                results = [_SENT] * len(self.tickets)
            self.conclude(results)
        except InstanceFailure as failure:
            self.fail(failure)
        except TpyError as error:
            self.conclude(error)
        except BaseException as error:  # also sys.exit() in model code, which must end neither this thread nor the server
            self._fail(Internal(self._text(error)))
        self.times.end_ns = self._clock.now_ns()

    def conclude(self, outcome: Outcome) -> None:
        """This has become of the batch."""
        if isinstance(outcome, TpyError):
            # Without its traceback, whose frames would keep the batch's tensors alive.
            self._fail(outcome.with_traceback(None))
            return
        try:
            self._require_sound(outcome)
        except Internal as error:
            self._fail(error.with_traceback(None))
        else:
            self.results = outcome

    def fail_now(self, failure: InstanceFailure) -> None:
        """The instance, which was given it with others, has failed with this batch."""
        self.fail(failure)
        self.times.end_ns = self._clock.now_ns()
        self.times.start_ns = self.times.start_ns or self.times.end_ns

    def fail(self, failure: InstanceFailure) -> None:
        """The instance has failed with this batch."""
        self.failure = str(failure)
        self.begun = failure.begun or not self._owner.returns_unbegun
        self._fail(Internal(self.failure))

    def finished(self) -> None:
        """Back on the Trio thread."""
        self._owner.batch_finished(self)

    @property
    def took_ns(self) -> int:
        """How long the instance was at it, once it is over."""
        return self.times.end_ns - self.times.start_ns

    @property
    def brief(self) -> bool:
        """Whether it took so little that several such should run for one hand-over."""
        return self.took_ns <= RUN_SLICE_NS_MAX

    def execution(self) -> Execution:
        """The times of a finished batch. What the backend did not say counts as inference."""
        times = self.times
        start_ns, end_ns = times.start_ns, times.end_ns
        input_end_ns = min(max(times.input_end_ns, start_ns), end_ns)
        output_start_ns = min(max(times.output_start_ns or end_ns, input_end_ns), end_ns)
        return Execution(start_ns, input_end_ns - start_ns, output_start_ns - input_end_ns, end_ns - output_start_ns)

    def _require_sound(self, results: Sequence[ExecutionResult]) -> None:
        """Raises Internal for what breaks the contract."""
        if len(results) != len(self.tickets):
            raise Internal(f"instance '{self.slot.name}' gave {len(results)} results for {len(self.tickets)} requests")
        for result in results:
            flaw = flaw_of(result)
            if flaw is not None:
                raise Internal(f"instance '{self.slot.name}' gave {flaw}")

    def _fail(self, error: TpyError) -> None:
        self.results = [ExecutionResult(error=error)] * len(self.tickets)

    def _text(self, error: BaseException) -> str:
        return f"Failed to process the request(s) for model '{self.slot.name}', message: {exception_text(error)}"
