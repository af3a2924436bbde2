"""The tickets of a model whose batches are formed by length."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from tpy.config.tuned_batching import LengthBatching
from tpy.messages import InferenceRequest, Tensor
from tpy.services import ResponseSink
from tpy_data.engine.requests.ticket import RequestTicket, TicketOwner


def tickets_with_lengths(make_ticket: Callable[..., RequestTicket], by_length: LengthBatching) -> Callable[..., RequestTicket]:
    """Makes the same tickets, with the length of their rows."""
    name, axis = by_length.input, by_length.axis

    def make(
        request: InferenceRequest,
        inputs: Mapping[str, Tensor],
        *,
        batch_size: int,
        signature: Hashable,
        sink: ResponseSink,
        owner: TicketOwner,
    ) -> RequestTicket:
        ticket = make_ticket(request, inputs, batch_size=batch_size, signature=signature, sink=sink, owner=owner)
        ticket.length = inputs[name].array.shape[axis]
        return ticket

    return make
