"""Implicit state of sequences for models that see it: a state is one more input, and its new value one more output, which callers
get only where the configuration lists it as an output, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tpy.backend import AnswerLater, ExecutionBatch, ExecutionRequest, ExecutionResult, ModelInstance, SequenceState, StateSpec
from tpy.errors import Internal
from tpy.messages import Tensor


class _WithState:
    """An ExecutionRequest with its state among the inputs, and the new state among the outputs that are asked for."""

    __slots__ = ("_request", "inputs", "requested_outputs")

    def __init__(self, request: ExecutionRequest, specs: Sequence[StateSpec]) -> None:
        self._request = request
        values = state_of(request).values
        self.inputs = {
            **request.inputs,
            **{spec.input_name: Tensor(spec.input_name, spec.datatype, cast("Any", values[spec.input_name])) for spec in specs},
        }
        wanted = request.requested_outputs
        self.requested_outputs = (*wanted, *(spec.output_name for spec in specs)) if wanted else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class ImplicitState:
    """The states of a model, which it sees among inputs and outputs. `batching`: tensors have a batch dimension."""

    def __init__(self, specs: Sequence[StateSpec], *, batching: bool) -> None:
        self._specs = tuple(specs)
        self._batching = batching

    def requests(self, requests: Sequence[ExecutionRequest]) -> Sequence[ExecutionRequest]:
        """The requests as the model sees them, with the states that their sequences have now."""
        return cast("list[ExecutionRequest]", [_WithState(request, self._specs) for request in requests])

    def keep(self, requests: Sequence[ExecutionRequest], results: Sequence[ExecutionResult]) -> list[ExecutionResult]:
        """Keep the new states. A request whose new state cannot be one gets an error for it, and its sequence keeps the old
        one."""
        return [self._keep(request, result) for request, result in zip(requests, results, strict=True)]

    def _keep(self, request: ExecutionRequest, result: ExecutionResult) -> ExecutionResult:
        if isinstance(result, AnswerLater) or result.error is not None or result.reschedule:
            return result
        made = {tensor.name: tensor for tensor in result.outputs}
        state = state_of(request)
        values = dict(state.values)
        for spec in self._specs:
            tensor = made.get(spec.output_name)
            if tensor is None:
                continue
            try:
                spec.require_fits(tensor.datatype, tensor.array.shape, batching=self._batching)
            except Internal as error:
                return ExecutionResult(error=error)
            values[spec.input_name] = _own(tensor)
        state.values = values
        return result


class StatefulInstance:
    """A ModelInstance over another one, whose model is not decoupled, that sees the states."""

    def __init__(self, instance: ModelInstance, state: ImplicitState) -> None:
        self._instance = instance
        self._state = state

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """As the other instance's."""
        seen = ExecutionBatch(self._state.requests(batch.requests), batch.times)
        return self._state.keep(batch.requests, self._instance.execute(seen))

    def close(self) -> None:
        """Close the other instance."""
        self._instance.close()


def _own(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A copy: the array is a view of a whole batch's memory."""
    array = tensor.array.copy()
    array.flags.writeable = False
    return array


def state_of(request: ExecutionRequest) -> SequenceState:
    """The states of the request's sequence. Raises Internal for a request without states."""
    if request.state is None:
        raise Internal("a request to a model with implicit state has no state")
    return request.state
