"""Model: requests of a program to one model, and their responses."""

from __future__ import annotations

import queue
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypedDict, Unpack

import numpy as np

from tpy.config import ModelConfig
from tpy.embedded.calls import AsyncInbox, EmbeddedCall
from tpy.embedded.engine_thread import EngineThread
from tpy.embedded.options import check_options
from tpy.embedded.tensors import to_tensors
from tpy.errors import Internal
from tpy.messages import InferenceRequest, InferenceResponse, ModelDescription, ParameterValue, SequencePosition
from tpy.units import NS_PER_S


class RequestOptions(TypedDict, total=False):
    """The options of a request. `outputs`: the names of the wanted outputs (default: all); `id`; `parameters`;
    `sequence_id` (a number or text), `sequence_start`, `sequence_end`; `priority` (0: the model's default); `timeout_us` of its
    queue; `timeout_s`: a request without an answer by then ends with Unavailable."""

    outputs: Sequence[str]
    id: str
    parameters: Mapping[str, ParameterValue]
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    priority: int
    timeout_us: int
    timeout_s: float


class Response(Mapping[str, np.ndarray[Any, Any]]):
    """The outputs of one response by name, in the order of the model's configuration. Arrays may be read-only, and share the
    memory that the model wrote them to; strings are arrays of `bytes`. `id` and `parameters` are those of the response."""

    __slots__ = ("_arrays", "id", "model_name", "model_version", "parameters")

    def __init__(self, response: InferenceResponse) -> None:
        self.model_name = response.model_name
        self.model_version = response.model_version
        self.id = response.id
        self.parameters = response.parameters
        self._arrays = {tensor.name: tensor.array for tensor in response.outputs}

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        outputs = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self._arrays.items())
        return f"<Response of {self.model_name} version {self.model_version}: {outputs}>"


class Model:
    """A model of a server, by its name; its newest ready version unless `version` names one. It need not be loaded yet. Every
    method may be called from any thread. Raises TpyError, with the texts that clients get."""

    def __init__(self, engine: EngineThread, now_ns: Callable[[], int], name: str, version: int | None) -> None:
        self.name = name
        self.version = version
        self._engine = engine
        self._now_ns = now_ns

    def __repr__(self) -> str:
        return f"<Model {self.name}{'' if self.version is None else f' version {self.version}'}>"

    def description(self) -> ModelDescription:
        """The inputs and outputs."""
        return self._engine.run(lambda: self._engine.services.inference.resolve(self.name, self.version).description)

    def config(self) -> ModelConfig:
        """The normalised and auto-completed configuration."""
        return self._engine.run(lambda: self._engine.services.inference.config(self.name, self.version))

    def ready(self) -> bool:
        """Returns True if it would serve a request."""
        return self._engine.run_async(lambda: self._engine.services.repository.model_ready(self.name, self.version))

    def infer(self, inputs: Mapping[str, object], **options: Unpack[RequestOptions]) -> Response:
        """Returns the only response. `inputs` are arrays, anything that offers DLPack, or (lists of) numbers and strings; arrays
        are not copied, and must not be written to before the response. For models that send any number of responses:
        `stream`."""
        found = None
        request = self._request(inputs, options)
        call, get = self._call(request)
        try:
            call.begin()
            while not call.is_over:
                response = call.opened(get())
                if response is not None:
                    found = _only(Response(response), found)
        finally:
            call.cancel()
        return self._required(found)

    async def infer_async(self, inputs: Mapping[str, object], **options: Unpack[RequestOptions]) -> Response:
        """The same for a task on asyncio or Trio; when the task is cancelled, so is the request. For `inputs` other than arrays
        the model's data types are asked for, which blocks for a moment."""
        found = None
        async with aclosing(self.stream_async(inputs, **options)) as responses:
            async for response in responses:
                found = _only(response, found)
        return self._required(found)

    def stream(self, inputs: Mapping[str, object], **options: Unpack[RequestOptions]) -> Iterator[Response]:
        """Yields the responses of the request, as many as the model sends. A request whose responses are not read to the end is
        cancelled when the iterator is closed or dropped; a slow reader slows the model down."""
        request = self._request(inputs, options)
        call, get = self._call(request)
        try:
            call.begin()
            while not call.is_over:
                response = call.opened(get())
                if response is not None:
                    yield Response(response)
        finally:
            call.cancel()

    async def stream_async(self, inputs: Mapping[str, object], **options: Unpack[RequestOptions]) -> AsyncGenerator[Response]:
        """The same for a task on asyncio or Trio; close one that is not read to its end (`contextlib.aclosing`)."""
        inbox = AsyncInbox()
        call = EmbeddedCall(self._engine, self._request(inputs, options), inbox.put)
        # A loop that is closed without closing its generators drops them as they are.
        lease = _Lease()
        dropped = weakref.finalize(lease, call.drop)
        dropped.atexit = False
        try:
            call.begin()
            while not call.is_over:
                response = call.opened(await inbox.get())
                if response is not None:
                    yield Response(response)
        finally:
            dropped.detach()
            call.cancel()

    def _call(self, request: InferenceRequest) -> tuple[EmbeddedCall, Callable[[], InferenceResponse]]:
        """A call of a thread, to be begun, and what waits for its next response."""
        self._engine.require_other_thread()
        responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
        return EmbeddedCall(self._engine, request, responses.put), responses.get

    def _required(self, response: Response | None) -> Response:
        if response is None:
            raise Internal(f"model '{self.name}' sent no response")
        return response

    def _request(self, inputs: Mapping[str, object], options: RequestOptions) -> InferenceRequest:
        if not options:
            return InferenceRequest(
                model_name=self.name,
                model_version=self.version,
                inputs=to_tensors(inputs, self.description),
                received_ns=self._now_ns(),
            )
        check_options(options)
        sequence_id = options.get("sequence_id", 0)
        now_ns = self._now_ns()
        timeout_s = options.get("timeout_s")
        return InferenceRequest(
            model_name=self.name,
            model_version=self.version,
            id=options.get("id", ""),
            inputs=to_tensors(inputs, self.description),
            requested_outputs=tuple(options.get("outputs", ())),
            parameters=options.get("parameters", {}),
            sequence=SequencePosition(
                correlation_id=sequence_id,
                start=options.get("sequence_start", False),
                end=options.get("sequence_end", False),
            )
            if sequence_id
            else None,
            priority=options.get("priority", 0),
            timeout_us=options.get("timeout_us", 0),
            deadline_ns=None if timeout_s is None else now_ns + int(timeout_s * NS_PER_S),
            received_ns=now_ns,
        )


class _Lease:
    """Lives as long as the frame that holds it."""


def _only(response: Response, before: Response | None) -> Response:
    if before is not None:
        raise Internal(f"model '{response.model_name}' sends any number of responses: use stream")
    return response
