"""A model of a server: requests to it, their responses, the iterators that they come by, and what it says of itself."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tpy import messages
from tpy.clock import SystemClock
from tpy.embedded.calls import AsyncInbox, EmbeddedCall
from tpy.embedded.engine_thread import EngineThread
from tpy.embedded.options import check_options
from tpy.errors import Cancelled
from tpy.messages import HOST, SequencePosition
from tpy.tritonserver.enums import SEQUENCE_END, SEQUENCE_START, TO_MESSAGES, ModelBatchFlag, ModelTxnPropertyFlag
from tpy.tritonserver.errors import InternalError, InvalidArgumentError, TritonError, as_triton, from_tpy
from tpy.tritonserver.tensor import DeviceOrMemoryType, Tensor, array_of, of_array, parse_device, to_tensor

ResponseQueue = queue.SimpleQueue["InferenceResponse"] | asyncio.Queue["InferenceResponse"]


@dataclass
class InferenceRequest:
    """A request to `model`. `inputs` are tensors, or what one can be made of; `flags` say where in its sequence it is; `timeout`
    is in microseconds. `response_queue` gets the responses as they come, beside the iterator: a `queue.SimpleQueue` for `infer`,
    an `asyncio.Queue` for `async_infer`."""

    model: Model
    request_id: str | None = None
    flags: int = 0
    correlation_id: int | str | None = None
    priority: int = 0
    timeout: int = 0
    inputs: dict[str, Tensor | Any] = field(default_factory=dict)
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    output_memory_type: DeviceOrMemoryType | None = None
    response_queue: ResponseQueue | None = None

    def to_message(self) -> messages.InferenceRequest:
        """The request as the server takes it. Raises TritonError for what none can be made of."""
        with as_triton():
            check_options(
                {
                    "id": self.request_id or "",
                    "parameters": self.parameters,
                    "sequence_id": self.correlation_id or 0,
                    "priority": self.priority,
                    "timeout_us": self.timeout,
                }
            )
        if self.output_memory_type is not None:
            parse_device(self.output_memory_type)
        if not isinstance(self.flags, int) or self.flags & ~(SEQUENCE_START | SEQUENCE_END):
            raise InvalidArgumentError(
                f"flags: expected a combination of {SEQUENCE_START} and {SEQUENCE_END}, got {self.flags!r}"
            )
        return messages.InferenceRequest(
            model_name=self.model.name,
            model_version=None if self.model.version < 0 else self.model.version,
            id=self.request_id or "",
            inputs=tuple([_input(name, value) for name, value in self.inputs.items()]),
            parameters=dict(self.parameters),
            sequence=SequencePosition(
                correlation_id=self.correlation_id,
                start=bool(self.flags & SEQUENCE_START),
                end=bool(self.flags & SEQUENCE_END),
            )
            if self.correlation_id
            else None,
            priority=self.priority,
            timeout_us=self.timeout,
            received_ns=SystemClock().now_ns(),
        )


def _input(name: str, value: Tensor | Any) -> messages.Tensor:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"expected inputs by their names, got {name!r}")
    tensor = to_tensor(value)
    return messages.Tensor(name, TO_MESSAGES[tensor.data_type], array_of(tensor))


@dataclass
class InferenceResponse:
    """A response. With `error` it has no outputs; `final` says that no further one comes, and may be alone."""

    model: Model
    request_id: str | None = None
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: TritonError | None = None
    classification_label: str | None = None
    final: bool = False


def _response(request: InferenceRequest, message: messages.InferenceResponse) -> InferenceResponse:
    """The response that a message is; one that cannot be made, or is in memory of another kind, has an error."""
    found = InferenceResponse(
        request.model.answered_by(message.model_version),
        message.id or request.request_id,
        dict(message.parameters),
        final=message.final,
    )
    try:
        if message.error is not None:
            raise from_tpy(message.error)
        for tensor in message.outputs:
            if tensor.place is not HOST:
                raise InternalError(f"output '{tensor.name}' is not in host memory")
            found.outputs[tensor.name] = of_array(tensor.array)
        if request.output_memory_type is not None:
            found.outputs = {name: tensor.to_device(request.output_memory_type) for name, tensor in found.outputs.items()}
    except TritonError as error:
        found.outputs = {}
        error.args += (found,)
        found.error = error
    return found


class _Responses:
    """The responses of one request."""

    def __init__(self, request: InferenceRequest, put: Callable[[Any], None], *, raise_on_error: bool) -> None:
        self._request = request
        self._raise_on_error = raise_on_error
        self._put = put
        self._made = request.response_queue is not None
        self._call = EmbeddedCall(
            request.model.engine, request.to_message(), self._put_both if self._made else put, paced=not self._made
        )

    def _begin(self) -> None:
        with as_triton():
            self._call.begin_or_raise()

    def _put_both(self, message: messages.InferenceResponse) -> None:
        response = _response(self._request, message)
        self._put(response)
        if self._request.response_queue is not None:
            self._give(self._request.response_queue, response)

    def _give(self, user: ResponseQueue, response: InferenceResponse) -> None:
        user.put_nowait(response)

    def _opened(self, found: messages.InferenceResponse | InferenceResponse) -> InferenceResponse:
        if isinstance(found, InferenceResponse):
            self._call.is_over = found.final
        else:
            with as_triton():
                self._call.take(found)
            found = _response(self._request, found)
        if found.error is not None and self._raise_on_error:
            raise found.error
        return found

    def cancel(self) -> None:
        """Cancel the request: unless it has ended, the next response is the last one, and says so."""
        self._call.cancel(Cancelled("the request was cancelled"))


class ResponseIterator(_Responses):
    """The responses of `Model.infer`."""

    def __init__(self, request: InferenceRequest, *, raise_on_error: bool) -> None:
        if isinstance(request.response_queue, asyncio.Queue):
            raise InvalidArgumentError("response_queue: expected a queue.SimpleQueue, got an asyncio.Queue; use async_infer")
        self._inbox: queue.SimpleQueue[messages.InferenceResponse | InferenceResponse] = queue.SimpleQueue()
        super().__init__(request, self._inbox.put, raise_on_error=raise_on_error)
        self._begin()

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        if self._call.is_over:
            raise StopIteration
        return self._opened(self._inbox.get())


class AsyncResponseIterator(_Responses):
    """The responses of `Model.async_infer`, for a task of asyncio."""

    def __init__(self, request: InferenceRequest, *, raise_on_error: bool) -> None:
        if request.response_queue is not None and not isinstance(request.response_queue, asyncio.Queue):
            raise InvalidArgumentError("response_queue: expected an asyncio.Queue; use infer for a queue.SimpleQueue")
        self._inbox = AsyncInbox()
        self._loop = asyncio.get_running_loop()
        super().__init__(request, self._inbox.put, raise_on_error=raise_on_error)
        self._begin()

    def _give(self, user: ResponseQueue, response: InferenceResponse) -> None:
        try:
            self._loop.call_soon_threadsafe(user.put_nowait, response)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def __aiter__(self) -> AsyncResponseIterator:
        return self

    async def __anext__(self) -> InferenceResponse:
        if self._call.is_over:
            raise StopAsyncIteration
        return self._opened(await self._inbox.get())


class ModelHost(Protocol):
    """The server that a model is of."""

    @property
    def engine(self) -> EngineThread: ...

    @property
    def is_started(self) -> bool: ...

    def ask(self, what: str, **named: Any) -> Any: ...


class Model:
    """A model of a server, by name; version -1 is its newest. Given out by the server; it need not be there before it is used."""

    def __init__(
        self, server: ModelHost, name: str, version: int = -1, state: str | None = None, reason: str | None = None
    ) -> None:
        self._server = server
        self.engine: EngineThread = server.engine
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason

    def __repr__(self) -> str:
        return str({"name": self.name, "version": self.version, "state": self.state})

    def answered_by(self, version: int) -> Model:
        """The version that has answered."""
        return Model(self._server, self.name, version or self.version) if self._server.is_started else self

    def create_request(self, **kwargs: Any) -> InferenceRequest:
        """A request to this model; `kwargs` are its fields."""
        kwargs.pop("model", None)
        return InferenceRequest(model=self, **kwargs)

    def infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **kwargs: Any
    ) -> ResponseIterator:
        """Send a request, or one of these fields; returns its responses. Raises what it is refused with."""
        return ResponseIterator(self._request(inference_request, kwargs), raise_on_error=raise_on_error)

    def async_infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **kwargs: Any
    ) -> AsyncResponseIterator:
        """The same for a task of asyncio."""
        return AsyncResponseIterator(self._request(inference_request, kwargs), raise_on_error=raise_on_error)

    def _request(self, given: InferenceRequest | None, fields: dict[str, Any]) -> InferenceRequest:
        if given is None:
            return InferenceRequest(model=self, **fields)
        if not isinstance(given, InferenceRequest):
            raise InvalidArgumentError(f"expected an InferenceRequest, got {type(given).__name__}")
        return given

    def metadata(self) -> dict[str, Any]:
        """The inputs and outputs, as the protocol has them."""
        found: dict[str, Any] = self._server.ask("model_metadata", **self._named)
        return found

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """The configuration, auto-completed."""
        if config_version != 1:
            raise InvalidArgumentError(f"model configuration version {config_version} is not supported, only 1 is")
        found: dict[str, Any] = self._server.ask("model_config", **self._named)
        return found

    def statistics(self) -> dict[str, Any]:
        """The statistics, as the protocol has them."""
        found: dict[str, Any] = self._server.ask("statistics", **self._named)
        return found

    def ready(self) -> bool:
        """Returns True if it would serve a request."""
        with as_triton():
            return self.engine.run_async(
                lambda: self.engine.services.repository.model_ready(self.name, None if self.version < 0 else self.version)
            )

    def batch_properties(self) -> ModelBatchFlag:
        """Returns FIRST_DIM if it takes batches."""
        return ModelBatchFlag.FIRST_DIM if self.config()["max_batch_size"] > 0 else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Returns DECOUPLED if it sends any number of responses."""
        decoupled = self.config().get("model_transaction_policy", {}).get("decoupled", False)
        return ModelTxnPropertyFlag.DECOUPLED if decoupled else ModelTxnPropertyFlag.ONE_TO_ONE

    @property
    def _named(self) -> dict[str, Any]:
        return {"model": self.name, "version": None if self.version < 0 else str(self.version)}
