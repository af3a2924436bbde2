"""A worker's requests and responses as a hosted backend sees them, and as it gives them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tpy.backend import ExecutionResult, SequenceState, StateSpec
from tpy.errors import ErrorCode as TpyCode
from tpy.errors import Internal, TpyError
from tpy.messages import DataType, ParameterValue, SequencePosition, Tensor
from tpy.messages.datatypes import BY_NUMBER

from ..failures import ErrorCode, TritonError, TritonModelException
from ..request import (
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    InferenceRequest,
    wanted_outputs,
)
from ..response import InferenceResponse, received_response
from ..response_sender import RESPONSE_COMPLETE_FINAL, InferenceResponseSender
from ..tensor import storage_of, wrap

_CODES = {
    TpyCode.UNKNOWN: ErrorCode.UNKNOWN,
    TpyCode.NOT_FOUND: ErrorCode.NOT_FOUND,
    TpyCode.INVALID_ARG: ErrorCode.INVALID_ARG,
    TpyCode.UNAVAILABLE: ErrorCode.UNAVAILABLE,
    TpyCode.UNSUPPORTED: ErrorCode.UNSUPPORTED,
    TpyCode.ALREADY_EXISTS: ErrorCode.ALREADY_EXISTS,
    TpyCode.CANCELLED: ErrorCode.CANCELLED,
}
"""All others are INTERNAL to a worker."""

_UINT16 = np.dtype(np.uint16)


def tensor_of(name: str, number: int, array: np.ndarray[Any, Any]) -> Tensor:
    """A read-only tensor from an array in the worker's storage form."""
    datatype = BY_NUMBER[number]
    view = array.view(datatype.numpy) if datatype is DataType.BF16 else array
    view.flags.writeable = False
    return Tensor(name, datatype, view)


def storage(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor's array in the worker's storage form."""
    return tensor.array.view(_UINT16) if tensor.datatype is DataType.BF16 else tensor.array


class HostedRequest:
    """An ExecutionRequest over one of the worker's. `states` are its model's, `batches` says that the model has batches;
    `all_outputs` is what the worker takes for "all outputs"."""

    def __init__(
        self,
        request: InferenceRequest,
        states: Sequence[StateSpec],
        all_outputs: frozenset[str],
        *,
        batches: bool,
        sender: HostedSender | None = None,
    ) -> None:
        self.request = request
        self.sender = sender
        self.inputs: Mapping[str, Tensor] = {
            name: tensor_of(name, number, array) for name, number, array in map(storage_of, request.inputs())
        }
        first = next(iter(self.inputs.values()), None) if batches else None
        self.batch_size = 1 if first is None or not first.array.ndim else max(1, first.array.shape[0])
        self.state = self._taken(states) if states else None
        wanted = wanted_outputs(request)
        self.requested_outputs = () if wanted is all_outputs else tuple(wanted.difference([spec.output_name for spec in states]))

    def _taken(self, states: Sequence[StateSpec]) -> SequenceState:
        """The states, which came as inputs."""
        names = {spec.input_name for spec in states}
        state = SequenceState({name: tensor.array for name, tensor in self.inputs.items() if name in names})
        self.inputs = {name: tensor for name, tensor in self.inputs.items() if name not in names}
        return state

    @property
    def record(self) -> None:
        """None: calls of hosted backends belong to no trace."""
        return None

    @property
    def residency(self) -> None:
        """None: tensors cross between processes in host memory."""
        return None

    @property
    def id(self) -> str:
        """The caller's id."""
        return self.request.request_id()

    @cached_property
    def parameters(self) -> Mapping[str, ParameterValue]:
        """The caller's parameters."""
        text = self.request.parameters()
        return json.loads(text) if text != "{}" else {}

    @property
    def sequence(self) -> SequencePosition | None:
        """The place in its sequence."""
        correlation_id, flags = self.request.correlation_id(), self.request.flags()
        if not correlation_id and not flags:
            return None
        return SequencePosition(
            correlation_id=correlation_id,
            start=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            end=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        )

    @property
    def timeout_us(self) -> int:
        """The caller's time-out."""
        return self.request.timeout()

    def is_cancelled(self) -> bool:
        """Asks the server."""
        return self.request.is_cancelled()


class HostedSender:
    """A ResponseSender over a worker's. `send` waits for a caller who takes nothing, also when it is told not to wait: what may
    be on its way is bounded here, and nowhere else."""

    def __init__(self, sender: InferenceResponseSender) -> None:
        self._sender = sender
        self._taken: Callable[[int], None] | None = None

    def send(self, result: ExecutionResult | None, *, final: bool, wait: bool = True) -> None:
        """As `ResponseSender.send`."""
        response = None if result is None else response_of(result)
        try:
            self._sender.send(response, RESPONSE_COMPLETE_FINAL if final else 0)
        except TritonModelException as error:
            raise ValueError(str(error)) from None
        if self._taken is not None and not final:
            self._taken(1)

    def watch(self, taken: Callable[[int], None], ended: Callable[[], None]) -> None:
        """As `ResponseSender.watch`: what was sent counts as taken, and the end of a request that nobody waits for is seen here
        only if that is so already."""
        self._taken = taken
        if self._sender.is_cancelled():
            ended()

    def fail(self, error: TpyError) -> None:
        """End the request with an error, unless it has ended."""
        with contextlib.suppress(ValueError):
            self.send(ExecutionResult(error=error), final=True)


def code_of(error: TpyError) -> ErrorCode:
    """As workers name it."""
    return _CODES.get(error.code, ErrorCode.INTERNAL)


def failed(error: TpyError) -> InferenceResponse:
    """The response of a request that failed."""
    return InferenceResponse(error=TritonError(error.message, code_of(error)))


def response_of(result: ExecutionResult, more: Sequence[Tensor] = ()) -> InferenceResponse:
    """The worker's response for a result without flaws; `more` are outputs beside those of the result."""
    if result.error is not None:
        return failed(result.error)
    outputs = [wrap(tensor.name, tensor.datatype.number, storage(tensor)) for tensor in (*result.outputs, *more)]
    return received_response(outputs, None, json.dumps(dict(result.parameters)) if result.parameters else "{}")


def new_states(request: HostedRequest, states: Sequence[StateSpec], result: ExecutionResult, *, batches: bool) -> list[Tensor]:
    """The states that an execution left, as outputs. Raises Internal for one that is no array of the state's datatype."""
    if request.state is None:
        return []
    made = {tensor.name for tensor in result.outputs}
    left = []
    for spec in states:
        if spec.output_name in made:
            continue
        value = request.state.values.get(spec.input_name)
        if not isinstance(value, np.ndarray) or (value.dtype != spec.datatype.numpy and spec.datatype is not DataType.BYTES):
            raise Internal(f"state '{spec.output_name}' was left as {type(value).__name__}, expected an array")
        if not value.ndim:  # of a model to which it is a scalar
            value = value.reshape([1] * (len(spec.dims) + batches))
        left.append(Tensor(spec.output_name, spec.datatype, value))
    return left
