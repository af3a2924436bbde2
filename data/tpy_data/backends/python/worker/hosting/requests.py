"""A worker's requests and responses as a hosted backend sees them, and as it gives them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from tpy.backend import ExecutionResult, SequenceState, StateSpec
from tpy.errors import ErrorCode as TpyCode
from tpy.errors import Internal, TpyError
from tpy.messages import DataType, ParameterValue, SequencePosition, Tensor
from tpy.messages.datatypes import BY_NUMBER

from ..model import messages
from ..model.messages import Read, failed_answer, sendable
from ..pb_utils.failures import ErrorCode, TritonError, TritonModelException, unsendable
from ..pb_utils.request import TRITONSERVER_REQUEST_FLAG_SEQUENCE_END, TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, Answerable
from ..pb_utils.response import RESPONSE_COMPLETE_FINAL, InferenceResponse, InferenceResponseSender, received_response
from ..pb_utils.tensor import wrap
from ..wire.core.batch import Layout, Segment

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
_BF16 = DataType.BF16


def storage(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor's array in the worker's storage form."""
    return tensor.array.view(_UINT16) if tensor.datatype is _BF16 else tensor.array


def tensor_of(name: str, number: int, array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor over an array in the worker's storage form."""
    datatype = BY_NUMBER[number]
    return Tensor(name, datatype, array.view(datatype.numpy) if datatype is _BF16 else array)


class HostedRequest(Answerable):
    """An ExecutionRequest of a worker. `sender` is to be set for a decoupled model."""

    __slots__ = (
        "batch_size",
        "id",
        "inputs",
        "parameters",
        "requested_outputs",
        "sender",
        "sequence",
        "state",
        "timeout_us",
    )

    record = None  # calls of hosted backends belong to no trace
    residency = None  # tensors cross between processes in host memory

    def __init__(self, entry: Sequence[Any], inputs: dict[str, Tensor], states: Sequence[StateSpec], *, batches: bool) -> None:
        """`entry` is that of an EXECUTE message; `states` are the model's, `batches` says that it has batches."""
        Answerable.__init__(self)
        identifier, correlation, flags, timeout_us, parameters, wanted, _, _, _ = entry
        self.id: str = identifier
        self.timeout_us: int = timeout_us
        self.parameters: Mapping[str, ParameterValue] = json.loads(parameters) if parameters else {}
        self.sequence = _sequence(correlation, flags) if correlation or flags else None
        self.sender: HostedSender | None = None
        self.batch_size = _batch_size(inputs) if batches else 1
        self.inputs: Mapping[str, Tensor] = inputs
        self.state: SequenceState | None = None
        self.requested_outputs: tuple[str, ...] = tuple(wanted) if wanted else ()
        if states:
            self._take_states(states)

    def _take_states(self, states: Sequence[StateSpec]) -> None:
        """The states came as inputs."""
        names = {spec.input_name for spec in states}
        self.state = SequenceState({name: tensor.array for name, tensor in self.inputs.items() if name in names})
        self.inputs = {name: tensor for name, tensor in self.inputs.items() if name not in names}
        left = {spec.output_name for spec in states}
        self.requested_outputs = tuple([name for name in self.requested_outputs if name not in left])


def requests_of(
    entries: Sequence[Any], data: memoryview, segment: Segment | None, states: Sequence[StateSpec], read: Read, *, batches: bool
) -> list[HostedRequest]:
    """The requests of an EXECUTE. Their arrays are read-only. Raises as `read`."""
    data = data.toreadonly()
    if isinstance(segment, np.ndarray):
        segment = segment.view()
        segment.flags.writeable = False
    requests = []
    for entry in entries:
        inputs = {}
        for given in entry[6]:
            name = given[0]
            inputs[name] = tensor_of(name, given[1], read(given, data, segment))
        requests.append(HostedRequest(entry, inputs, states, batches=batches))
    return requests


def _sequence(correlation: int | str, flags: int) -> SequencePosition:
    return SequencePosition(
        correlation_id=correlation,
        start=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
        end=bool(flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
    )


def _batch_size(inputs: Mapping[str, Tensor]) -> int:
    first = next(iter(inputs.values()), None)
    return 1 if first is None or not first.array.ndim else max(1, first.array.shape[0])


class HostedSender:
    """A ResponseSender over a worker's. `send` waits for a caller who takes nothing, also when it is told not to wait: what may
    be on its way is bounded here, and nowhere else."""

    def __init__(self, sender: InferenceResponseSender, is_full: Callable[[], bool] = lambda: False) -> None:
        self._sender = sender
        self.is_full = is_full
        """As `ResponseSender.is_full`."""
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


def response_of(result: ExecutionResult) -> InferenceResponse:
    """The worker's response for a result without flaws, to be sent through a sender."""
    if result.error is not None:
        return failed(result.error)
    outputs = [wrap(tensor.name, tensor.datatype.number, storage(tensor)) for tensor in result.outputs]
    return received_response(outputs, None, json.dumps(dict(result.parameters)) if result.parameters else "{}")


def answer_of(result: ExecutionResult | InferenceResponse, wanted: Sequence[str] | None, layout: Layout) -> list[Any]:
    """As `messages.answer_of`, of a result without flaws as well."""
    if type(result) is not ExecutionResult:
        return messages.answer_of(cast(InferenceResponse, result), wanted, layout)
    if result.error is not None:
        return failed_answer(result.error.message, int(code_of(result.error)))
    try:
        outputs = [
            layout.add(tensor.name, tensor.datatype.number, storage(tensor))
            for tensor in result.outputs
            if wanted is None or tensor.name in wanted
        ]
    except Exception as unsent:
        return failed_answer(unsendable(unsent))
    return [-1, "", sendable(json.dumps(dict(result.parameters))) if result.parameters else "", outputs]


def new_states(request: HostedRequest, states: Sequence[StateSpec], result: ExecutionResult, *, batches: bool) -> list[Tensor]:
    """The states that an execution left, as outputs. Raises Internal for one that is not an array of the state's datatype."""
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
