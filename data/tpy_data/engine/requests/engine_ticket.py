"""EngineTicket: a request to an engine, and the room that it needs there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping

from tpy.config import ModelConfig
from tpy.messages import InferenceRequest, ParameterValue, Tensor
from tpy.services import ResponseSink
from tpy_data.engine.requests.ticket import RequestTicket, TicketOwner
from tpy_data.generation.core.asking import QUEUED_NS, cost_of


class EngineTicket(RequestTicket):
    """See the module. Its parameters say since when it waits, for the times that the engine's instance measures."""

    __slots__ = ("_given",)

    @property
    def parameters(self) -> Mapping[str, ParameterValue]:
        """The caller's, and QUEUED_NS."""
        return {**self._given, QUEUED_NS: self.queued_ns}

    @parameters.setter
    def parameters(self, given: Mapping[str, ParameterValue]) -> None:
        self._given = given

    def __init__(
        self,
        request: InferenceRequest,
        inputs: Mapping[str, Tensor],
        *,
        batch_size: int,
        signature: Hashable,
        sink: ResponseSink,
        owner: TicketOwner,
        longest: int = 0,
    ) -> None:
        """`longest` is the model's `max_model_len`, 0: not known. Raises InvalidArgument for sampling parameters that are
        wrong."""
        super().__init__(request, inputs, batch_size=batch_size, signature=signature, sink=sink, owner=owner)
        self.cost = cost_of(inputs, request.parameters, longest)


def tickets_for(config: ModelConfig) -> Callable[..., RequestTicket]:
    """The class of the requests to this model."""
    longest = config.parameter("max_model_len")
    return functools.partial(EngineTicket, longest=int(longest) if longest.isdigit() else 0)
