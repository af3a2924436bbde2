"""EngineTicket: a request to an engine, and the room that it needs there."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tpy.messages import InferenceRequest, Tensor
from tpy.services import ResponseSink
from tpy_data.engine.requests.ticket import RequestTicket, TicketOwner
from tpy_data.generation.core.asking import cost_of


class EngineTicket(RequestTicket):
    """See the module."""

    __slots__ = ()

    def __init__(
        self,
        request: InferenceRequest,
        inputs: Mapping[str, Tensor],
        *,
        batch_size: int,
        signature: Hashable,
        sink: ResponseSink,
        owner: TicketOwner,
    ) -> None:
        """Raises InvalidArgument for sampling parameters that are wrong."""
        super().__init__(request, inputs, batch_size=batch_size, signature=signature, sink=sink, owner=owner)
        self.cost = cost_of(inputs, request.parameters)
