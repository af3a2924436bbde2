"""EmptyPlaces: the contents of the places of a batch that no request has, when sequences are scheduled directly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpy.messages import DataType, InferenceRequest, Tensor
from tpy_data.engine.admission.sequence_controls import SequenceControls
from tpy_data.engine.loading.initial_states import InitialStates
from tpy_data.engine.requests.responder import DISCARD
from tpy_data.engine.requests.ticket import RequestTicket
from tpy_data.engine.sequences.sequence_ticket import SequenceTicket
from tpy_data.schedulers.core import Phase

_SHAPES_MAX = 16
"""Sets of shapes whose zeros are kept; models of variable shapes rarely see as many at a time, and all could be any number."""


class EmptyPlaces:
    """Makes requests that are not READY, with inputs of zeros (empty strings) of the shapes of a request that is. In Triton their
    content is whatever the memory held."""

    def __init__(self, model_name: str, controls: SequenceControls, states: InitialStates) -> None:
        self._request = InferenceRequest(model_name=model_name)
        self._controls = controls
        self._states = states
        self._zeros: dict[object, dict[str, Tensor]] = {}

    def ticket(self, beside: RequestTicket) -> SequenceTicket:
        """A request for a place in the batch of `beside`. It has ended already: nothing answers it."""
        ticket = SequenceTicket(
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
