"""generate and generate_stream: one request in plain JSON, its responses as one JSON object or as server-sent events.

The handler's task waits for the responses. Those of a stream go out as they come; while the client does not take them the request
is paused, and with it the model. When the client is gone the task is cancelled, and with it the request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import msgspec
import trio

from tpy import limits
from tpy.errors import InvalidArgument, TpyError
from tpy.frontends.access import submit
from tpy.frontends.http import codec
from tpy.frontends.http.codec.generate import encode_generate, parse_generate
from tpy.frontends.http.infer import InferEndpoint, open_record, parse_version, unexpected_error_reply
from tpy.frontends.http.message import HttpReply, HttpRequest, in_pieces, json_reply, query_number
from tpy.frontends.threads import forget_trace, run_in_thread
from tpy.messages import InferenceRequest, InferenceResponse, RequestRecord, held_bytes
from tpy.services import RequestHandle, ResolvedModel, held

if TYPE_CHECKING:
    from tpy.frontends.access.gate import Caller

_Encoded = TypeVar("_Encoded")

Parts = Sequence[bytes | memoryview]

EVENT_STREAM_TYPE = "text/event-stream; charset=utf-8"

_NOT_ONE = TpyError(
    "generate expects model to produce exactly 1 response, "
    "use generate stream for model that generates various number of responses"
)


class StreamBody(Protocol):
    """The pieces of a body: an async iterator. `close` cancels what has not ended; it may be called at any time, and again."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def __anext__(self) -> bytes: ...

    def close(self) -> None: ...


class StreamReply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer whose body comes in pieces. Whoever takes it iterates `body` and closes it."""

    status: int = 200
    content_type: str = EVENT_STREAM_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    body: StreamBody


class Arrival:
    """A place where one task waits for responses, to one request or to several."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Something has come."""
        self._event.set()

    async def wait(self) -> None:
        """Wait for what comes next. Whatever may have come before has to be taken first."""
        self._event = trio.Event()
        await self._event.wait()


class GenerateResponses:
    """The sink of one request, and where its handler waits. `record` is that of the request, if it is observed. With an `arrival`
    the handler waits there for this request and others, and calls `take`."""

    def __init__(self, *, decoupled: bool, record: RequestRecord | None = None, arrival: Arrival | None = None) -> None:
        self.ended = False
        self._record = record
        self._decoupled = decoupled
        self._handle: RequestHandle | None = None
        self._waiting: list[InferenceResponse] = []
        self._bytes = 0
        self._arrival = arrival or Arrival()

    def begin(self, submit: Callable[[GenerateResponses], RequestHandle]) -> None:
        """Submit the request. Raises what `submit` raises."""
        handle = submit(self)
        if not self.ended:
            self._handle = handle

    def cancel(self) -> None:
        """Nobody waits any more. Safe at any time."""
        if self._handle is not None and not self.ended:
            self.ended = True
            self._handle.cancel()
            self._handle = None

    def deliver(self, response: InferenceResponse) -> None:
        """Take one (ResponseSink)."""
        if self.ended:
            return
        if response.final:
            self.ended = True
            # It refers to us and to the request's tensors, which would stay until the garbage collector finds the circle.
            self._handle = None
            if self._record is not None and response.error is not None:
                self._record.fail(response.error)
        # A final flag alone ends the answer; it is not a part of it.
        if not (self._decoupled and response.final and response.error is None and not response.outputs):
            self._waiting.append(response)
            self._bytes += held_bytes(response.outputs, limits.HTTP_STREAM_BYTES_MAX)
        full = len(self._waiting) >= limits.HTTP_STREAM_RESPONSES_MAX or self._bytes >= limits.HTTP_STREAM_BYTES_MAX
        if full and self._handle is not None:
            self._handle.pause()
        self._arrival.set()

    async def wait(self) -> list[InferenceResponse]:
        """The responses that have come since; [] when there will be none any more."""
        while (responses := self.take()) is None:
            await self._arrival.wait()
        return responses

    def take(self) -> list[InferenceResponse] | None:
        """As `wait`, but None when nothing has come."""
        if not self._waiting and not self.ended:
            return None
        responses, self._waiting, self._bytes = self._waiting, [], 0
        if self._handle is not None and not self.ended:
            self._handle.resume()
        return responses


async def answer_of(caller: Caller | None, model: ResolvedModel, request: InferenceRequest, now_ns: int) -> InferenceResponse:
    """The model's answer, which may be an error. Raises what it refuses the request with. Cancelling this cancels the request."""
    responses = GenerateResponses(decoupled=False, record=request.record)
    responses.begin(lambda sink: submit(caller, model, request, sink, now_ns))
    try:
        [response] = await responses.wait()
    finally:
        responses.cancel()
    return response


