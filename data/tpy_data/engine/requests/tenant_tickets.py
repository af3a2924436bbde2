"""The tickets of a server with tenants."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from tpy.messages import InferenceRequest, Tensor
from tpy.messages.tensors import held_bytes
from tpy.services import ResponseSink
from tpy_data.engine.requests.ticket import RequestTicket, TicketOwner
from tpy_data.schedulers.core.tenants import Tenants


def tickets_of(make_ticket: Callable[..., RequestTicket], tenants: Tenants) -> Callable[..., RequestTicket]:
    """Makes the same tickets, with what a FairQueue must know of them."""

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
        tenant = ticket.tenant = tenants.of(request.tenant)
        most = tenant.rules.queue_bytes
        ticket.size_bytes = 0 if most is None else held_bytes(request.inputs, most + 1)
        return ticket

    return make
