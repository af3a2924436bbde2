"""pb_utils.InferenceResponse and InferenceResponseSender, and the sinks of responses: StreamedAnswer for those of decoupled
models, SingleAnswer for those of models that answer once: by returning a response, or through a sender, then or later."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .arguments import FLAGS_MAX, int_argument
from .failures import ModelFailure, TritonError, TritonModelException
from .tensor import Tensor


class InferenceResponse:
    """The answer to one request: tensors, or an error for this request alone."""

    __slots__ = ("_error", "_output_tensors", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        is_listed = isinstance(output_tensors, (list, tuple, Sequence, np.ndarray))
        if not is_listed or not all(isinstance(tensor, Tensor) for tensor in output_tensors):
            raise TypeError(
                f"InferenceResponse: output_tensors must be a list of pb_utils.Tensor objects. Invoked with: {output_tensors!r}"
            )
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse: error must be a pb_utils.TritonError, got {error!r}")
        if parameters is not None and not isinstance(parameters, dict):
            raise TypeError(f"InferenceResponse: parameters must be a dict, got {type(parameters).__name__}")
        self._output_tensors = list(output_tensors)
        self._error = error
        self._parameters = parameters_json(parameters) if parameters else "{}"

    def output_tensors(self) -> list[Tensor]:
        """The outputs."""
        return self._output_tensors

    def has_error(self) -> bool:
        """Returns True if it carries an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """The error, or None."""
        return self._error

    def parameters(self) -> str:
        """The response's parameters as a JSON object."""
        return self._parameters


def received_response(output_tensors: list[Tensor], error: TritonError | None, parameters: str) -> InferenceResponse:
    """The response to a call, unchecked: the server has made it. `parameters` is a JSON object."""
    response = InferenceResponse.__new__(InferenceResponse)
    response._output_tensors = output_tensors
    response._error = error
    response._parameters = parameters
    return response


_spaced = json.JSONEncoder(ensure_ascii=False).encode


def parameters_json(parameters: dict[str, Any]) -> str:
    """As JSON; half characters become question marks. Raises TritonModelException for a key or value of a wrong type."""
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return _spaced(parameters).encode("utf-8", "replace").decode()


RESPONSE_COMPLETE_FINAL = 1

_CLOSED = "Unable to send response. Response sender has been closed."

DROPPED = "the model dropped the response sender of a request without sending TRITONSERVER_RESPONSE_COMPLETE_FINAL"
"""The error for the caller of such a request."""

Deliver = Callable[[InferenceResponse | None, bool], None]
"""Sends a response, or None with the final flag alone. Blocks while the caller takes none."""


