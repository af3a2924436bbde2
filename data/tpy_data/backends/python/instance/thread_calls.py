"""ThreadCalls: calls of other models by one that runs in the server's process (a `CallPort` of worker/pb_utils/context.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tpy.backend import ExecutionRequest, ServerCall, ServerCalls, WaitingBatch
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.limits import MODEL_CALLS_OUTSTANDING_MAX
from tpy.messages import InferenceRequest, InferenceResponse, Tensor, record_of
from tpy_data.backends.python.protocol import translation
from tpy_data.backends.python.worker.pb_utils import tensor
from tpy_data.backends.python.worker.pb_utils.context import LOADING
from tpy_data.backends.python.worker.pb_utils.failures import ErrorCode, TritonError, TritonModelException
from tpy_data.backends.python.worker.pb_utils.pending_call import PendingCall
from tpy_data.backends.python.worker.pb_utils.request import InferenceRequest as ModelsRequest
from tpy_data.backends.python.worker.pb_utils.request import number_of, target_of
from tpy_data.backends.python.worker.pb_utils.response import InferenceResponse as ModelsResponse
from tpy_data.backends.python.worker.pb_utils.response import received_response
from tpy_data.backends.python.worker.wire.core import datatypes


class _Call:
    """One call, from the model's thread to the server and back (a `CallSink`)."""

    __slots__ = ("_arrived", "_model", "_owner", "call", "pending")

    def __init__(self, owner: ThreadCalls, model: str, *, streams: bool) -> None:
        self.call: ServerCall | None = None
        self._owner = owner
        self._model = model
        self._arrived = threading.Condition()
        self.pending = PendingCall(self._wait, self._taken if streams else None, self.give_up)

    def deliver(self, response: InferenceResponse) -> None:
        """On the Trio thread."""
        if response.error is not None:
            self._put(_failed(response.error, response.error.message), response.final)
        else:
            outputs = [as_models_tensor(each.name, each) for each in response.outputs]
            parameters = translation.parameters_text(response.parameters) or "{}"
            self._put(received_response(outputs, None, parameters), response.final)

    def refuse(self, error: TpyError) -> None:
        """On the Trio thread, or the model's when the loop has ended."""
        self._put(_failed(error, f"Model {self._model} - Error when running inference: {error}"), True)

    def give_up(self) -> None:
        """Nobody wants the rest."""
        self._owner.ended(self)
        if self.call is not None:
            self.call.cancel()

    def wake(self) -> None:
        """Waiting threads look again."""
        with self._arrived:
            self._arrived.notify_all()

    def _put(self, response: ModelsResponse, final: bool) -> None:
        if final:
            self._owner.ended(self)
        self.pending.put(response, final)
        self.wake()

    def _wait(self, pending: PendingCall) -> None:
        with self._arrived:
            while not pending.ready:
                self._arrived.wait()

    def _taken(self) -> None:
        if self.call is not None:
            self.call.taken(1)


