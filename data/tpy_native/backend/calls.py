"""Calls of plug-ins to the server around their model: other models, and the repository (TRITONSERVER_Server*)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final

from tpy.backend import ServerCall, ServerCalls
from tpy.errors import Cancelled, Internal, InvalidArgument, TpyError, Unsupported
from tpy.limits import NATIVE_REPOSITORY_CALL_S_MAX
from tpy.messages import InferenceRequest, InferenceResponse, LoadRequest, ParameterValue, Tensor
from tpy_data.backends.python.protocol import translation

Answer = Callable[..., None]
"""`tpy_call_answer` of the C library."""

_ONE_TO_ONE: Final = 1
_FILE: Final = "file:"


class PluginCalls:
    """The server as one model's plug-in calls it. Any thread. Responses are given to the plug-in in a thread of this object's, as
    it may do in its callbacks what it likes."""

    def __init__(self, server: ServerCalls | None, name: str, answer: Answer) -> None:
        self._server = server
        self._name = name
        self._answer = answer
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._todo: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()

    def infer(
        self,
        handle: int,
        model: str,
        version: int,
        request_id: str,
        correlation_id: int | str,
        flags: int,
        priority: int,
        timeout_us: int,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        parameters: Mapping[str, ParameterValue],
    ) -> PluginCall:
        """TRITONSERVER_ServerInferAsync. Raises Unsupported where there is no server around the model."""
        server = self._required()
        request = InferenceRequest(
            model_name=model,
            model_version=version if version > 0 else None,
            id=request_id,
            inputs=tuple(inputs),
            requested_outputs=tuple(outputs),
            parameters=parameters,
            sequence=translation.sequence_of(correlation_id, flags),
            priority=priority,
            timeout_us=timeout_us,
        )
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"calls of {self._name}", daemon=True)
                self._thread.start()
        call = PluginCall(handle, model, version, request_id, self._todo.put)
        call.attach(server.infer(request, call, streams=True))
        return call

    def is_model_ready(self, model: str, version: int) -> int:
        """TRITONSERVER_ServerModelIsReady."""
        done: Future[bool] = Future()
        self._required().is_model_ready(model, version if version > 0 else None, done.set_result)
        return int(_wait(done))

    def transaction_flags(self, model: str, version: int) -> int:
        """TRITONSERVER_ServerModelTransactionProperties: every call takes several responses here."""
        self._required()
        return _ONE_TO_ONE

    def load_model(self, model: str, parameters: Mapping[str, Any]) -> None:
        """TRITONSERVER_ServerLoadModel, with and without parameters. Raises what the load does."""
        config, files = None, {}
        for key, value in parameters.items():
            if key == "config":
                config = value
            elif key.startswith(_FILE) and isinstance(value, bytes):
                files[key.removeprefix(_FILE)] = value
            else:
                raise InvalidArgument(f"unrecognized parameter '{key}' to load model '{model}'")
        self._repository(
            lambda done: self._required().load_model(LoadRequest(model_name=model, config_json=config, files=files), done)
        )

    def unload_model(self, model: str, dependents: bool) -> None:
        """TRITONSERVER_ServerUnloadModel, with dependents and without. Raises what the unload does."""
        self._repository(lambda done: self._required().unload_model(model, done, unload_dependents=dependents))

    def close(self) -> None:
        """The plug-in is called no more."""
        with self._lock:
            if self._thread is not None:
                self._todo.put(None)

    def _required(self) -> ServerCalls:
        if self._server is None:
            raise Unsupported(f"'{self._name}' runs where it cannot call the server")
        return self._server

    def _repository(self, begin: Callable[[Callable[[TpyError | None], None]], None]) -> None:
        done: Future[TpyError | None] = Future()
        begin(done.set_result)
        error = _wait(done)
        if error is not None:
            raise error

    def _work(self) -> None:
        while (arguments := self._todo.get()) is not None:
            self._answer(*arguments)


class PluginCall:
    """One call under way (a `CallSink`). Exactly one final response reaches the plug-in, whatever happens."""

    def __init__(self, handle: int, model: str, version: int, request_id: str, put: Callable[[tuple[Any, ...]], None]) -> None:
        self._handle = handle
        self._model = model
        self._version = version
        self._id = request_id
        self._put = put
        self._lock = threading.Lock()
        self._call: ServerCall | None = None
        self._is_over = False

    def attach(self, call: ServerCall) -> None:
        """The call was accepted; it may be over already."""
        self._call = call

    def deliver(self, response: InferenceResponse) -> None:
        """As `CallSink.deliver`."""
        if response.error is not None:
            self._end(response.error)
            return
        with self._lock:
            if self._is_over:
                return
            self._is_over = response.final
        tensors = list(response.outputs) if response.outputs or not response.final else None
        self._give(response.model_name, response.model_version, tensors, dict(response.parameters), None, response.final)
        if self._call is not None and not response.final:
            self._call.taken(1)

    def refuse(self, error: TpyError) -> None:
        """As `CallSink.refuse`."""
        self._end(error)

    def cancel(self) -> None:
        """TRITONSERVER_InferenceRequestCancel."""
        if self._call is not None:
            self._call.cancel()
        self._end(Cancelled("the call was cancelled"))

    def _end(self, error: TpyError) -> None:
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        self._give(self._model, self._version, None, {}, error, True)

    def _give(
        self, model: str, version: int, tensors: list[Tensor] | None, parameters: object, error: TpyError | None, final: bool
    ) -> None:
        code = 0 if error is None else translation.code_of(error)
        text = None if error is None else error.message.encode()
        self._put((self._handle, model.encode(), version, self._id.encode(), tensors, parameters, code, text, int(final)))


def _wait(done: Future[Any]) -> Any:
    with contextlib.suppress(TimeoutError):
        return done.result(NATIVE_REPOSITORY_CALL_S_MAX)
    raise Internal(f"the server did not answer within {NATIVE_REPOSITORY_CALL_S_MAX:g} s")