class StreamedAnswer:
    """Belongs to the request and to its senders. When the last of them is gone without the final flag, `dropped` is called, by
    the garbage collector in any thread: it must not wait for anything."""

    __slots__ = ("_deliver", "_dropped", "_ended", "_lock", "is_cancelled", "is_full")

    def __init__(
        self,
        deliver: Deliver,
        *,
        is_cancelled: Callable[[], bool],
        dropped: Callable[[], None],
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self.is_cancelled = is_cancelled
        self.is_full = is_full
        """Returns whether `send` would wait."""
        self._deliver = deliver
        self._dropped = dropped
        self._ended = False
        self._lock = threading.Lock()

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Raises TritonModelException after the final flag."""
        with self._lock:
            if self._ended:
                raise TritonModelException(_CLOSED)
            self._ended = final
        try:
            self._deliver(response, final)
        except BaseException:
            if final:
                self._ended = False  # nothing was sent: the request still has to end somehow
            raise

    def close(self) -> None:
        """The request was ended by other means."""
        with self._lock:
            self._ended = True

    @property
    def ended(self) -> bool:
        """True if nothing more can be sent."""
        return self._ended

    def __del__(self) -> None:
        if not self._ended:
            self._dropped()


class AnswerSink(Protocol):
    """The destination of a sender's responses: a StreamedAnswer or, of a model that answers once, a SingleAnswer."""

    @property
    def is_cancelled(self) -> Callable[[], bool]: ...

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """Raises TritonModelException when there may be no further response."""
        ...


class InferenceResponseSender:
    """Sends the responses of one request. Any thread, also after `execute` has returned. From `get_response_sender`."""

    __slots__ = ("_sink",)

    def __init__(self, sink: AnswerSink) -> None:
        self._sink = sink

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response; with TRITONSERVER_RESPONSE_COMPLETE_FINAL in `flags` it is the last one, and may be left out.

        Waits while the caller takes no responses; when the caller is gone it returns at once.
        """
        if type(flags) is not int or flags not in (0, RESPONSE_COMPLETE_FINAL):
            flags = int_argument("send", "flags", flags, 0, FLAGS_MAX)
        if flags not in (0, RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == 0:
            raise TritonModelException("Inference Response object must be provided when the response flags is set to zero.")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send: response must be a pb_utils.InferenceResponse, got {type(response).__name__}")
        self._sink.send(response, final=flags == RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        """Returns True if nobody waits for responses any more."""
        return self._sink.is_cancelled()


UNANSWERED = "the model dropped the response sender of a request without having sent a response"
FORGOTTEN = (
    "execute returned None for a request and did not ask for its response sender; return a list of InferenceResponse, one for "
    "each request"
)
_MORE = "Unable to send response. Non-decoupled model cannot send more than one response."
_NOTHING = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."


class SingleAnswer:
    """Belongs to the request and to its senders. Until `execute` has returned a response is kept for the batch's result, from
    `go_late` on it is delivered. When the last owner is gone without one, the request is answered with UNANSWERED."""

    __slots__ = ("_closed", "_deliver", "_lock", "_response", "_sent", "is_cancelled")

    def __init__(self, is_cancelled: Callable[[], bool]) -> None:
        self.is_cancelled = is_cancelled
        self._lock = threading.Lock()
        self._sent = False
        self._closed = False
        self._response: InferenceResponse | None = None
        self._deliver: Callable[[InferenceResponse], None] | None = None

    def send(self, response: InferenceResponse | None, *, final: bool) -> None:
        """The first response is the answer. Raises TritonModelException for another one, and after the final flag."""
        with self._lock:
            if response is not None and self._sent:
                raise TritonModelException(_MORE)
            if response is None and not self._sent:
                raise TritonModelException(_NOTHING)
            if self._closed:
                raise TritonModelException(_CLOSED)
            self._closed = final
            if response is None:
                return
            self._sent = True
            if self._deliver is None:
                self._response = response
                return
        self._deliver(response)

    def answered(self) -> InferenceResponse | None:
        """The response sent so far."""
        return self._response

    def close(self) -> None:
        """The request was answered by other means."""
        with self._lock:
            self._sent = self._closed = True
            self._response = None

    def go_late(self, deliver: Callable[[InferenceResponse], None]) -> InferenceResponse | None:
        """`execute` has returned: what was sent until then, or None, and then what comes goes through `deliver` (any thread)."""
        with self._lock:
            if not self._sent:
                self._deliver = deliver
            return self._response

    def __del__(self) -> None:
        if not self._sent and self._deliver is not None:
            self._deliver(InferenceResponse(error=TritonError(UNANSWERED)))


def settle(
    responses: Sequence[InferenceResponse | None], sinks: Sequence[SingleAnswer | None]
) -> list[InferenceResponse | SingleAnswer]:
    """Join the returned and the sent responses: per request its answer, or its response sink when that is still to come.

    Raises ModelFailure when a request got both.
    """
    settled: list[InferenceResponse | SingleAnswer] = []
    for response, sink in zip(responses, sinks, strict=True):
        if sink is None:
            settled.append(response or InferenceResponse(error=TritonError(FORGOTTEN)))
        elif response is None:
            settled.append(sink)
        elif sink.answered() is not None:
            raise ModelFailure(_MORE)
        else:
            sink.close()
            settled.append(response)
    return settled


def settle_failed(sinks: Sequence[SingleAnswer | None], text: str) -> list[InferenceResponse]:
    """The batch has failed: what was sent before counts all the same, the other requests get the error."""
    settled = []
    for sink in sinks:
        sent = None if sink is None else sink.answered()
        settled.append(sent or InferenceResponse(error=TritonError(text)))
        if sink is not None:
            sink.close()
    return settled
