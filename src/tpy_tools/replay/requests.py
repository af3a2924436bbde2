"""From the entries of a recording to the requests that are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from tpy.errors import ErrorCode, TpyError
from tpy.frontends.binary_tensor import read_binary
from tpy.messages import Tensor
from tpy.recording.core.entries import RecordedRequest
from tpy_tools.load import PlannedCall

_INT64_MAX: Final = 2**63 - 1
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"

HTTP: Final = "http"
GRPC: Final = "grpc"
GRPC_STREAM: Final = "grpc-stream"


class Calls:
    """Makes the calls of a replay over `protocol`, of requests that come in the order of their arrival; to other models where
    `model_as` says so. `left_out` counts the requests that cannot be sent, by reason.

    A sequence of which a request is missing ends there.
    """

    def __init__(self, protocol: str, model_as: Mapping[str, str]) -> None:
        self._protocol = protocol
        self._model_as = model_as
        self._broken: set[tuple[str, int | str]] = set()
        self.left_out: Counter[str] = Counter()

    def make(self, request: RecordedRequest) -> PlannedCall | None:
        """The call; None for a request that is left out."""
        sequence = request.sequence
        key = None if sequence is None else (request.model, sequence.id)
        if sequence is not None and sequence.start:
            self._broken.discard((request.model, sequence.id))
        made = (
            "of sequences with a request that is left out"
            if key in self._broken
            else _call(request, self._protocol, self._model_as)
        )
        if not isinstance(made, str):
            return made
        self.left_out[made] += 1
        if key is not None and sequence is not None:
            if sequence.end:
                self._broken.discard(key)
            else:
                self._broken.add(key)
        return None


def _call(request: RecordedRequest, protocol: str, model_as: Mapping[str, str]) -> PlannedCall | str:
    """The call, or the reason why there is no call."""
    if request.status == ErrorCode.CANCELLED.value:
        return "that their clients cancelled"
    if protocol != GRPC_STREAM and request.status == "OK" and len(request.responses) != 1:
        return "with more or less than one response, which --protocol grpc-stream takes"
    inputs: list[Tensor] = []
    for tensor in request.inputs:
        if tensor.data is None:
            return "without inputs in the recording"
        try:
            array = read_binary(tensor.data, tensor.datatype, tensor.shape, tensor=tensor.name, model="", prefix="")
        except TpyError:
            return "with an input that does not fit its shape"
        inputs.append(Tensor(tensor.name, tensor.datatype, array))
    parameters = dict(request.parameters)
    if request.sequence is not None:
        if protocol != HTTP and isinstance(request.sequence.id, int) and request.sequence.id > _INT64_MAX:
            return "with an id of a sequence above 2^63 - 1, which --protocol http takes"
        parameters |= {
            "sequence_id": request.sequence.id,
            "sequence_start": request.sequence.start,
            "sequence_end": request.sequence.end,
        }
    if request.priority:
        parameters["priority"] = request.priority
    if request.timeout_us:
        parameters["timeout"] = request.timeout_us
    if protocol == GRPC_STREAM:
        parameters[_EMPTY_FINAL] = True
    return PlannedCall(
        model=model_as.get(request.model, request.model),
        version="" if request.version is None else str(request.version),
        request_id=request.id,
        inputs=tuple(inputs),
        outputs=request.requested,
        parameters=parameters,
    )
