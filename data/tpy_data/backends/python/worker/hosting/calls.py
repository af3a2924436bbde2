"""ServerCalls of a hosted backend: the server's, through the worker's connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

from tpy.backend import CallSink, ServerCall, WaitingBatch
from tpy.errors import ERROR_OF_CODE, Internal, TpyError, Unavailable
from tpy.errors import ErrorCode as TpyCode
from tpy.messages import InferenceRequest, InferenceResponse, LoadRequest

from ..pb_utils.context import CallPort
from ..pb_utils.failures import ErrorCode, TritonModelException
from ..pb_utils.pending_call import PendingCall
from ..pb_utils.request import InferenceRequest as WorkersRequest
from ..pb_utils.response import InferenceResponse as WorkersResponse
from ..pb_utils.tensor import storage_of, wrap
from .requests import storage, tensor_of

_NEWEST = -1
_CODES = {
    ErrorCode.UNKNOWN: TpyCode.UNKNOWN,
    ErrorCode.INTERNAL: TpyCode.INTERNAL,
    ErrorCode.NOT_FOUND: TpyCode.NOT_FOUND,
    ErrorCode.INVALID_ARG: TpyCode.INVALID_ARG,
    ErrorCode.UNAVAILABLE: TpyCode.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: TpyCode.UNSUPPORTED,
    ErrorCode.ALREADY_EXISTS: TpyCode.ALREADY_EXISTS,
    ErrorCode.CANCELLED: TpyCode.CANCELLED,
}


class HostedCalls:
    """A `ServerCalls`. Each call that is under way has a thread, which takes its responses."""

    def __init__(self, port: CallPort) -> None:
        self._port = port

    def infer(
        self, request: InferenceRequest, sink: CallSink, *, streams: bool, waiting: WaitingBatch | None = None
    ) -> ServerCall:
        """As `ServerCalls.infer`; a batch that waits is seen by the worker itself."""
        sequence = request.sequence
        made = WorkersRequest(
            request_id=request.id,
            correlation_id=0 if sequence is None else sequence.correlation_id,
            inputs=[wrap(each.name, each.datatype.number, storage(each)) for each in request.inputs],
            requested_output_names=request.requested_outputs,
            model_name=request.model_name,
            model_version=_NEWEST if request.model_version is None else request.model_version,
            flags=0 if sequence is None else int(sequence.start) | int(sequence.end) << 1,
            timeout=request.timeout_us,
            parameters=dict(request.parameters),
        )
        self._port.prepare_waiting_elsewhere()
        try:
            pending = self._port.infer(made, streams=streams)
        except TritonModelException as error:
            raise Unavailable(str(error)) from None
        call = HostedCall(request, pending)
        threading.Thread(target=call.take_all, args=(sink,), name=f"call of {request.model_name}", daemon=True).start()
        return call

    def load_model(self, request: LoadRequest, done: Callable[[TpyError | None], None]) -> None:
        """As `ServerCalls.load_model`, but returns when it is done."""
        files = {f"file:{path}": content for path, content in request.files.items()}
        _answer(lambda: self._port.load_model(request.model_name, request.config_json or "", files), done)

    def unload_model(self, model_name: str, done: Callable[[TpyError | None], None], *, unload_dependents: bool) -> None:
        """As `ServerCalls.unload_model`, but returns when it is done."""
        _answer(lambda: self._port.unload_model(model_name, unload_dependents=unload_dependents), done)

    def is_model_ready(self, model_name: str, version: int | None, answer: Callable[[bool], None]) -> None:
        """As `ServerCalls.is_model_ready`, but returns when it is answered."""
        answer(self._port.is_model_ready(model_name, version))


class HostedCall:
    """A `ServerCall`. What was taken is reported as it is taken from the connection."""

    def __init__(self, request: InferenceRequest, pending: PendingCall) -> None:
        self._request = request
        self._pending = pending

    def cancel(self) -> None:
        """As `ServerCall.cancel`."""
        self._pending.cancel(WorkersResponse())

    def taken(self, count: int) -> None:
        """As `ServerCall.taken`: nothing is to be done."""

    def take_all(self, sink: CallSink) -> None:
        """Give the responses to `sink`, up to the last one. In a separate thread."""
        final = False
        while not final:
            try:
                response, final = self._pending.take()
            except TritonModelException as error:
                sink.refuse(Internal(str(error)))
                return
            sink.deliver(self._response(response, final))

    def _response(self, response: WorkersResponse, final: bool) -> InferenceResponse:
        request, error = self._request, response.error()
        parameters = response.parameters()
        return InferenceResponse(
            model_name=request.model_name,
            model_version=request.model_version or 1,
            id=request.id,
            outputs=tuple(tensor_of(*storage_of(output)) for output in response.output_tensors()),
            parameters=json.loads(parameters) if parameters and parameters != "{}" else {},
            error=None if error is None else ERROR_OF_CODE[_CODES[ErrorCode(error.code())]](error.message()),
            final=final,
        )


def _answer(order: Callable[[], None], done: Callable[[TpyError | None], None]) -> None:
    error: TpyError | None = None
    try:
        order()
    except TritonModelException as failure:
        error = Internal(str(failure))
    done(error)