class EventBody:
    """The events of one request as the pieces of a body: an async iterator. `close` cancels what has not ended."""

    def __init__(
        self, first: list[Parts], responses: GenerateResponses, encode: Callable[[InferenceResponse], Awaitable[Parts]]
    ) -> None:
        self._first = first
        self._pieces: Iterator[bytes] = iter(())
        self._responses = responses
        self._encode = encode

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        events, self._first = self._first, []
        if not events:
            events = [await self._encode(response) for response in await self._responses.wait()]
        self._pieces = in_pieces([part for event in events for part in (b"data: ", *event, b"\n\n")])
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration

    def close(self) -> None:
        """Nobody reads any more."""
        self._responses.cancel()


class GenerateApi:
    """The handlers of both routes."""

    def __init__(self, endpoint: InferEndpoint) -> None:
        self._endpoint = endpoint

    async def generate(self, request: HttpRequest, *, model: str, version: str | None = None) -> HttpReply:
        """One response as one JSON object. Raises TpyError."""
        rows = _asks_for_rows(request)
        responses = await self._begin(request, model, version)
        try:
            found: list[InferenceResponse] = []
            while len(found) < 2 and (lot := await responses.wait()):
                found += lot
        finally:
            responses.cancel()
        if len(found) != 1:
            return json_reply(codec.encode_error(_NOT_ONE))
        parts = await self._in_thread_if_large(partial(encode_generate, rows=rows), found[0])
        return HttpReply(parts=parts, content_length=sum(map(len, parts)))

    async def generate_stream(self, request: HttpRequest, *, model: str, version: str | None = None) -> StreamReply:
        """Every response as an event. The first one decides the status. Raises TpyError."""
        path, rows = request.path, _asks_for_rows(request)
        responses = await self._begin(request, model, version)
        try:
            first = await responses.wait()
            if first and first[0].refused and first[0].error is not None:
                raise first[0].error
            events = [await self._in_thread_if_large(partial(_event, path, rows), response) for response in first]
        except BaseException:
            responses.cancel()
            raise
        return StreamReply(
            status=events[0].status if events else 200,
            body=EventBody([event.data for event in events], responses, self._event_encoder(path, rows)),
        )

    def _event_encoder(self, path: str, rows: bool) -> Callable[[InferenceResponse], Awaitable[Parts]]:
        async def encode(response: InferenceResponse) -> Parts:
            return (await self._in_thread_if_large(partial(_event, path, rows), response)).data

        return encode

    async def _in_thread_if_large(self, encode: Callable[[InferenceResponse], _Encoded], response: InferenceResponse) -> _Encoded:
        """Encode a response, in a thread when that could hold up the loop. Raises what `encode` raises."""
        if codec.is_large(response.outputs):
            return await run_in_thread(encode, response, limiter=self._endpoint.threads)
        return encode(response)

    async def _begin(self, request: HttpRequest, model: str, version: str | None) -> GenerateResponses:
        endpoint = self._endpoint
        request.record = open_record(endpoint.services.observers, request, "generate", model, endpoint.clock.now_ns())
        encoding = request.fields.get(b"content-encoding", b"identity")
        if encoding not in (b"identity", b""):
            raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
        resolved = endpoint.services.inference.resolve(model, parse_version(version))
        received_ns = endpoint.clock.now_ns()
        forwarded = endpoint.policy.forwarded(request.headers)

        def parse() -> InferenceRequest:
            parsed = parse_generate(
                request.body,
                description=resolved.description,
                version=parse_version(version),
                received_ns=received_ns,
                forwarded=forwarded,
            )
            return parsed if request.record is None else msgspec.structs.replace(parsed, record=request.record)

        def begun(parsed: InferenceRequest) -> GenerateResponses:
            request.body = b""
            request.submitted = True
            responses = GenerateResponses(decoupled=resolved.description.decoupled, record=request.record)
            responses.begin(lambda sink: submit(request.caller, resolved, parsed, sink, endpoint.clock.now_ns()))
            return responses

        if codec.is_heavy(request.body):
            with held(resolved):
                return begun(await run_in_thread(parse, limiter=endpoint.threads))
        return begun(parse())


def _asks_for_rows(request: HttpRequest) -> bool:
    """Returns True if outputs are to be nested as their shapes say. Raises InvalidArgument."""
    return query_number(request.target, "rows") != 0


class _Event(NamedTuple):
    """The JSON of one event, and the status that it has if it is the first."""

    status: int
    data: Sequence[bytes | memoryview]


def _event(path: str, rows: bool, response: InferenceResponse) -> _Event:
    """The response, or its error, or why it cannot be written. Raises nothing."""
    try:
        return _Event(200, encode_generate(response, rows=rows))
    except TpyError as error:
        forget_trace(error)
        return _Event(codec.HTTP_STATUS[error.code], [codec.encode_error(error)])
    except Exception:
        reply = unexpected_error_reply(path)
        return _Event(reply.status, reply.parts)
