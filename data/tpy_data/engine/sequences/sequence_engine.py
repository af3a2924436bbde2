"""SequenceEngine: the request path of a version of a sequence model.

Beside what any version does: control tensors, implicit state, empty places in batches, requests that are executed several times,
and sequences that stay with the version and the instance that they began in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from tpy.backend import AnswerLater, InstanceFailure, SequenceState
from tpy.clock import Clock
from tpy.deliveries import Deliveries
from tpy.echo import request_prefix
from tpy.errors import Cancelled, InvalidArgument, Unavailable
from tpy.ids import ModelId
from tpy.messages import InferenceRequest
from tpy.services import RequestHandle, ResponseSink
from tpy_data.engine.admission.sequence_admission import SequenceAdmission
from tpy_data.engine.admission.sequence_controls import SequenceControls
from tpy_data.engine.loading.loaded_version import LoadedVersion
from tpy_data.engine.requests.batch import Batch
from tpy_data.engine.requests.request_timeouts import with_deadline
from tpy_data.engine.sequences.empty_places import EmptyPlaces
from tpy_data.engine.sequences.sequence_peers import SequencePeers, submit_described
from tpy_data.engine.sequences.sequence_ticket import SequenceTicket
from tpy_data.engine.versions.version_engine import NOBODY, VersionEngine
from tpy_data.schedulers.core import LiveSequence, Outcome, Phase, SequenceEnd, Ticket

_log = logging.getLogger(__name__)


class SequenceEngine(VersionEngine):
    """`run` is a task of its owner's nursery, as for any version; while it runs, `peers` know this engine.

    On `LiveSequence.state` it hangs the SequenceState of models with implicit state, from the first execution of the sequence on.
    """

    def __init__(
        self,
        model: ModelId,
        version: int,
        loaded: LoadedVersion,
        peers: SequencePeers,
        clock: Clock,
        deliveries: Deliveries | None = None,
    ) -> None:
        config, states = loaded.config, loaded.states
        super().__init__(config, version, loaded.core, clock, deliveries=deliveries)
        batching = config.sequence_batching
        self.description = loaded.description
        self._model = model
        self._states = states
        self._peers = peers
        self._iterative = batching is not None and batching.iterative_sequence
        self._controls = SequenceControls(config)
        self._sequence_admission = SequenceAdmission(config, self._controls, iterative=self._iterative)
        self._empty_places = EmptyPlaces(config.name, self._controls, states, sink=NOBODY, owner=self)
        self._live: dict[int | str, LiveSequence] = {}
        self._let_go = False
        self._retiring: dict[int, Callable[[], object]] = {}

    @property
    def version(self) -> int:
        """The version's number."""
        return self._version

    @property
    def sequences(self) -> int:
        """How many sequences live here."""
        return len(self._live)

    def holds(self, correlation_id: int | str) -> bool:
        """Whether the sequence lives here."""
        return correlation_id in self._live

    def let_go(self) -> None:
        """Do not wait for live sequences to end."""
        self._let_go = True
        self._check_drained()

    async def run(self) -> None:
        """Keep deadlines. Runs until cancelled."""
        with self._peers.joined(self._model, self):
            await super().run()

    def submit(self, request: InferenceRequest, sink: ResponseSink) -> RequestHandle:
        """As `ResolvedModel.submit`. A request of a sequence that another version holds goes there."""
        position = request.sequence
        if position is not None and position.correlation_id not in self._live:
            holder = self._peers.other(self._model, request)
            if holder is not None:
                return submit_described(holder, request, sink)
        if self._peers.closed and position is not None and position.start:
            self.statistics.refused_admission()
            raise Unavailable(f"{request_prefix(request.id)}{Outcome.STOPPING.value}")
        if self.enforces_timeouts:
            request = with_deadline(request, self.clock.now_ns())
        try:
            inputs, batch_size, signature = self._sequence_admission.admit(request)
            ticket = SequenceTicket(request, inputs, batch_size=batch_size, signature=signature, sink=sink, owner=self)
            ticket.admitted()
            if self._decoupled is not None:
                self._decoupled.begin(ticket)
            self._driver.submit(ticket)
        except InvalidArgument:
            self.statistics.refused_admission()
            raise
        except Unavailable as refusal:
            self.statistics.refused_admission()
            raise Unavailable(f"{request_prefix(request.id)}{refusal}") from None
        live = ticket.live
        if live is not None:
            if ticket.phase is not Phase.ENDED:
                self._live[live.correlation_id] = live
            if live.restarted and position is not None and position.start:
                # As Triton does: a client that restarts a sequence by mistake has no other way to learn of it.
                _log.warning("a START began a live sequence anew", extra={"context": {"model": str(self._model)}})
        return ticket

    def retire_instance(self, number: int, gone: Callable[[], object]) -> None:
        """Give it no new sequences; `gone` is called when it has none any more."""
        if number not in self._slots:
            gone()
            return
        self._retiring[number] = gone
        self._driver.retire_instance(number)

    def remove_instance(self, number: int) -> None:
        """Give it no more work; the sequences that it has are lost."""
        self._retiring.pop(number, None)
        super().remove_instance(number)

    # What the driver's core decides.

    def dispatch(self, instance: int, batches: Sequence[Sequence[Ticket]], slots: Sequence[Ticket | None]) -> None:
        """Have a batch, with its empty places, executed by the instance."""
        for tickets in batches:
            requests = cast("Sequence[SequenceTicket]", tickets)
            self._prepare(requests)
            slot = self._slots[instance]
            self._give(slot, [Batch(slot.name, list(self._filled(requests[0], slots)) if slots else requests)])

    def refuse(self, ticket: Ticket, outcome: Outcome) -> None:
        """Answer a request that got no result."""
        request = cast(SequenceTicket, ticket)
        if request.sender is not None and not self._open.drop(request):
            return
        request.abandoned = True
        now_ns = self.clock.now_ns()
        if outcome in (Outcome.TIMED_OUT, Outcome.SEQUENCE_TIMED_OUT):
            self.statistics.timed_out(request, now_ns)
        elif outcome is Outcome.CANCELLED:
            self.statistics.cancelled(request, now_ns)
        elif outcome is Outcome.SEQUENCE_LOST:
            self.statistics.failed_in_backend(request, now_ns)
        else:
            self.statistics.stopped(request, now_ns)
        text = outcome.value
        self.answer(request, error=Cancelled(text) if outcome is Outcome.CANCELLED else Unavailable(text))
        self._check_drained()

    def sequence_ended(self, sequence: LiveSequence, why: SequenceEnd) -> None:
        """Nothing more of this sequence comes."""
        sequence.state = None  # now, whoever still holds the sequence
        if self._live.get(sequence.correlation_id) is sequence:
            del self._live[sequence.correlation_id]
            self._peers.sequence_ended()
        if self._drained is not None:
            self._check_drained()

    def retired(self, instance: int) -> None:
        """The instance has no sequence any more."""
        super().retired(instance)
        gone = self._retiring.pop(instance, None)
        if gone is not None:
            gone()

    def _prepare(self, tickets: Sequence[SequenceTicket]) -> None:
        """Give the tickets what they carry from their sequences."""
        if self._states:
            for ticket in tickets:
                live = ticket.live
                if live is not None:
                    if live.state is None:
                        live.state = self._states.begin()
                    ticket.carry(cast(SequenceState, live.state))
        if self._iterative:
            for ticket in tickets:
                if ticket.sequence is not None:
                    ticket.inputs = {**ticket.inputs, **self._controls.of(ticket.sequence)}

    def _filled(self, first: SequenceTicket, places: Sequence[Ticket | None]) -> Iterator[SequenceTicket]:
        for place in places:
            if place is not None:
                yield cast(SequenceTicket, place)
                continue
            ticket = self._empty_places.ticket(first)
            if self._decoupled is not None:
                self._ignore(ticket)
            yield ticket

    def _ignore(self, ticket: SequenceTicket) -> None:
        """Give the ticket a sender whose responses go nowhere."""
        if ticket.sender is None:
            self._open.begin(ticket)
        if ticket.sender is not None and not ticket.sender.over:
            ticket.sender.end(self.clock.now_ns(), by_model=True)

    def _book(self, batch: Batch) -> None:
        execution = batch.execution()
        requests: list[SequenceTicket] = []
        for ticket, result in zip(cast("Sequence[SequenceTicket]", batch.tickets), batch.results, strict=True):
            if ticket.phase is Phase.ENDED and isinstance(result, AnswerLater):
                self._ignore(ticket)
                if ticket.sender is not None:
                    result.begin(ticket.sender)
            if ticket.live is None:
                continue  # an empty place
            ticket.result = result
            ticket.executed(execution)
            requests.append(ticket)
            if result.reschedule:
                ticket.given_back()
                self._driver.reschedule(ticket)
        # Empty places count as rows, as in Triton: the model has executed them.
        self.statistics.executed(len(batch.tickets), execution, self.clock.wall_ms())
        if self._decoupled is not None:
            self._decoupled.batch_finished(requests)

    def _return(self, number: int, batches: Sequence[Batch]) -> None:
        """An instance that fails takes its sequences along, and what it had not started with them."""
        if batches:
            for batch in batches:
                batch.fail(InstanceFailure(batch.failure or ""), self.clock)
            self._held[number] = self._held.get(number, 0) + len(batches)
            self._over(number, batches)

    def _check_drained(self) -> None:
        if not self._live or self._let_go:
            super()._check_drained()
