"""One inference: the request that a frontend submits, the responses that it gets, and the record of what happens to it, and when,
for observers of requests (`tpy.observers`)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec

from tpy.errors import TpyError
from tpy.messages.models import ModelDescription
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


class RecordTaker(Protocol):
    """Takes what happens to requests. Called on the Trio thread of the process that the record is in."""

    def admitted(self, record: RequestRecord, request: InferenceRequest, /) -> None: ...
    def responded(self, record: RequestRecord, response: InferenceResponse, /) -> None: ...
    def ended(self, record: RequestRecord, /) -> None: ...
    def finished(self, record: RequestRecord, /) -> None: ...


class RequestRecord:
    """One request. Made by whoever takes it from its caller; it goes with the request (`InferenceRequest.record`).

    All times are nanoseconds on the server's Clock, 0 for what has not happened. `protocol` is "http", "grpc", "grpc-stream",
    "generate", "openai", "kserve-v1", "mlflow", "sagemaker", "tensorflow-serving", "torchserve", "vertex-ai", "embedded",
    "frontend" (from a frontend process), "call" (of a model) or "step" (of an ensemble); `parent` is the record of the request
    that a call or step belongs to. `peer` is the caller's address, `headers` are those of his that concern observers (lower-case
    names).

    `begun_ns`: its first byte arrived, as far as that is known. `received_ns`: all of it had. `submitted_ns`: it was given to its
    model. `started_ns`, `input_ns`, `infer_ns`, `output_ns`: its execution's begin and durations; None and 0 without one.
    `ended_ns`: the model's final response. `finished_ns`: the answer was handed to the connection, or there will be none.

    `status` is "" while it is under way, then "OK" or the error's code (`ErrorCode`); `error` is its message.
    """

    __slots__ = (
        "__weakref__",
        "_ended",
        "_finished",
        "_number",
        "_taker",
        "attachments",
        "begun_ns",
        "context",
        "ended_ns",
        "error",
        "finished_ns",
        "headers",
        "id",
        "infer_ns",
        "input_ns",
        "model",
        "output_ns",
        "parent",
        "peer",
        "protocol",
        "received_ns",
        "request_bytes",
        "response_bytes",
        "responses",
        "started_ns",
        "status",
        "submitted_ns",
        "trace_id",
        "version",
    )

    def __init__(
        self,
        taker: RecordTaker,
        protocol: str,
        *,
        model: str = "",
        peer: str = "",
        headers: Mapping[str, str] | None = None,
        begun_ns: int = 0,
        received_ns: int = 0,
        request_bytes: int = 0,
        parent: RequestRecord | None = None,
    ) -> None:
        self._taker = taker
        self._ended = self._finished = False
        self.protocol = protocol
        self.model = model
        self.version: int | None = None
        self.id = ""
        self.peer = peer
        self.headers = headers or {}
        self.parent = parent
        self.begun_ns = begun_ns
        self.received_ns = received_ns
        self.submitted_ns = self.ended_ns = self.finished_ns = 0
        self.started_ns: int | None = None
        self.input_ns = self.infer_ns = self.output_ns = 0
        self.request_bytes = request_bytes
        self.response_bytes = 0
        self.responses = 0
        self.status = ""
        self.error = ""
        self.context = ""
        """The trace context for those whom its model asks, as W3C headers in a JSON object; "" for none."""
        self.trace_id = ""
        """The trace that it is in, "" while it is not traced: exemplars of metrics show it."""
        self._number = 0
        self.attachments: dict[Any, Any] = {}
        """The things that observers keep with it, each under itself."""

    def child(self, protocol: str, model: str) -> RequestRecord:
        """The record of a request that is made for this one: a step of an ensemble, a call of a model."""
        return RequestRecord(self._taker, protocol, model=model, parent=self)

    def number(self) -> int:
        """The number under which `record_of` finds it, for models in other processes. May be called from any thread."""
        if not self._number:
            self._number = next(_numbers)
            _numbered[self._number] = self
        return self._number

    @property
    def id_in_logs(self) -> str:
        """Its id, or that of the request that it belongs to."""
        record: RequestRecord | None = self
        while record is not None and not record.id:
            record = record.parent
        return "" if record is None else record.id

    @property
    def is_internal(self) -> bool:
        """True for a request whose answer leaves through no connection of this process: it is finished when it has ended."""
        return self.protocol in _INTERNAL

    def admit(self, request: InferenceRequest, now_ns: int) -> None:
        """The request is given to its model now."""
        self.model, self.version, self.id = request.model_name, request.model_version, request.id
        self.submitted_ns = now_ns
        self._taker.admitted(self, request)

    def respond(self, response: InferenceResponse) -> None:
        """The model has sent this response."""
        self.version = response.model_version
        if response.outputs:
            self.responses += 1
        self._taker.responded(self, response)

    def end(self, now_ns: int, status: str = "OK", error: str = "") -> None:
        """There will be nothing more from the model. No-op after the first time."""
        if self._ended:
            return
        self._ended = True
        self.ended_ns = now_ns
        self.status, self.error = status, error
        self._taker.ended(self)
        if self.is_internal:
            self.finish(now_ns)

    def fail(self, error: TpyError) -> None:
        """The answer is this error, unless another reason for a missing answer is already known."""
        if self.status in ("", "OK"):
            self.status, self.error = error.code.value, error.message

    def finish(self, now_ns: int, status: str = "", error: str = "", *, response_bytes: int = 0) -> None:
        """The caller has his answer, or will get none. `status` and `error` are those of the answer, where they are not the
        model's. No-op after the first time."""
        if self._finished:
            return
        self._finished = True
        self.finished_ns = now_ns
        self.response_bytes += response_bytes
        if status:
            self.status, self.error = status, error
        self._taker.finished(self)


def record_of(number: int) -> RequestRecord | None:
    """The record of this number, None for one that is over."""
    return _numbered.get(number)


_numbers = count(1)
_numbered: WeakValueDictionary[int, RequestRecord] = WeakValueDictionary()
_INTERNAL = frozenset(("embedded", "frontend", "call", "step"))
