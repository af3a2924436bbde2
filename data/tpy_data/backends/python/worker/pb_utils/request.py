"""pb_utils.InferenceRequest, and the trace that a request belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import context
from .arguments import FLAGS_MAX, int_argument, text_argument
from .context import SERVING, CallPort
from .failures import TritonModelException
from .pending_call import ResponseIterator, as_future, as_iterator_future
from .response import AnswerSink, InferenceResponse, InferenceResponseSender, SingleAnswer, StreamedAnswer, parameters_json
from .tensor import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 1


_REQUEST = "InferenceRequest"
_MEMORY = "PreferredMemory"
_MEMORY_TYPES = TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU

_ONLY_WHILE_SERVING = "BLS is only supported during the 'execute' function."

CORRELATION_ID_MAX = (1 << 64) - 1
TIMEOUT_US_MAX = (1 << 64) - 1
VERSION_MIN, VERSION_MAX = -1, (1 << 63) - 1
DEVICE_MIN, DEVICE_MAX = -(1 << 63), (1 << 63) - 1


class PreferredMemory:
    """The preferred place of the outputs of a call: in host memory, or on the GPU where the called model makes them. A call that
    prefers a GPU is refused on a machine without GPUs."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = int_argument(_MEMORY, "preferred_memory_type", preferred_memory_type, *_MEMORY_TYPES)
        self.preferred_device_id = int_argument(_MEMORY, "preferred_device_id", preferred_device_id, DEVICE_MIN, DEVICE_MAX)


class Answerable:
    """A request of a batch, as far as its answer goes."""

    __slots__ = ("_is_cancelled", "_open_sink", "_release_flags", "_sink")

    def __init__(self) -> None:
        self._is_cancelled: Callable[[], bool] = _never
        self._sink: AnswerSink | None = None
        self._open_sink: Callable[[Any], SingleAnswer] = _no_sink
        self._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL

    def is_cancelled(self) -> bool:
        """Returns True if nobody waits for the answer any more. Asks the server; any thread."""
        return self._is_cancelled()

    def set_release_flags(self, flags: int) -> None:
        """Set the fate of the request when `execute` returns: TRITONSERVER_REQUEST_RELEASE_ALL (the default), or
        TRITONSERVER_REQUEST_RELEASE_RESCHEDULE to have it executed again, in models with `iterative_sequence`."""
        flags = int_argument("set_release_flags", "flags", flags, 0, FLAGS_MAX)
        if flags not in (TRITONSERVER_REQUEST_RELEASE_ALL, TRITONSERVER_REQUEST_RELEASE_RESCHEDULE):
            raise TritonModelException(f"set_release_flags: unknown flags {flags!r}")
        self._release_flags = flags

    def get_response_sender(self) -> InferenceResponseSender:
        """For the responses of a decoupled model, or the one response of another, which may come after `execute` returned."""
        if self._sink is None:
            self._sink = self._open_sink(self)
        return InferenceResponseSender(self._sink)


