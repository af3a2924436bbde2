"""The gRPC API as methods of a deployment, answered by the server on the same loop.

Ray's proxies get the methods of `inference.GRPCInferenceService` and `grpc.health.v1.Health` from the `grpc_servicer_functions`
here. Messages pass through them as bytes, in both directions; the handlers are those of the server's own port.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, NamedTuple

import grpc
import trio
from grpclib.const import Status

from tpy._proto import POOL
from tpy.embedded.engine_thread import EngineThread
from tpy.errors import TpyError
from tpy.frontends.grpc.calls import GRPC_STATUS
from tpy.frontends.grpc.transport import Handlers, Metadata, Parts, StreamHandler, UnaryHandler
from tpy.limits.ray import RAY_STREAM_MESSAGES_MAX
from tpy.ray.crossing import Crossing

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

_CODES: dict[int, Any] = {code.value[0]: code for code in grpc.StatusCode}


class Reply:
    """A response message as Serve wants it."""

    __slots__ = ("_content",)

    def __init__(self, content: bytes) -> None:
        self._content = content

    def SerializeToString(self) -> bytes:  # noqa: N802  # protobuf's name
        """The bytes of the message."""
        return self._content


class CallFailed(Exception):
    """Ends a stream whose status is in its context."""


def methods() -> dict[str, tuple[str, bool]]:
    """The path of each method by the name that Serve calls it by, and whether messages go and come one by one."""
    found = {}
    for service in (INFERENCE, HEALTH):
        for method in POOL.FindServiceByName(service).methods:
            found[method.name] = (f"/{service}/{method.name}", method.server_streaming)
    del found["Watch"]  # one request, many answers, without an end: Ray's proxies have their own health checks
    return found


def add_GRPCInferenceServiceServicer_to_server(servicer: object, server: Any) -> None:  # noqa: N802  # gRPC's form of such names
    """Triton's service, for the `grpc_servicer_functions` of Serve's `grpc_options`."""
    _add(INFERENCE, servicer, server)


def add_HealthServicer_to_server(servicer: object, server: Any) -> None:  # noqa: N802
    """gRPC's health service, of the application's models, for `grpc_servicer_functions`."""
    _add(HEALTH, servicer, server)


def _add(service: str, servicer: object, server: Any) -> None:
    handlers = {}
    for name, (path, is_stream) in methods().items():
        if path.startswith(f"/{service}/"):
            new = grpc.stream_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
            handlers[name] = new(getattr(servicer, name))  # without a deserialiser: Serve hands the bytes on
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))


class _End(NamedTuple):
    """The end of a call: its status, and metadata behind it."""

    status: Status
    message: str
    trailing: Metadata
    content: bytes = b""


class _Call:
    """The base of unary calls and streams. Implements CallContext."""

    def __init__(self, path: str, context: Any) -> None:
        self.path = path
        self.metadata: Metadata = [(key, value) for key, value in context.invocation_metadata()]
        self.load_format = str(dict(self.metadata).get("endpoint-load-metrics-format", ""))
        self.deadline_ns: int | None = None  # Serve does not hand it on: a call ends with its client's cancellation
        self.peer = _peer(context.peer())
        self._on_cancel: Callable[[], None] | None = None
        self.is_cancelled = False
        self.has_ended = False

    def certificate(self) -> None:
        """See CallContext. The proxies of Serve take none."""

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """See CallContext."""
        if self.is_cancelled:
            callback()
        elif not self.has_ended:
            self._on_cancel = callback

    def cancel(self) -> None:
        """The client has gone."""
        if not self.is_cancelled and not self.has_ended:
            self.is_cancelled = True
            callback, self._on_cancel = self._on_cancel, None
            if callback is not None:
                callback()


class _UnaryCall(_Call):
    """One message each way. Implements UnaryCall."""

    def __init__(self, path: str, context: Any) -> None:
        super().__init__(path, context)
        self._crossing = Crossing()
        self.end = self._crossing.new_future()

    def fail(self, status: Status, message: str, trailing_metadata: Metadata = ()) -> None:
        """See CallContext."""
        self._end(_End(status, message, trailing_metadata))

    def reply(self, parts: Parts, trailing_metadata: Metadata = ()) -> None:
        """See UnaryCall."""
        self._end(_End(Status.OK, "", trailing_metadata, b"".join(parts)))

    def _end(self, end: _End) -> None:
        self.has_ended = True
        self._on_cancel = None
        if not self.is_cancelled:
            self._crossing.resolve(self.end, end)


class _StreamCall(_Call):
    """Messages that come and go one by one. Implements StreamCall."""

    def __init__(self, path: str, context: Any) -> None:
        super().__init__(path, context)
        self._crossing = Crossing()
        self.answers: asyncio.Queue[bytes | _End] = asyncio.Queue()
        self.room = asyncio.Semaphore(RAY_STREAM_MESSAGES_MAX)
        self._arrived: deque[bytes | None] = deque()
        self._arrival = trio.lowlevel.ParkingLot()
        self._on_the_way = 0
        self._departure = trio.lowlevel.ParkingLot()
        self.scope = trio.CancelScope()

    def feed(self, message: bytes | None) -> None:
        """A message has arrived, None: there are no more."""
        self._arrived.append(message)
        self._arrival.unpark_all()

    def taken(self) -> None:
        """Ray has taken an answer."""
        self._on_the_way -= 1
        self._departure.unpark_all()

    async def receive_message(self) -> memoryview | None:
        """See StreamCall."""
        while not self._arrived:
            await self._arrival.park()
        message = self._arrived[0]
        if message is None:
            return None
        self._arrived.popleft()
        self._crossing.call(self.room.release)
        return memoryview(message)

    async def send_message(self, parts: Parts) -> None:
        """See StreamCall."""
        while not self.send_nowait(parts):
            await self._departure.park()

    def send_nowait(self, parts: Parts) -> bool:
        """See StreamCall."""
        if self._on_the_way >= RAY_STREAM_MESSAGES_MAX:
            return False
        self._on_the_way += 1
        self._crossing.call(self.answers.put_nowait, b"".join(parts))
        return True

    def finish(self, trailing_metadata: Metadata = ()) -> None:
        """See StreamCall."""
        self._end(_End(Status.OK, "", trailing_metadata))

    def fail(self, status: Status, message: str, trailing_metadata: Metadata = ()) -> None:
        """See CallContext."""
        self._end(_End(status, message, trailing_metadata))

    def _end(self, end: _End) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._crossing.call(self.answers.put_nowait, end)

    async def serve(self, handler: StreamHandler) -> None:
        """Run the handler, in a task of Trio."""
        with self.scope:
            await handler.handle(self)
            self.finish()

    def cancel(self) -> None:
        """The client has gone, or has all it wants."""
        super().cancel()
        self.scope.cancel()


class GrpcBridge:
    """The calls of one replica. `nursery` is the server's, and outlives all calls."""

    def __init__(self, engine: EngineThread, handlers: Handlers, nursery: trio.Nursery) -> None:
        self._engine = engine
        self._handlers = handlers
        self._nursery = nursery

    async def unary(self, path: str, message: bytes, context: Any) -> Reply:
        """The answer to a unary call; an error is in `context`."""
        handler = self._handlers[path]
        if not isinstance(handler, UnaryHandler):
            raise TypeError(f"{path} is a stream")
        call = _UnaryCall(path, context)
        try:
            self._engine.enter(lambda: handler.handle(call, memoryview(message)))
            end: _End = await call.end
        except TpyError as error:  # the server has stopped
            end = _End(GRPC_STATUS[error.code], error.message, ())
        except BaseException:
            self._engine.soon(call.cancel)
            raise
        _set_end(context, end)
        return Reply(end.content)

    async def stream(self, path: str, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Reply]:
        """The answers of a stream. Raises CallFailed with the status in `context`."""
        handler = self._handlers[path]
        if not isinstance(handler, StreamHandler):
            raise TypeError(f"{path} is not a streaming call")
        call = _StreamCall(path, context)
        engine = self._engine
        try:
            engine.enter(partial(self._nursery.start_soon, call.serve, handler))
        except TpyError as error:
            _set_end(context, _End(GRPC_STATUS[error.code], error.message, ()))
            raise CallFailed(error.message) from None
        feeding = asyncio.create_task(self._feed(call, messages))
        try:
            while isinstance(answer := await call.answers.get(), bytes):
                yield Reply(answer)
                engine.soon(call.taken)
        finally:
            feeding.cancel()
            engine.soon(call.cancel)
        _set_end(context, answer)
        if answer.status is not Status.OK:
            raise CallFailed(answer.message)

    async def _feed(self, call: _StreamCall, messages: AsyncIterator[bytes]) -> None:
        """Bring what the client sends to the call, no faster than it is taken there."""
        try:
            async for message in messages:
                await call.room.acquire()
                self._engine.soon(partial(call.feed, message))
        finally:
            self._engine.soon(partial(call.feed, None))


def _set_end(context: Any, end: _End) -> None:
    if end.status is not Status.OK:
        context.set_code(_CODES[end.status.value])
        context.set_details(end.message)
    if end.trailing:
        context.set_trailing_metadata(list(end.trailing))


def _peer(text: str) -> str:
    """`127.0.0.1:5000` of gRPC's `ipv4:127.0.0.1:5000`; "" for what has no address."""
    kind, separator, rest = text.partition(":")
    return rest if separator and kind in ("ipv4", "ipv6") else ""
