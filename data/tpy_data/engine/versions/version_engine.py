"""VersionEngine: the request path of one model version, from submission to answer. All of it runs on the Trio thread, on the
caller's stack; what happens elsewhere is behind the instances' channels."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import trio

from tpy.backend import AnswerLater, ExecutionResult
from tpy.clock import Clock
from tpy.config import ModelConfig
from tpy.deliveries import Deliveries
from tpy.echo import request_prefix
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy.messages import InferenceRequest, InferenceResponse, ResponseStatistics, Tensor
from tpy.services import RequestHandle, ResponseSink
from tpy_data.engine.admission.admission import Admission
from tpy_data.engine.channels.channel import InstanceChannel
from tpy_data.engine.requests.batch import Batch
from tpy_data.engine.requests.decoupled import DecoupledRequests
from tpy_data.engine.requests.outputs import OutputSelection
from tpy_data.engine.requests.request_timeouts import with_deadline
from tpy_data.engine.requests.statistics import VersionStatistics
from tpy_data.engine.requests.ticket import RequestTicket, ResourceGate
from tpy_data.schedulers.core import CoreSnapshot, LiveSequence, Outcome, Phase, SchedulerCore, SequenceEnd, Ticket
from tpy_data.schedulers.driver import Performer, SchedulerDriver

_log = logging.getLogger(__name__)


class Nobody:
    """The sink of a request that was cancelled when its answer was already on the way."""

    def deliver(self, response: InferenceResponse) -> None:
        pass


NOBODY = Nobody()


class InstanceSlot(NamedTuple):
    """A running instance as the request path needs it. `number` is the one the scheduler knows; `failed` is told why when the
    instance can run nothing any more; `worked` after batches that it ran without that."""

    number: int
    name: str
    channel: InstanceChannel
    worked: Callable[[], None]
    failed: Callable[[str], None]


class VersionEngine:
    """Admits requests, schedules them, runs batches on instances, answers. `run` is a task of its owner's nursery."""

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
        self.clock = clock
        self._deliveries = deliveries or Deliveries()
        self._admission = Admission(config)
        self._outputs = OutputSelection(config)
        self._driver = make_driver(core, clock, self)
        self._open = DecoupledRequests(
            clock, self._deliveries, self._outputs, self.statistics, self
        )  # also for answers that come later
        self._decoupled = self._open if config.decoupled else None
        self._slots: dict[int, InstanceSlot] = {}
        self._held: dict[int, int] = {}  # how many batches instances hold, also those that are gone
        self._channels: dict[int, InstanceChannel] = {}  # of those that hold any
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
            request = with_deadline(request, self.clock.now_ns())
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
        self.statistics.cancelled(ticket, self.clock.now_ns())
        self._check_drained()

    @property
    def name(self) -> str:
        """The model's."""
        return self._name

    @property
    def instance_count(self) -> int:
        """How many instances take its work."""
        return len(self._slots)

    def recall(self) -> None:
        """Have every request that no instance has started wait in the queue, for any of them."""
        if any(held > 1 for held in self._held.values()):
            self._driver.recall()

    def add_instance(self, slot: InstanceSlot) -> None:
        """Give work to this instance from now on."""
        self._slots[slot.number] = slot
        slot.channel.open(functools.partial(self._batches_done, slot))
        self._start(slot)
        self._driver.add_instance(slot.number, prefetch=True)

    def remove_instance(self, number: int) -> None:
        """Give it no more work. A batch that it runs is still answered. Absent numbers are fine."""
        slot = self._slots.pop(number, None)
        if slot is not None:
            self._driver.remove_instance(number)
            slot.channel.close()

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

    def dispatch(self, instance: int, batches: Sequence[Sequence[Ticket]], slots: Sequence[Ticket | None]) -> None:
        """Have batches executed by the instance."""
        slot = self._slots[instance]
        # The driver gives back the tickets that `submit` gave it.
        self._give(slot, [Batch(slot.name, cast("Sequence[RequestTicket]", tickets)) for tickets in batches])

    def revoke(self, instance: int) -> int:
        """Take back what the instance has not started, and take what is over."""
        channel = self._channels.get(instance)
        return 0 if channel is None else len(self._take_back(instance, channel))

    def sequence_ended(self, sequence: LiveSequence, why: SequenceEnd) -> None:
        """A sequence is over."""
        if self._drained is not None:
            self._check_drained()

    def retired(self, instance: int) -> None:
        """The instance that was to retire has nothing more to do."""
        self._slots.pop(instance).channel.close()

    def respond(self, tickets: Sequence[Ticket]) -> None:
        """Answer requests whose batch was executed."""
        if self._decoupled is not None:
            self._decoupled.respond(cast("Sequence[RequestTicket]", tickets))
            return
        now_ns = self.clock.now_ns()
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
        if outcome is Outcome.TIMED_OUT:
            self.statistics.timed_out(request, self.clock.now_ns())
        else:
            self.statistics.stopped(request, self.clock.now_ns())
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

    def _batches_done(self, slot: InstanceSlot, batches: Sequence[Batch], failure: str | None) -> None:
        """Batches are over, or the instance has failed."""
        with self._deliveries:
            if self._decoupled is not None:
                self._decoupled.flush()
            if failure is None:
                slot.worked()
            else:
                # Before `done`, or the core would give the dead instance its next batch.
                self.remove_instance(slot.number)
            self._over(slot.number, batches)
            if failure is not None:
                self._return(slot.number, self._take_back(slot.number, slot.channel))
                slot.failed(failure)
            if self._drained is not None:
                self._check_drained()

    def _over(self, number: int, batches: Sequence[Batch]) -> None:
        """Book these batches and answer their requests."""
        if batches:
            for batch in batches:
                if batch.is_executed:
                    self._book(batch)
            self._account(number, len(batches))
            self._driver.done(number, [batch.took_ns for batch in batches])

    def _return(self, number: int, batches: Sequence[Batch]) -> None:
        """An instance that has failed did not start these batches: they wait for another one."""
        if batches:
            self._driver.revoked(number, len(batches))

    def _take_back(self, number: int, channel: InstanceChannel) -> Sequence[Batch]:
        batches = channel.revoke()
        self._account(number, len(batches))
        if self._drained is not None:
            self._check_drained()
        return batches

    def _give(self, slot: InstanceSlot, batches: Sequence[Batch]) -> None:
        self._held[slot.number] = self._held.get(slot.number, 0) + len(batches)
        self._channels[slot.number] = slot.channel
        slot.channel.give(batches)

    def _account(self, number: int, count: int) -> None:
        """The instance holds so many batches less."""
        if count:
            self._held[number] -= count
            if not self._held[number]:
                del self._held[number]
                self._channels.pop(number, None)

    def _start(self, slot: InstanceSlot) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(slot.channel.run, name=slot.name)

    def _book(self, batch: Batch) -> None:
        execution = batch.execution()
        rows = 0
        for ticket, result in zip(batch.tickets, batch.results, strict=True):
            ticket.result = result
            ticket.execution = execution
            rows += ticket.batch_size
            if ticket.abandoned and isinstance(result, AnswerLater):
                self._open.keep(ticket, result)  # the core has let go of it already; its model waits to hear so
        self.statistics.executed(rows, execution, self.clock.wall_ms())
        if self._decoupled is not None:
            self._decoupled.batch_finished(batch.tickets)

    def _cancel_open(self, ticket: RequestTicket) -> None:
        if self._open.cancel(ticket):
            self.statistics.cancelled(ticket, self.clock.now_ns())
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
        if self._drained is None or self._held or self._holds:
            return
        if len(self._open):
            return
        snapshot = self._driver.snapshot()
        if not snapshot.queued and not snapshot.executing:
            self._drained.set()