class InferenceRequest(Answerable):
    """One request: of a batch handed to `execute`, or made by the model itself, to call another one with."""

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_inputs",
        "_model_name",
        "_model_version",
        "_parameters",
        "_preferred_memory",
        "_request_id",
        "_requested_output_names",
        "_timeout",
        "_trace",
    )

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Iterable[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        # The constructor takes what Triton's takes, more than seven: model code calls it by these names.
        # That they may all be left out is ours: a request for a unit test of `execute` needs no more than inputs.
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        request_id = text_argument(_REQUEST, "request_id", request_id)
        model_name = text_argument(_REQUEST, "model_name", model_name, "replace")  # an unknown name, which the call's error says
        if isinstance(correlation_id, int):
            correlation_id = int_argument(_REQUEST, "correlation_id", correlation_id, 0, CORRELATION_ID_MAX)
        else:
            correlation_id = str(correlation_id)
        model_version = int_argument(_REQUEST, "model_version", model_version, VERSION_MIN, VERSION_MAX)
        flags = int_argument(_REQUEST, "flags", flags, 0, FLAGS_MAX)
        timeout = int_argument(_REQUEST, "timeout", timeout, 0, TIMEOUT_US_MAX)
        where = f"for request with id '{request_id}' and model name '{model_name}' should not be empty."
        self._inputs = list(inputs or ())
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException(f"Input tensor {where}")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"InferenceRequest: inputs must be pb_utils.Tensor objects, got {type(tensor).__name__}")
        if isinstance(requested_output_names, (str, bytes)):  # whose elements are not names
            raise TypeError(f"{_REQUEST}: requested_output_names must be a list of str, got {requested_output_names!r}")
        names = [text_argument(_REQUEST, "requested_output_names", name) for name in requested_output_names]
        if "" in names:
            raise TritonModelException(f"Requested output name {where}")
        if trace is not None and not isinstance(trace, InferenceTrace):
            raise TypeError(f"InferenceRequest: trace must be an InferenceTrace, got {type(trace).__name__}")
        if preferred_memory is not None and not isinstance(preferred_memory, PreferredMemory):
            raise TypeError(
                f"InferenceRequest: preferred_memory must be a PreferredMemory, got {type(preferred_memory).__name__}"
            )
        if parameters is not None and not isinstance(parameters, dict):
            raise TritonModelException(f"Expect N8pybind114dictE, got {type(parameters)}")  # Triton's text
        self._request_id = request_id
        self._correlation_id = correlation_id
        self._requested_output_names = frozenset(names)
        self._model_name = model_name
        self._model_version = model_version
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._parameters = parameters_json(parameters or {})
        super().__init__()

    def inputs(self) -> list[Tensor]:
        """The input tensors; optional inputs that were not given are absent."""
        return self._inputs

    def request_id(self) -> str:
        """The caller's id, "" without an id."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """Of its sequence; 0 outside a sequence."""
        return self._correlation_id

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """For requests that the model makes itself."""
        self._flags = int_argument(_REQUEST, "flags", flags, 0, FLAGS_MAX)

    def timeout(self) -> int:
        """Microseconds that were left when the batch was formed; 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """The caller's parameters as a JSON object."""
        return self._parameters

    def requested_output_names(self) -> set[str]:
        """The outputs that the caller wants; all of the model's unless it named some."""
        return set(self._requested_output_names)

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Call the model and wait for its response; with `decoupled`, get an iterator over its responses.

        What goes wrong with the call is the response's `error()`. Raises TritonModelException in initialize and finalize.
        """
        port = self._port()
        if not decoupled:
            return port.infer(self, streams=False).take()[0]
        port.prepare_waiting_elsewhere()
        return ResponseIterator(port.infer(self, streams=True))

    def async_exec(self, decoupled: bool = False) -> Any:
        """The same as an awaitable, for coroutines: an asyncio future. The call is made at once, not only when it is awaited."""
        import asyncio

        asyncio.get_running_loop()
        port = self._port()
        port.prepare_waiting_elsewhere()
        pending = port.infer(self, streams=decoupled)
        return as_iterator_future(pending) if decoupled else as_future(pending)

    def _port(self) -> CallPort:
        """The way to the model. Raises TritonModelException where models cannot be called, or not with the preferred memory."""
        known = context.current()
        port = None if known is None else known.calls
        if port is None or port.phase != SERVING:
            raise TritonModelException(_ONLY_WHILE_SERVING)
        if prefers_device(self) and not port.has_devices:
            raise TritonModelException(
                "preferred_memory TRITONSERVER_MEMORY_GPU is not offered: there is no GPU in this server, or this model does not "
                "run in a separate process; expected TRITONSERVER_MEMORY_CPU"
            )
        return port

    def trace(self) -> InferenceTrace:
        """The trace it belongs to."""
        return self._trace or NOT_TRACED


def received(
    request_id: str,
    correlation_id: int | str,
    flags: int,
    timeout_us: int,
    parameters: str,
    requested_output_names: frozenset[str],
    inputs: list[Tensor],
    trace: InferenceTrace,
) -> InferenceRequest:
    """A request of a batch, unchecked: the server has looked at it. Arm it with `watch`."""
    request = InferenceRequest.__new__(InferenceRequest)
    request._request_id = request_id
    request._correlation_id = correlation_id
    request._flags = flags
    request._timeout = timeout_us
    request._parameters = parameters
    request._requested_output_names = requested_output_names
    request._inputs = inputs
    request._is_cancelled = _never
    request._sink = None
    request._open_sink = _no_sink
    request._release_flags = TRITONSERVER_REQUEST_RELEASE_ALL
    request._model_name = ""
    request._model_version = -1
    request._preferred_memory = None
    request._trace = trace
    return request


def prefers_device(request: InferenceRequest) -> bool:
    """Returns True if the outputs of a call may stay on the device where they are made."""
    preferred = request._preferred_memory
    return preferred is not None and preferred.preferred_memory_type != TRITONSERVER_MEMORY_CPU


def target_of(request: InferenceRequest) -> tuple[str, int]:
    """Name and version (-1: the newest) of the model that a request of the model's own making is for."""
    return request._model_name, request._model_version


def is_of_the_models_making(request: InferenceRequest) -> bool:
    """Returns True if a model made the request, to call another one."""
    return bool(request._model_name)


def watch(request: Answerable, is_cancelled: Callable[[], bool], open_sink: Callable[[Any], SingleAnswer]) -> None:
    """Set how the request of a model that answers once learns that it was cancelled, and what makes its response sink."""
    request._is_cancelled = is_cancelled
    request._open_sink = open_sink


def cancellation_of(request: Answerable) -> Callable[[], bool]:
    """The source of its cancellation."""
    return request._is_cancelled


def streamed_answer(request: Answerable) -> StreamedAnswer | None:
    """The response sink of a request of a decoupled model."""
    return sink if isinstance(sink := request._sink, StreamedAnswer) else None


def single_answers(requests: Sequence[Answerable]) -> list[SingleAnswer | None]:
    """The response sinks that were asked for, of requests of a model that answers once."""
    return [sink if isinstance(sink := request._sink, SingleAnswer) else None for request in requests]


def is_rescheduled(request: Answerable) -> bool:
    """Returns True if the model gives it back to be executed again."""
    return request._release_flags == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


def answer_through(request: Answerable, sink: StreamedAnswer) -> None:
    """Say how the request of a decoupled model is answered, and how it learns that it was cancelled."""
    request._sink = sink
    request._is_cancelled = sink.is_cancelled


def _never() -> bool:
    return False


def _no_sink(request: Answerable) -> SingleAnswer:
    raise TritonModelException("get_response_sender() is for requests that execute was given")


class InferenceTrace:
    """The trace that a request belongs to; to be handed on to requests that the model makes (`trace=request.trace()`)."""

    __slots__ = ("_context", "_number")

    def __init__(self, context: str = "", number: int = 0) -> None:
        self._context = context
        self._number = number

    def get_context(self) -> str | None:
        """The trace's context as W3C headers in a JSON object, in mode opentelemetry; None when the request is not traced."""
        return self._context or None


def number_of(trace: InferenceTrace) -> int:
    """The number by which the server knows the request that it is of, 0 for none."""
    return trace._number


NOT_TRACED = InferenceTrace()
"""The trace of requests that are not traced."""
