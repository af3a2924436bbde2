"""VersionEngine: the request path of a model version that has instances, from submission to answer. All of it runs on the Trio
thread, on the caller's stack; what happens elsewhere is behind the instances' channels."""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import msgspec
import trio

from tpy.backend import AnswerLater, InstanceFailure
from tpy.clock import Clock
from tpy.config import ModelConfig
from tpy.deliveries import Deliveries
from tpy.errors import Internal, InvalidArgument, QueueFull, Refusal, TooManyRequests, TpyError
from tpy.limits import RECENT_BATCHES_MAX, RETRY_AFTER_S_MAX
from tpy.messages import EngineActivity, InferenceRequest, ResourceUse, WaitReason
from tpy.services import ResponseSink
from tpy.units import NS_PER_S
from tpy_data.engine.admission.admission import Admission
from tpy_data.engine.channels.channel import InstanceChannel
from tpy_data.engine.requests.batch import Batch
from tpy_data.engine.requests.decoupled import DecoupledRequests
from tpy_data.engine.requests.handle import EngineHandle, Execution
from tpy_data.engine.requests.latencies import CountedRequest, VersionLatencies
from tpy_data.engine.requests.load import LoadMeter, WorkCounts
from tpy_data.engine.requests.model_engine import Drain
from tpy_data.engine.requests.outputs import OutputSelection
from tpy_data.engine.requests.responder import DISCARD, Responder, error_of, refused
from tpy_data.engine.requests.statistics import FailureReason, VersionStatistics
from tpy_data.engine.requests.ticket import RequestTicket, ResourceGate
from tpy_data.schedulers.core import CoreSnapshot, LiveSequence, Outcome, Phase, SchedulerCore, SequenceEnd, Ticket
from tpy_data.schedulers.driver import Performer, SchedulerDriver

if TYPE_CHECKING:
    from tpy_data.engine.sequences.sequences import Sequences


class InstanceSlot:
    """A running instance as the request path has it; not a slot of sequences, which is a place in its batches.

    * `number`: the scheduler's, and of this instance alone: one that is started again gets another.
    * `failed`: called with the reason when the instance can run nothing any more; `worked` after batches that it ran.
    * `held`, `completed`: how many batches it was given that are not over, and how many are over.
    * `credit`, `tokens`: as in `SchedulerCore.add_instance`.
    * `busy_since_ns`: from when it is busy with the oldest batch that it holds.
    * `given`: called when it gets a batch and held none.
    * `recent`: the last batches that it executed, by their rows and times.
    """

    __slots__ = (
        "busy_since_ns",
        "channel",
        "completed",
        "credit",
        "failed",
        "given",
        "held",
        "name",
        "number",
        "recent",
        "tokens",
        "worked",
    )

    def __init__(
        self, number: int, name: str, channel: InstanceChannel, *, worked: Callable[[], None], failed: Callable[[str], None]
    ) -> None:
        self.number = number
        self.name = name
        self.channel = channel
        self.worked = worked
        self.failed = failed
        self.held = 0
        self.completed = 0
        self.credit = 1
        self.tokens = 0
        self.busy_since_ns = 0
        self.given: Callable[[], None] | None = None
        self.recent: deque[tuple[int, Execution]] = deque(maxlen=RECENT_BATCHES_MAX)


