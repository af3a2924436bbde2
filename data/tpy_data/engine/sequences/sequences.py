"""Sequences: the live sequences of one version of a sequence model, and what its requests have of them.

Control tensors, implicit state, empty places in batches, requests that are executed several times, and sequences that stay with
the version that they began in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import cast

from tpy.backend import SequenceState
from tpy.errors import Unavailable
from tpy.ids import ModelId
from tpy.messages import InferenceRequest
from tpy_data.engine.admission.admission import Admitted
from tpy_data.engine.admission.sequence_admission import SequenceAdmission
from tpy_data.engine.admission.sequence_controls import SequenceControls
from tpy_data.engine.loading.loaded_version import LoadedVersion
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.engine.sequences.empty_places import EmptyPlaces
from tpy_data.engine.sequences.sequence_peers import SequenceHolder, SequencePeers
from tpy_data.engine.sequences.sequence_ticket import SequenceTicket
from tpy_data.schedulers.core import LiveSequence, Outcome, Phase, Ticket

_log = logging.getLogger(__name__)


class Sequences:
    """Used by the engine of the version. `let_go`: nobody is there any more who could send the next request of a sequence.

    On `LiveSequence.state` it hangs the SequenceState of models with implicit state, from the first execution of the sequence on.
    """

    make_ticket = SequenceTicket

    def __init__(self, model: ModelId, loaded: LoadedVersion, peers: SequencePeers) -> None:
        config = loaded.config
        batching = config.sequence_batching
        self.let_go = False
        self._model = model
        self._states = loaded.states
        self._peers = peers
        self._iterative = batching is not None and batching.iterative_sequence
        self._controls = SequenceControls(config)
        self._admission = SequenceAdmission(config, self._controls, iterative=self._iterative)
        self._empty_places = EmptyPlaces(config.name, self._controls, loaded.states)
        self._live: dict[int | str, LiveSequence] = {}

    def __len__(self) -> int:
        """The number of live sequences."""
        return len(self._live)

    def __contains__(self, correlation_id: int | str) -> bool:
        """True when the sequence lives here."""
        return correlation_id in self._live

    @property
    def hold_up_drain(self) -> bool:
        """True when a sequence lives whose next request may come."""
        return bool(self._live) and not self.let_go

    def elsewhere(self, request: InferenceRequest) -> SequenceHolder | None:
        """The other version that holds the sequence of the request; None: there is none."""
        position = request.sequence
        if position is None or position.correlation_id in self._live:
            return None
        return self._peers.other(self._model, request)

    def admit(self, request: InferenceRequest) -> Admitted:
        """As `SequenceAdmission.admit`. Raises Unavailable for a new sequence while the server is stopping."""
        if self._peers.closed and request.sequence is not None and request.sequence.start:
            raise Unavailable(Outcome.STOPPING.value)
        return self._admission.admit(request)

    def submitted(self, ticket: RequestTicket, request: InferenceRequest) -> None:
        """The core has the ticket of this request."""
        live = ticket.live
        if live is None:
            return
        if ticket.phase is not Phase.ENDED:
            self._live[live.correlation_id] = live
        if live.restarted and request.sequence is not None and request.sequence.start:
            # As Triton does: a client that restarts a sequence by mistake has no other way to learn of it.
            _log.warning("a START began a live sequence anew", extra={"context": {"model": str(self._model)}})

    def prepare(self, tickets: Sequence[RequestTicket], places: Sequence[Ticket | None]) -> Sequence[RequestTicket]:
        """The requests of a batch with what they carry from their sequences, and with its empty places, if there are any."""
        for ticket in cast("Sequence[SequenceTicket]", tickets):
            live = ticket.live
            if self._states and live is not None:
                if live.state is None:
                    live.state = self._states.begin()
                ticket.carry(cast(SequenceState, live.state))
            if self._iterative and ticket.sequence is not None:
                ticket.inputs = {**ticket.inputs, **self._controls.of(ticket.sequence)}
        return list(self._filled(tickets[0], places)) if places else tickets

    def executed(self, ticket: RequestTicket) -> bool:
        """The batch of this request is over. Returns whether the model gave the request back, to be executed again."""
        request = cast(SequenceTicket, ticket)
        request.add_earlier()
        if request.result is None or not request.result.reschedule:
            return False
        request.give_back()
        return True

    def ended(self, sequence: LiveSequence) -> None:
        """Nothing more of this sequence comes."""
        sequence.state = None  # now, even if something still holds the sequence
        if self._live.get(sequence.correlation_id) is sequence:
            del self._live[sequence.correlation_id]
            self._peers.sequence_ended()

    def _filled(self, first: RequestTicket, places: Sequence[Ticket | None]) -> Iterator[RequestTicket]:
        for place in places:
            yield self._empty_places.ticket(first) if place is None else cast(SequenceTicket, place)
