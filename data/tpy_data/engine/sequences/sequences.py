"""Sequences: the live sequences of one version of a sequence model, and what its requests have of them.

Control tensors, implicit state, empty places in batches, requests that are executed several times, and sequences that stay with
the version that they began in.

SequenceAdmission: is this a request that a sequence model can run, and with which control tensors? Pure. What any model checks
comes first; then what Triton's sequence batcher checks, in its order, with its texts. Whether the sequence is known is the
scheduler's to say.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from tpy.backend import SequenceState
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument, Unavailable
from tpy.ids import ModelId
from tpy.messages import DataType, InferenceRequest, Tensor
from tpy_data.engine.admission.admission import Admission, Admitted
from tpy_data.engine.admission.sequence_controls import SequenceControls
from tpy_data.engine.loading.loaded_version import LoadedVersion
from tpy_data.engine.loading.model_files import InitialStates
from tpy_data.engine.requests.handle import Execution
from tpy_data.engine.requests.responder import DISCARD
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.engine.sequences.sequence_peers import SequenceHolder, SequencePeers
from tpy_data.schedulers.core import LiveSequence, Outcome, Phase, Ticket


class _SequenceAdmission:
    """The checks of one model version. With `iterative`, a request without an id is a new sequence, and its controls are decided
    each time it is executed."""

    __slots__ = ("_admission", "_controls", "_iterative", "_model_name")

    def __init__(self, config: ModelConfig, controls: SequenceControls, *, iterative: bool) -> None:
        self._admission = Admission(config)
        self._controls = controls
        self._iterative = iterative
        self._model_name = config.name

    def admit(self, request: InferenceRequest) -> Admitted:
        """The request with its controls among the inputs. Raises InvalidArgument."""
        admitted = self._admission.admit(request)
        if admitted.batch_size != 1:
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        if request.sequence is None:
            if self._iterative:
                return admitted
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify a non-zero or non-empty correlation ID"
            )
        if not request.sequence.start and not self._controls.fit(request.sequence):
            return admitted  # no such sequence can have begun: the scheduler says so
        controls = self._controls.of(request.sequence)
        return Admitted({**admitted.inputs, **controls}, 1, admitted.signature)


_SHAPES_MAX = 16
"""Sets of shapes whose zeros are kept; models of variable shapes rarely see as many at a time, and all could be any number."""


class _EmptyPlaces:
    """Makes requests that are not READY, with inputs of zeros (empty strings) of the shapes of a request that is. In Triton their
    content is whatever the memory held."""

    def __init__(self, model_name: str, controls: SequenceControls, states: InitialStates) -> None:
        self._request = InferenceRequest(model_name=model_name)
        self._controls = controls
        self._states = states
        self._zeros: dict[object, dict[str, Tensor]] = {}

    def ticket(self, beside: RequestTicket) -> _SequenceTicket:
        """A request for a place in the batch of `beside`. It has ended already: nothing answers it."""
        ticket = _SequenceTicket(
            self._request,
            self._inputs(beside),
            batch_size=1,
            signature=beside.signature,
            sink=DISCARD,
            owner=beside.owner,
        )
        ticket.phase = Phase.ENDED
        if self._states:
            ticket.carry(self._states.begin())
        return ticket

    def _inputs(self, beside: RequestTicket) -> Mapping[str, Tensor]:
        # Ragged inputs are not in the signature.
        key = tuple([tensor.array.shape for tensor in beside.inputs.values()]), tuple(beside.inputs)
        zeros = self._zeros.get(key)
        if zeros is None:
            idle = self._controls.idle
            zeros = {name: idle.get(name) or _zero(tensor) for name, tensor in beside.inputs.items()}
            if len(self._zeros) >= _SHAPES_MAX:
                self._zeros.clear()
            self._zeros[key] = zeros
        return zeros


def _zero(tensor: Tensor) -> Tensor:
    shape, datatype = tensor.array.shape, tensor.datatype
    array: np.ndarray[Any, Any]
    array = np.full(shape, b"", dtype=object) if datatype is DataType.BYTES else np.zeros(shape, datatype.numpy)
    array.setflags(write=False)
    return Tensor(tensor.name, datatype, array)


class _SequenceTicket(RequestTicket):
    """`state` is there from when the ticket is given to an instance, for models with implicit state. A ticket without `live` is
    an empty place in a batch."""

    __slots__ = ("_earlier", "_state")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As a RequestTicket."""
        super().__init__(*arguments, **options)
        self._state: SequenceState | None = None
        self._earlier: Execution | None = None

    @property
    def state(self) -> SequenceState | None:
        """As `ExecutionRequest.state`."""
        return self._state

    def carry(self, state: SequenceState) -> None:
        """Show the backend this state."""
        self._state = state

    def add_earlier(self) -> None:
        """An execution is over; the times of those before it are added."""
        before, execution = self._earlier, self.execution
        if before is not None and execution is not None:
            self.execution = Execution(
                before.start_ns,
                before.input_ns + execution.input_ns,
                before.infer_ns + execution.infer_ns,
                before.output_ns + execution.output_ns,
            )

    def give_back(self) -> None:
        """The model wants the request again: it has not been executed yet, as far as statistics go."""
        self._earlier, self.execution = self.execution, None
        self.result = None


_log = logging.getLogger(__name__)


class Sequences:
    """Used by the engine of the version. `let_go`: nobody is there any more who could send the next request of a sequence.

    On `LiveSequence.state` it hangs the SequenceState of models with implicit state, from the first execution of the sequence on.
    """

    make_ticket = _SequenceTicket

    def __init__(self, model: ModelId, loaded: LoadedVersion, peers: SequencePeers) -> None:
        config = loaded.config
        batching = config.sequence_batching
        self.let_go = False
        self._model = model
        self._states = loaded.states
        self._peers = peers
        self._iterative = batching is not None and batching.iterative_sequence
        self._controls = SequenceControls(config)
        self._admission = _SequenceAdmission(config, self._controls, iterative=self._iterative)
        self._empty_places = _EmptyPlaces(config.name, self._controls, loaded.states)
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
        """The other version that holds the sequence of the request; None: no other version holds it."""
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
        for ticket in cast("Sequence[_SequenceTicket]", tickets):
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
        request = cast(_SequenceTicket, ticket)
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
            yield self._empty_places.ticket(first) if place is None else cast(_SequenceTicket, place)
