"""VersionEngine: the request path of one model version, from submission to answer. All of it runs on the Trio thread, on the
caller's stack; the only things that happen elsewhere are `run` of BatchRun, SinglesRun and PromptRun, in the thread of an
instance."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import cast

import trio

from tpy.backend import AnswerLater, ExecutionResult
from tpy.clock import Clock
from tpy.config import ModelConfig
from tpy.deliveries import Deliveries
from tpy.echo import request_prefix
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable, invariant
from tpy.messages import InferenceRequest, InferenceResponse, ResponseStatistics, Tensor
from tpy.services import RequestHandle, ResponseSink
from tpy_data.engine.admission import Admission
from tpy_data.engine.batch_run import BatchRun, InstanceSlot
from tpy_data.engine.decoupled import DecoupledRequests
from tpy_data.engine.outputs import OutputSelection
from tpy_data.engine.request_timeouts import with_deadline
from tpy_data.engine.singles_run import Run, SinglesRun
from tpy_data.engine.statistics import VersionStatistics
from tpy_data.engine.ticket import RequestTicket, ResourceGate
from tpy_data.schedulers.core import CoreSnapshot, LiveSequence, Outcome, Phase, SchedulerCore, SequenceEnd, Ticket
from tpy_data.schedulers.driver import Performer, SchedulerDriver

_log = logging.getLogger(__name__)


class Nobody:
    """The sink of a request that was cancelled when its answer was already on the way."""

    def deliver(self, response: InferenceResponse) -> None:
        pass


NOBODY = Nobody()


class VersionEngine:
    """Admits requests, schedules them, runs batches on instances, answers. `run` is a task of its owner's nursery."""

    returns_unbegun = True

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        core: SchedulerCore,
        clock: Clock,
        *,
        make_driver: Callable[[SchedulerCore, Clock, Performer], SchedulerDriver] = SchedulerDriver,
        deliveries: Deliveries | None = None,
    ) -> None:
        self.statistics = VersionStatistics()
        self.gate: ResourceGate | None = None  # set by who makes it, where instances are rate limited
        self.enforces_timeouts = False  # set by who makes it, where --request-timeout or the model says so
        self._name = config.name
        self._version = version
        self._clock = clock
        self._deliveries = deliveries or Deliveries()
        self._admission = Admission(config)
        self._outputs = OutputSelection(config)
        self._driver = make_driver(core, clock, self)
        self._open = DecoupledRequests(
            clock, self._deliveries, self._outputs, self.statistics, self
        )  # also for answers that come later
        self._decoupled = self._open if config.decoupled else None
        self._slots: dict[int, InstanceSlot] = {}
        self._runs: dict[int, Run] = {}  # of those instances that have several requests at a time
        self._batches_running = 0
        self._holds = 0
        self._drained: trio.Event | None = None
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Keep deadlines. Runs until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for slot in self._slots.values():
                    self._start(slot)
                nursery.start_soon(self._open.run)
                await self._driver.run()
        finally:
            self._nursery = None

    def submit(self, request: InferenceRequest, sink: ResponseSink) -> RequestHandle:
        """As `ResolvedModel.submit`."""
        if self.enforces_timeouts:
            request = with_deadline(request, self._clock.now_ns())
        try:
            inputs, batch_size, signature = self._admission.admit(request)
            ticket = RequestTicket(request, inputs, batch_size=batch_size, signature=signature, sink=sink, owner=self)
            if self._decoupled is not None:
                self._decoupled.begin(ticket)
            self._driver.submit(ticket)
        except InvalidArgument:
            self.statistics.refused_admission()
            raise
        except Unavailable as refusal:
            self.statistics.refused_admission()
            raise Unavailable(f"{request_prefix(request.id)}{refusal}") from None
        return ticket

    def cancel(self, ticket: RequestTicket) -> None:
        """Forget a request: its sink is not called again. No-op for one that was answered."""
        if ticket.sender is not None:
            self._cancel_open(ticket)
            return
        if ticket.phase is Phase.ENDED:
            # Its answer can be among the decisions that are being performed now, when a sink before it cancels it.
            ticket.sink = NOBODY
            ticket.abandoned = True
            return
        ticket.abandoned = True
        self._driver.cancel(ticket)
        self._take_back(ticket)
        self.statistics.cancelled(ticket, self._clock.now_ns())
        self._check_drained()

    @property
    def name(self) -> str:
        """The model's."""
        return self._name

    @property
    def instance_count(self) -> int:
        """How many instances take its work."""
        return len(self._slots)

    def break_up_runs(self) -> None:
        """Have every request that no instance has begun wait in the queue, for any of them."""
        for number in list(self._runs):
            self.break_up(number)

    def add_instance(self, slot: InstanceSlot) -> None:
        """Give work to this instance from now on."""
        self._slots[slot.number] = slot
        self._start(slot)
        self._driver.add_instance(slot.number, steady=True)

    def remove_instance(self, number: int) -> None:
        """Give it no more work. A batch that it runs is still answered. Absent numbers are fine."""
        slot = self._slots.pop(number, None)
        if slot is not None:
            if slot.line is not None:
                slot.line.close()
            self._driver.remove_instance(number)

    def retire_instance(self, number: int, gone: Callable[[], object]) -> None:
        """Give it no more work than must be: `gone` is called when nothing ties it to requests any more. Here nothing does."""
        self.remove_instance(number)
        gone()

    def snapshot(self) -> CoreSnapshot:
        """How many requests wait and run now."""
        return self._driver.snapshot()

    def refuse_waiting(self) -> None:
        """Refuse what is queued: no instance can be had."""
        self._driver.refuse_waiting()
        self._check_drained()

    def stop(self) -> None:
        """Refuse what is queued and what still comes; end decoupled requests that have not."""
        self._driver.stop()
        self._open.stop()
        self._check_drained()

    def abandon(self) -> None:
        """As `ModelEngine.abandon`."""
        with self._deliveries:
            self.stop()
            self._driver.refuse_executing()

    async def wait_drained(self) -> None:
        """Until no request waits, no batch runs, none is open that its model answers through a sender, and nobody holds it. The
        owner must have seen to it that no new ones come from anywhere else."""
        if self._drained is None:
            self._drained = trio.Event()
        self._check_drained()
        await self._drained.wait()

    def hold(self) -> None:
        """As `ModelEngine.hold`."""
        self._holds += 1

    def release(self) -> None:
        """As `ModelEngine.release`."""
        self._holds -= 1
        self._check_drained()

    # What the driver's core decides.

    def dispatch(self, instance: int, tickets: Sequence[Ticket], *, singly: bool, steady: bool = False) -> None:
        """Have a batch or a run executed by the instance."""
        slot = self._slots[instance]
        # The driver gives back the tickets that `submit` gave it.
        requests = cast("Sequence[RequestTicket]", tickets)
        if not singly or len(requests) == 1:
            self._give(BatchRun(slot, requests, self._clock, self))
            return
        self._batches_running += 1
        if slot.line is not None:
            batches = [BatchRun(slot, (ticket,), self._clock, self) for ticket in requests]
            begun = slot.line.begin(batches, self, steady=steady)
            if begun is not None:
                self._runs[instance] = begun
                return
        run = self._runs[instance] = SinglesRun(slot, requests, self._clock, self, steady=steady)
        slot.worker.put(run)

    def dispatch_places(self, instance: int, tickets: Sequence[Ticket], places: Sequence[Ticket | None]) -> None:
        """Hand a batch with empty places to the instance's thread."""
        invariant(False, "a batch with places for a model without sequences")

    def sequence_ended(self, sequence: LiveSequence, why: SequenceEnd) -> None:
        """A sequence is over."""
        if self._drained is not None:
            self._check_drained()

    def retired(self, instance: int) -> None:
        """The instance that was to retire has nothing more to do."""
        slot = self._slots.pop(instance)
        if slot.line is not None:
            slot.line.close()

    def break_up(self, instance: int) -> None:
        """Answer what is executed of a run, and have what is not begun wait again."""
        run = self._runs.get(instance)
        if run is None:
            return
        run.look()
        if self._runs.get(instance) is run:
            not_begun = run.take_waiting()
            self._driver.broken_up(instance, executed=self._take_finished(run), not_begun=not_begun)

    def respond(self, tickets: Sequence[Ticket]) -> None:
        """Answer requests whose batch was executed."""
        if self._decoupled is not None:
            self._decoupled.respond(cast("Sequence[RequestTicket]", tickets))
            return
        now_ns = self._clock.now_ns()
        for ticket in cast("Sequence[RequestTicket]", tickets):
            result, execution = ticket.result, ticket.execution
            if result is None or execution is None:
                error: TpyError | None = Internal("the request has no result")
            elif (error := result.error) is None:
                try:
                    outputs = self._outputs.select(result.outputs, ticket.requested_outputs)
                except Internal as fault:
                    error = fault
            if error is None and result is not None and execution is not None:
                self.statistics.succeeded(ticket, execution, now_ns)
                self.answer(ticket, outputs=outputs, result=result)
            elif isinstance(result, AnswerLater):
                self._open.keep(ticket, result)
            else:
                self.statistics.failed_in_backend(ticket, now_ns)
                self.answer(ticket, error=error)

    def refuse(self, ticket: Ticket, outcome: Outcome) -> None:
        """Answer a request that got no result in time."""
        request = cast(RequestTicket, ticket)
        if request.sender is not None and not self._open.drop(request):
            return
        request.abandoned = True
        self._take_back(request)
        if outcome is Outcome.TIMED_OUT:
            self.statistics.timed_out(request, self._clock.now_ns())
        else:
            self.statistics.stopped(request, self._clock.now_ns())
        self.answer(request, error=Unavailable(outcome.value))
        self._check_drained()

    # What becomes of decoupled requests (RequestEnds).

    def forget(self, ticket: RequestTicket) -> None:
        """It ended while the core still had it."""
        self._driver.cancel(ticket)

    def request_ended(self) -> None:
        """One less."""
        if self._drained is not None:
            self._check_drained()

    def responses(self) -> tuple[ResponseStatistics, ...]:
        """Statistics per response index, of a decoupled model."""
        return () if self._decoupled is None else self._decoupled.responses.snapshot()

    def batch_finished(self, run: BatchRun) -> None:
        """A batch came back from its thread."""
        with self._deliveries:
            if self._decoupled is not None:
                self._decoupled.flush()
            if run.begun:
                self._book(run)
            not_begun = 0 if run.begun else len(run.tickets)
            self._instance_finished(run.slot, run.failure, not_begun=not_begun, brief=run.brief, took_ns=run.took_ns)

    def run_progressed(self, run: Run) -> None:
        """Requests of a steady run are over that is not."""
        number = run.slot.number
        if self._runs.get(number) is not run:
            return  # it is over by now
        with self._deliveries:
            executed = self._take_finished(run)
            if executed:
                self._driver.broken_up(number, executed=executed, not_begun=0)

    def run_finished(self, run: Run) -> None:
        """A run came back from its thread."""
        with self._deliveries:
            self._runs.pop(run.slot.number, None)
            self._take_finished(run)
            not_begun = run.take_waiting()
            self._instance_finished(run.slot, run.failure, not_begun=not_begun, brief=run.brief, took_ns=run.took_ns)

    def _give(self, batch: BatchRun) -> None:
        """Have the batch executed by its instance, which has nothing to do."""
        slot = batch.slot
        self._batches_running += 1
        if slot.line is None or slot.line.begin([batch], self) is None:
            slot.worker.put(batch)

    def _start(self, slot: InstanceSlot) -> None:
        if slot.line is not None and self._nursery is not None:
            self._nursery.start_soon(slot.line.run, name=slot.name)

    def _take_back(self, ticket: RequestTicket) -> None:
        """Have a request that has ended not be executed any more, if it was given to an instance that is not at it yet."""
        for number, run in list(self._runs.items()):
            if run.holds(ticket):
                self.break_up(number)

    def _take_finished(self, run: Run) -> int:
        """Book what a run has executed by now; how many of its requests that concerns."""
        if self._decoupled is not None:
            self._decoupled.flush()
        finished = run.take_finished()
        for batch in finished:
            if batch is not None:
                self._book(batch)
        return len(finished)

    def _book(self, run: BatchRun) -> None:
        execution = run.execution()
        rows = 0
        for ticket, result in zip(run.tickets, run.results, strict=True):
            ticket.result = result
            ticket.execution = execution
            rows += ticket.batch_size
            if ticket.abandoned and isinstance(result, AnswerLater):
                self._open.keep(ticket, result)  # the core has let go of it already; its model waits to hear so
        self.statistics.executed(rows, execution, self._clock.wall_ms())
        if self._decoupled is not None:
            self._decoupled.batch_finished(run.tickets)

    def _instance_finished(
        self, slot: InstanceSlot, failure: str | None, *, not_begun: int = 0, brief: bool, took_ns: int
    ) -> None:
        self._batches_running -= 1
        if failure is None:
            slot.worked()
        else:
            # Before `completed`, or the core would give the dead instance its next batch.
            self.remove_instance(slot.number)
        self._driver.completed(slot.number, not_begun=not_begun, brief=brief, took_ns=took_ns)
        if failure is not None:
            slot.failed(failure)
        if self._drained is not None:
            self._check_drained()

    def _cancel_open(self, ticket: RequestTicket) -> None:
        if self._open.cancel(ticket):
            self.statistics.cancelled(ticket, self._clock.now_ns())
            self._check_drained()

    def answer(
        self,
        ticket: RequestTicket,
        *,
        outputs: tuple[Tensor, ...] = (),
        error: TpyError | None = None,
        result: ExecutionResult | None = None,
        final: bool = True,
    ) -> None:
        """Deliver a response; `result` is what it was made from, if anything."""
        response = InferenceResponse(
            model_name=self._name,
            model_version=self._version,
            id=ticket.id,
            outputs=outputs,
            parameters={} if result is None or error is not None else result.parameters,
            error=error,
            final=final,
        )
        try:
            ticket.sink.deliver(response)
        except Exception:
            # A sink must not raise. If one does, that is its own request's loss and not the model's.
            _log.exception("a response could not be delivered")

    def _check_drained(self) -> None:
        if self._drained is None or self._batches_running or self._holds:
            return
        if len(self._open):
            return
        snapshot = self._driver.snapshot()
        if not snapshot.queued and not snapshot.executing:
            self._drained.set()