class ThreadCalls:
    """One per instance. `begin_batch` and `end_batch` are called around each batch, in the instance's thread."""

    def __init__(self, name: str, server: ServerCalls) -> None:
        self.phase = LOADING
        self._name = name
        self._server = server
        self._thread = threading.get_ident()
        self._requests: Sequence[ExecutionRequest] = ()
        self._waiting: WaitingBatch | None = None
        self._lock = threading.RLock()  # garbage collection may give up a call in the middle of anything
        self._outstanding: set[_Call] = set()

    def begin_batch(self, requests: Sequence[ExecutionRequest]) -> None:
        """The model is about to execute a batch."""
        self._requests = requests

    def end_batch(self) -> None:
        """It has."""
        self._requests = ()
        if self._waiting is not None:
            self._waiting.completed = True
            self._waiting = None

    def close(self) -> None:
        """The model is unloaded: whatever its threads have called is cancelled."""
        with self._lock:
            outstanding = list(self._outstanding)
        for call in outstanding:
            error = TritonError("the model that made the call was unloaded", TritonError.CANCELLED)
            call.pending.cancel(ModelsResponse(error=error))
            call.wake()

    def ended(self, call: _Call) -> None:
        """One less."""
        with self._lock:
            self._outstanding.discard(call)

    has_devices = False
    """As `CallPort.has_devices`: models in the server's process get copies in host memory."""

    def infer(self, request: ModelsRequest, *, streams: bool) -> PendingCall:
        """As `CallPort.infer`."""
        name, version = target_of(request)
        call = _Call(self, name, streams=streams)
        with self._lock:
            if len(self._outstanding) < MODEL_CALLS_OUTSTANDING_MAX:
                self._outstanding.add(call)
                count = 0
            else:
                count = len(self._outstanding)
        if count:
            call.refuse(Unavailable(f"{count} calls of instance '{self._name}' are outstanding, which is the maximum"))
            return call.pending
        parameters = request.parameters()
        parent = record_of(number_of(request.trace()))
        asked = InferenceRequest(
            model_name=name,
            model_version=None if version < 0 else version,
            id=request.request_id(),
            inputs=tuple([as_tensor(*tensor.storage_of(each)) for each in request.inputs()]),
            requested_outputs=tuple(request.requested_output_names()),
            parameters={} if parameters == "{}" else translation.parameters_of(parameters),
            sequence=translation.sequence_of(request.correlation_id(), request.flags()),
            timeout_us=request.timeout(),
            record=None if parent is None else parent.child("call", name),
        )
        call.call = self._server.infer(asked, call, streams=streams, waiting=self._batch_of_thread())
        return call.pending

    def prepare_waiting_elsewhere(self) -> None:
        """As `CallPort.prepare_waiting_elsewhere`: nothing is to be done."""

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """As `CallPort.load_model`."""
        try:
            request = translation.load_request(name, config, dict(files))
        except InvalidArgument as error:
            raise TritonModelException(translation.failed_request(self._name, error)) from None
        self._ask(lambda done: self._server.load_model(request, done))

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        """As `CallPort.unload_model`."""
        self._ask(lambda done: self._server.unload_model(name, done, unload_dependents=unload_dependents))

    def is_model_ready(self, name: str, version: int | None) -> bool:
        """As `CallPort.is_model_ready`."""
        answered = threading.Event()
        said: list[bool] = []

        def answer(ready: bool) -> None:
            said.append(ready)
            answered.set()

        self._server.is_model_ready(name, version, answer)
        answered.wait()
        return said[0]

    def _ask(self, order: Callable[[Callable[[TpyError | None], None]], None]) -> None:
        answered = threading.Event()
        failures: list[TpyError] = []

        def done(error: TpyError | None) -> None:
            if error is not None:
                failures.append(error)
            answered.set()

        order(done)
        answered.wait()
        if failures:
            raise TritonModelException(translation.failed_request(self._name, failures[0]))

    def _batch_of_thread(self) -> WaitingBatch | None:
        if not self._requests or threading.get_ident() != self._thread:
            return None
        if self._waiting is None:
            self._waiting = WaitingBatch(self._requests)
        return self._waiting


def as_models_tensor(name: str, given: Tensor) -> tensor.Tensor:
    """A tensor of the server as model code sees it: a read-only view."""
    array = translation.storage(given)
    # A new view, so that forbidding writes does not reach the server's own array.
    view = array.view() if array.flags.c_contiguous else array.copy()
    view.flags.writeable = False
    return tensor.wrap(name, given.datatype.number, view)


def as_tensor(name: str, number: int, array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of model code for the server. The model may write into its array again; what nobody can write to needs no copy."""
    if number == datatypes.BYTES:
        array = datatypes.as_bytes(array)
    elif array.flags.writeable:
        array = array.copy()
    return translation.tensor(name, number, array)


def _failed(error: TpyError, text: str) -> ModelsResponse:
    return received_response([], TritonError(text, ErrorCode(translation.code_of(error))), "{}")