class VersionEngine:
    """Admits requests, schedules them, runs batches on instances, answers. `run` is a task of its owner's nursery. Requests are
    of the class `make_ticket`, but those of sequences.

    `gate` None: instances are not rate limited. `sequences` is there for sequence models: requests carry what their sequence has,
    and a batch can only run on the instance that its sequences are on. `is_engine`: its backend is one of engines
    (`tpy.backend.engine`), whose instances serve many sequences of tokens at a time.
    """

    caches = False

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        core: SchedulerCore,
        clock: Clock,
        *,
        make_driver: Callable[[SchedulerCore, Clock, Performer], SchedulerDriver] = SchedulerDriver,
        deliveries: Deliveries | None = None,
        gate: ResourceGate | None = None,
        sequences: Sequences | None = None,
        latencies: VersionLatencies | None = None,
        statistics: VersionStatistics | None = None,
        make_ticket: Callable[..., RequestTicket] = RequestTicket,
        is_engine: bool = False,
    ) -> None:
        """Without `statistics` it has new ones, with `latencies`."""
        self.name = config.name
        self.clock = clock
        self.gate = gate
        self.statistics = statistics or VersionStatistics(latencies)
        self.drain = Drain(self._is_idle)
        self._deliveries = deliveries or Deliveries()
        self._sequences = sequences
        self._admit = Admission(config).admit if sequences is None else sequences.admit
        self._make_ticket = make_ticket if sequences is None else sequences.make_ticket
        self.is_engine = is_engine
        self.answers_once = sequences is None and not config.decoupled
        """True when each request is executed once, whatever was executed before, and is answered by that."""
        self._outputs = OutputSelection(config)
        self._responder = Responder(config.name, version)
        self._driver = make_driver(core, clock, self)
        # Requests of a decoupled model, and of other models the ones answered later.
        self._open = DecoupledRequests(clock, self._deliveries, self._responder, self._outputs, self.statistics, self)
        self._decoupled = self._open if config.decoupled else None
        self._looked_ns = clock.now_ns()
        self._busy_ns = 0  # instance time in which instances held something, up to the last batch of each
        self._load = LoadMeter(clock.now_ns())
        self._slots: dict[int, InstanceSlot] = {}
        self._holders: dict[int, InstanceSlot] = {}  # instances that hold batches, including removed ones
        self._retiring: dict[int, Callable[[], object]] = {}
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

    def submit(self, request: InferenceRequest, sink: ResponseSink) -> EngineHandle:
        """As `ResolvedModel.submit`."""
        sequences = self._sequences
        if sequences is not None and (other := sequences.elsewhere(request)) is not None:
            return other.submit_described(request, sink)
        try:
            inputs, batch_size, signature = self._admit(request)
            ticket = self._make_ticket(request, inputs, batch_size=batch_size, signature=signature, sink=sink, owner=self)
            if self._decoupled is not None:
                self._decoupled.begin(ticket)
            self._driver.submit(ticket)
        except (InvalidArgument, Refusal) as refusal:
            error = refused(refusal, request, self.statistics)
            if isinstance(refusal, (QueueFull, TooManyRequests)):
                error.wait_s = self._queue_s()
            raise error from None
        if sequences is not None:
            sequences.submitted(ticket, request)
        return ticket

    def cancel(self, ticket: RequestTicket) -> None:
        """Forget a request: its sink is not called again. No-op for one that was answered."""
        if ticket.sender is not None:
            if not self._open.cancel(ticket):
                return
        elif ticket.phase is Phase.ENDED:
            # Its answer can be among the decisions that are being performed now, when a sink before it cancels it.
            ticket.sink = DISCARD
            ticket.abandoned = True
            return
        else:
            ticket.abandoned = True
            self._driver.cancel(ticket)
        self.statistics.failed(ticket, FailureReason.CANCELED, self.clock.now_ns())
        self.drain.check()

    @property
    def instance_count(self) -> int:
        """The number of instances that take its work."""
        return len(self._slots)

    def recall(self) -> None:
        """Have every request that no instance has started wait in the queue, for any of them."""
        if any(slot.held > 1 for slot in self._holders.values()):
            self._driver.recall()

    def add_instance(self, slot: InstanceSlot) -> None:
        """Give work to this instance from now on."""
        self._slots[slot.number] = slot
        slot.channel.open(functools.partial(self._batches_done, slot))
        self._start(slot)
        self._driver.add_instance(slot.number, prefetch=True, credit=slot.credit, tokens=slot.tokens)

    def remove_instance(self, number: int) -> None:
        """Give it no more work; sequences that it has are lost. A batch that it runs is still answered. No-op for one that is not
        there."""
        self._retiring.pop(number, None)
        slot = self._slots.pop(number, None)
        if slot is not None:
            self._driver.remove_instance(number)
            slot.channel.close()

    def retire_instance(self, number: int, gone: Callable[[], object]) -> None:
        """Give it no more work than must be: `gone` is called when no sequence is on it any more."""
        if number not in self._slots:
            gone()
            return
        self._retiring[number] = gone
        self._driver.retire_instance(number)

    def load(self) -> float:
        """Demanded over available time of its instances, as `LoadMeter` has it."""
        now_ns = self.clock.now_ns()
        if self.is_engine:  # whose instances hold batches for moments only: the share of their room that is in use
            share = min(1.0, self.snapshot().executing / max(1, sum(slot.credit for slot in self._slots.values())))
            self._busy_ns += int(share * len(self._slots) * (now_ns - self._looked_ns))
            self._looked_ns = now_ns
        busy_ns = self._busy_ns + sum(now_ns - slot.busy_since_ns for slot in self._holders.values())
        executed, refused = self.statistics.executed_and_refused()
        return self._load.look(WorkCounts(busy_ns, executed, refused, self.snapshot().queued), len(self._slots), now_ns)

    def snapshot(self) -> CoreSnapshot:
        """The numbers of requests that wait and run now."""
        return self._driver.snapshot()

    def explain(self) -> EngineActivity:
        """As `ModelEngine.explain`."""
        queue, gate = self._driver.explain(), self.gate
        if gate is None:
            return EngineActivity(queue=queue)
        if queue.waits_for is WaitReason.NOTHING and any(gate.keeps_back(number) for number in self._slots):
            queue = msgspec.structs.replace(queue, waits_for=WaitReason.RATE_LIMITER)
        used, supply = gate.used(), gate.supply()
        resources = tuple(
            ResourceUse(
                name=name, device=device, needed=count, used=used.get((name, device), 0), supply=supply.get((name, device), 0)
            )
            for (name, device), count in gate.needs().items()
        )
        return EngineActivity(queue=queue, resources=resources)

    def refuse_waiting(self) -> None:
        """Refuse what is queued: no instance can be had."""
        self._driver.refuse_waiting()
        self.drain.check()

    def stop(self, *, executing: bool = False) -> None:
        """As `ModelEngine.stop`. Decoupled requests that have not ended are over, too."""
        with self._deliveries:
            self._driver.stop()
            self._open.stop()
            if executing:
                self._driver.refuse_executing()
            self.drain.check()

    # The decisions of the driver's core

    def dispatch(self, instance: int, batches: Sequence[Sequence[Ticket]], slots: Sequence[Ticket | None]) -> None:
        """Have batches executed by the instance. `slots` are the places of a batch of sequences (`Dispatch`)."""
        slot = self._slots[instance]
        # The driver gives back the tickets that `submit` gave it.
        given = cast("Sequence[Sequence[RequestTicket]]", batches)
        if self._sequences is not None:
            given = [self._sequences.prepare(tickets, slots) for tickets in given]
            if slots and self._decoupled is not None:
                for ticket in given[0]:
                    if ticket.live is None:  # an empty place
                        self._open.ignore(ticket)
        if not slot.held:
            slot.busy_since_ns = self._driver.decided_ns
            if slot.given is not None:
                slot.given()
        slot.held += len(given)
        self._holders[instance] = slot
        slot.channel.give([Batch(slot.name, tickets) for tickets in given])

    def revoke(self, instance: int) -> int:
        """Take back what the instance has not started, and take what is over."""
        slot = self._holders.get(instance)
        return 0 if slot is None else self._revoke(slot)

    def sequence_ended(self, sequence: LiveSequence, why: SequenceEnd) -> None:
        """A sequence is over."""
        if self._sequences is not None:
            self._sequences.ended(sequence)
        self.drain.check()

    def retired(self, instance: int) -> None:
        """The instance that was to retire has nothing more to do."""
        self._slots.pop(instance).channel.close()
        gone = self._retiring.pop(instance, None)
        if gone is not None:
            gone()

    def respond(self, tickets: Sequence[Ticket]) -> None:
        """Answer requests whose batch was executed."""
        requests = cast("Sequence[RequestTicket]", tickets)
        if self._decoupled is not None:
            self._decoupled.respond(requests)
            return
        succeeded: list[tuple[CountedRequest, Execution]] = []
        select, respond = self._outputs.select, self._responder.respond
        now_ns = self.clock.now_ns()
        for ticket in requests:
            result, execution = ticket.result, ticket.execution
            if result is None or execution is None:
                error: TpyError | None = Internal("the request has no result")
            elif (error := result.error) is None:
                try:
                    outputs = select(result.outputs, ticket.requested_outputs)
                except Internal as fault:
                    error = fault
                else:
                    succeeded.append((ticket, execution))
                    respond(ticket.sink, ticket.id, outputs, result.parameters)
                    continue
            elif isinstance(result, AnswerLater):
                self._open.keep(ticket, result)
                continue
            self.statistics.failed(ticket, FailureReason.BACKEND, now_ns)
            respond(ticket.sink, ticket.id, error=error)
        self.statistics.succeeded(succeeded, now_ns)

    def refuse(self, ticket: Ticket, outcome: Outcome) -> None:
        """Answer a request that got no result."""
        request = cast(RequestTicket, ticket)
        if request.sender is not None and not self._open.drop(request):
            return
        request.abandoned = True
        self.statistics.refused(request, outcome, self.clock.now_ns())
        self._responder.respond(request.sink, request.id, error=error_of(outcome))
        self.drain.check()

    # The ends of decoupled requests (RequestEnds)

    def forget(self, ticket: RequestTicket) -> None:
        """It ended while the core still had it."""
        self._driver.cancel(ticket)

    def request_ended(self) -> None:
        """There is one less."""
        self.drain.check()

    # Batches

    def _queue_s(self) -> int:
        """Seconds in which the requests that wait will have been executed, at the pace of the last batches of an instance."""
        slot = next(iter(self._slots.values()), None)
        rows = took_ns = 0
        for batch_size, (_, input_ns, infer_ns, output_ns) in () if slot is None else slot.recent:
            rows += batch_size
            took_ns += input_ns + infer_ns + output_ns
        queue_ns = self.snapshot().queued * took_ns / max(1, rows) / max(1, len(self._slots))
        return min(max(1, math.ceil(queue_ns / NS_PER_S)), RETRY_AFTER_S_MAX)

    def _batches_done(self, slot: InstanceSlot, batches: Sequence[Batch], failure: str | None) -> None:
        """Batches are over, or the instance has failed."""
        with self._deliveries:
            if self._decoupled is not None:
                self._decoupled.flush()
            if failure is None:
                slot.worked()
                self._completed(slot, batches)
            else:
                # Before `done`, or the core would give the dead instance its next batch.
                self.remove_instance(slot.number)
                self._completed(slot, batches)
                self._lose(slot, failure)
                slot.failed(failure)
            self.drain.check()

    def _completed(self, slot: InstanceSlot, batches: Sequence[Batch]) -> None:
        """Book these batches and answer their requests."""
        if batches:
            executed: list[Batch] = []
            costs_ns: list[int] = []
            for batch in batches:
                cost_ns = 0  # of a batch that failed as a whole, which says nothing about what batches cost
                for result in batch.results:
                    if result.error is None:
                        cost_ns = batch.took_ns
                        break
                costs_ns.append(cost_ns)
                if batch.is_executed:
                    executed.append(batch)
            self._book(slot, executed)
            slot.completed += len(batches)
            ended_ns = batches[-1].times.end_ns
            self._busy_ns += ended_ns - slot.busy_since_ns
            slot.busy_since_ns = ended_ns
            self._release(slot, len(batches))
            self._driver.done(slot.number, costs_ns)

    def _lose(self, slot: InstanceSlot, failure: str) -> None:
        """The instance has failed, for this reason. The batches that it did not start wait for another one; those of sequences
        are lost, because what the sequences had is lost with the instance."""
        if self._sequences is None:
            count = self._revoke(slot)
            if count:
                self._driver.revoked(slot.number, count)
            return
        batches = slot.channel.revoke()
        for batch in batches:
            batch.fail(InstanceFailure(batch.failure or failure), self.clock)
        self._completed(slot, batches)

    def _revoke(self, slot: InstanceSlot) -> int:
        count = len(slot.channel.revoke())
        self._release(slot, count)
        self.drain.check()
        return count

    def _release(self, slot: InstanceSlot, count: int) -> None:
        """The instance holds `count` batches fewer."""
        slot.held -= count
        if not slot.held:
            self._holders.pop(slot.number, None)

    def _start(self, slot: InstanceSlot) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(slot.channel.run, name=slot.name)

    def _book(self, slot: InstanceSlot, batches: Sequence[Batch]) -> None:
        """Give requests the results and times of their batches."""
        executed = []
        for batch in batches:
            execution = batch.execution()
            rows = 0
            for ticket, result in zip(batch.tickets, batch.results, strict=True):
                ticket.result = result
                ticket.execution = execution
                rows += ticket.batch_size
                if ticket.abandoned and isinstance(result, AnswerLater):
                    self._open.ignore(ticket, result)  # the core has let go of it already; its model waits for a notification
            executed.append((rows, execution))  # empty places count as rows, as in Triton: the model has executed them
        self.statistics.executed(executed, self.clock.wall_ms())
        slot.recent.extend(executed)
        if self._sequences is None and self._decoupled is None:
            return
        for batch in batches:
            tickets = batch.tickets
            if self._sequences is not None:
                tickets = self._book_sequences(tickets, self._sequences)
            if self._decoupled is not None:
                self._decoupled.batch_finished(tickets)

    def _book_sequences(self, tickets: Sequence[RequestTicket], sequences: Sequences) -> Sequence[RequestTicket]:
        """Has requests that the model gave back wait again. Returns the tickets without empty places."""
        for ticket in tickets:
            if ticket.live is None and isinstance(ticket.result, AnswerLater):
                self._open.ignore(ticket, ticket.result)
        requests = [ticket for ticket in tickets if ticket.live is not None]
        for ticket in requests:
            if sequences.executed(ticket):
                self._driver.reschedule(ticket)
        return requests

    def _is_idle(self) -> bool:
        if self._holders or len(self._open) or (self._sequences is not None and self._sequences.hold_up_drain):
            return False
        snapshot = self._driver.snapshot()
        return not snapshot.queued and not snapshot.executing
