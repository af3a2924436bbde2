"""One inference: the request that a frontend submits, the responses that it gets."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.errors import TpyError
from tpy.messages.models import ModelDescription
from tpy.messages.records import RequestRecord
from tpy.messages.tensors import Tensor

ParameterValue = bool | int | float | str
"""A value of the parameters extension."""

NO_PARAMETERS: Mapping[str, ParameterValue] = {}


def parameter_problem(key: str, value: ParameterValue) -> str:
    """Returns the reason for which no protocol carries a response parameter, "" for one that they do."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"response parameter '{key}' is text that UTF-8 cannot carry"
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        return f"response parameter '{key}' is an integer of more than 64 bits"
    return ""


class SequencePosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a request in its sequence (sequence extension). An id of 0 or "" means no sequence."""

    correlation_id: int | str
    start: bool = False
    end: bool = False


class Residency(msgspec.Struct, frozen=True):
    """The tensors of a request that are on a device, or may be: `inputs` says that some inputs are; `outputs` are those outputs
    that may stay where they are made, None means all. All others are in host memory.
    """

    inputs: bool = False
    outputs: frozenset[str] | None = frozenset()

    def keeps(self, output: str) -> bool:
        """Returns whether this output may stay where it is made."""
        return self.outputs is None or output in self.outputs


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request, not yet checked against the model.

    `model_version` None means the model's newest ready version. `requested_outputs` empty means all. `parameters` holds the
    caller's own ones only; those with a meaning have fields: `priority` (0 = the model's default), `timeout_us` (0 =
    none; a deadline for the whole request, counted from submission), `deadline_ns` (absolute, of the transport, on the
    server's Clock). `received_ns` is when the frontend had the whole request. `inputs` are in the caller's order. `residency`
    None: all tensors are in host memory, those of the answer too. `record` is there when somebody observes requests. `tenant` is
    the name of whom it is of, "" where that is nobody; `is_call`: a model, an ensemble or a rollout makes it, for one that has
    been let in.
    """

    model_name: str
    model_version: int | None = None
    id: str = ""
    inputs: tuple[Tensor, ...] = ()
    requested_outputs: tuple[str, ...] = ()
    parameters: Mapping[str, ParameterValue] = msgspec.field(default_factory=lambda: NO_PARAMETERS)
    sequence: SequencePosition | None = None
    priority: int = 0
    timeout_us: int = 0
    deadline_ns: int | None = None
    received_ns: int = 0
    residency: Residency | None = None
    record: RequestRecord | None = None
    tenant: str = ""
    is_call: bool = False


class InferenceResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One response. A request gets exactly one with `final`; only decoupled models send any before it.

    With `error` set there are no outputs. `outputs` are in the order of the model's configuration, restricted to the requested
    ones. An empty final (`final` and no outputs and no error) ends a decoupled request without data.
    `refused`: the request was refused on arrival, by an engine in another process, where `submit` cannot raise the `error`.
    `described_by`: what the copy that answered gives, labels included, where it is not the copy that the request was decoded for:
    requests of a live sequence go to the copy that holds it.
    """

    model_name: str
    model_version: int
    id: str = ""
    outputs: tuple[Tensor, ...] = ()
    parameters: Mapping[str, ParameterValue] = msgspec.field(default_factory=lambda: NO_PARAMETERS)
    error: TpyError | None = None
    final: bool = True
    refused: bool = False
    described_by: ModelDescription | None = None


FINAL_ONLY: tuple[Tensor, ...] = ()
"""The outputs of a response that only says "that was the last one"."""
