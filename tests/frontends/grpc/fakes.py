"""Calls without a transport: what a handler is given, and what it answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from grpclib.const import Status
from tritonclient.grpc import service_pb2 as pb

from tests.frontends.http.fakes import FakeServices
from tpy.clock import SystemClock
from tpy.errors import InvariantViolation
from tpy.frontends.grpc import GrpcServiceOptions, create_handlers
from tpy.frontends.grpc.transport import Handlers, Metadata, Parts, StreamHandler, UnaryHandler
from tpy.services import Services

SERVICE = "/inference.GRPCInferenceService/"


class FakeCall:
    """The part that unary and streaming calls share. `cancel` plays the client that goes away."""

    def __init__(self, path: str, metadata: Metadata = (), deadline_ns: int | None = None) -> None:
        self.load_format = next((str(value) for key, value in metadata if key == "endpoint-load-metrics-format"), "")
        self.path = path
        self.metadata = metadata
        self.deadline_ns = deadline_ns
        self.peer = "127.0.0.1:1"
        self.status: Status | None = None
        self.message = ""
        self.trailing_metadata: Metadata = ()
        self.ended = trio.Event()
        self.cancelled = False
        self._callback: Callable[[], None] | None = None

    def certificate(self) -> None:
        return

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        if self.cancelled:
            callback()

    def cancel(self) -> None:
        self.cancelled = True
        if self._callback is not None and self.status is None:
            self._callback()

    def fail(self, status: Status, message: str, trailing_metadata: Metadata = ()) -> None:
        self.trailing_metadata = trailing_metadata
        self._end(status, message)

    def _end(self, status: Status, message: str = "") -> None:
        if self.cancelled:
            return
        if self.status is not None:
            raise InvariantViolation("a call was answered twice")
        self.status, self.message = status, message
        self.ended.set()


class FakeUnaryCall(FakeCall):
    """`reply_bytes` once it was answered with OK."""

    reply_bytes = b""

    def reply(self, parts: Parts, trailing_metadata: Metadata = ()) -> None:
        self.reply_bytes = b"".join(parts)
        self.trailing_metadata = trailing_metadata
        self._end(Status.OK)


class FakeStreamCall(FakeCall):
    """A client that sends what the test puts into it, and reads `window` messages before it has to be told to `read` more."""

    def __init__(self, path: str, metadata: Metadata = (), window: int = 1_000_000) -> None:
        super().__init__(path, metadata)
        self._requests, self._incoming = trio.open_memory_channel[bytes](1_000_000)
        self._window = window
        self._read = trio.Event()
        self.responses: list[bytes] = []
        self.arrived = trio.Event()
        self.taken = 0

    def request(self, message: bytes) -> None:
        self._requests.send_nowait(message)

    def half_close(self) -> None:
        self._requests.close()

    def read(self, more: int) -> None:
        self._window += more
        self._read.set()
        self._read = trio.Event()

    async def wait_responses(self, count: int) -> None:
        while len(self.responses) < count:
            await self.arrived.wait()

    async def receive_message(self) -> memoryview | None:
        try:
            message = memoryview(await self._incoming.receive())
        except trio.EndOfChannel:
            return None
        self.taken += 1
        return message

    async def send_message(self, parts: Parts) -> None:
        while not self.send_nowait(parts):
            await self._read.wait()

    def send_nowait(self, parts: Parts) -> bool:
        if len(self.responses) >= self._window:
            return False
        self.responses.append(b"".join(parts))
        self.arrived.set()
        self.arrived = trio.Event()
        return True

    def finish(self, trailing_metadata: Metadata = ()) -> None:
        self._end(Status.OK)


class FakePort:
    """The handlers of one port, called by a test."""

    def __init__(self, services: Any, handlers: Handlers, nursery: trio.Nursery, stop: trio.Event) -> None:
        self.services = services
        self.handlers = handlers
        self.nursery = nursery
        self.stop = stop

    def begin(self, method: str, message: bytes, metadata: Metadata = (), deadline_ns: int | None = None) -> FakeUnaryCall:
        """Call a unary method; a name without `/` is one of the inference service."""
        path = method if method.startswith("/") else SERVICE + method
        call = FakeUnaryCall(path, metadata, deadline_ns)
        handler = self.handlers[path]
        assert isinstance(handler, UnaryHandler)
        handler.handle(call, memoryview(message))
        return call

    async def call(self, method: str, message: bytes = b"", metadata: Metadata = ()) -> FakeUnaryCall:
        """Call a unary method and wait for its answer."""
        call = self.begin(method, message, metadata)
        await call.ended.wait()
        return call

    def open(self, method: str = "ModelStreamInfer", metadata: Metadata = (), window: int = 1_000_000) -> FakeStreamCall:
        """Begin a streaming call. Its task ends with the call, as the transport's does."""
        path = method if method.startswith("/") else SERVICE + method
        call = FakeStreamCall(path, metadata, window)
        handler = self.handlers[path]
        assert isinstance(handler, StreamHandler)

        async def serve() -> None:
            with trio.CancelScope() as scope:
                call.on_cancel(scope.cancel)
                await handler.handle(call)
                if call.status is None:
                    call.finish()

        self.nursery.start_soon(serve)
        return call


@asynccontextmanager
async def port(
    options: GrpcServiceOptions | None = None, services: Services | None = None, *, late: bool = False
) -> AsyncIterator[FakePort]:
    """A port over fake services, or those given; its tasks end with the block."""
    services = services or FakeServices()
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        handlers = create_handlers(
            options or GrpcServiceOptions(), services, SystemClock(), nursery=nursery, stop=stop, late=late
        )
        yield FakePort(services, handlers, nursery, stop)
        nursery.cancel_scope.cancel()


def infer_request(
    model: str = "m", *, id: str = "", data: bytes = bytes(16), shape: tuple[int, ...] = (1, 4)
) -> pb.ModelInferRequest:
    """A request with INPUT0 in raw contents."""
    request = pb.ModelInferRequest(model_name=model, id=id)
    request.inputs.add(name="INPUT0", datatype="FP32", shape=shape)
    request.raw_input_contents.append(data)
    return request
