"""A port on loopback or one connection in memory, and a client made of the h2 library."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import h2.config
import h2.connection
import h2.events
import h2.settings
import trio
import trio.testing
from grpclib.metadata import decode_grpc_message
from hyperframe.frame import GoAwayFrame

from tests.streams import StreamWire
from tpy.clock import Clock, SystemClock
from tpy.frontends.grpc.transport import BoundAddress, GrpcOptions, Handlers, StreamCall, UnaryCall, serve_grpc
from tpy.frontends.grpc.transport.connection import GrpcServerConnection, run_connection
from tpy.frontends.grpc.transport.port import GrpcPort
from tpy.frontends.transport import Ends
from tpy.http2 import codes
from tpy.testing.trio_clock import TrioClock

from .peer import message, parse_frames

PATH = "/test.Service/Method"


def options(**changes: object) -> GrpcOptions:
    return GrpcOptions(**{"address": "127.0.0.1", "port": 0, "drain_timeout_s": 5.0, **changes})  # type: ignore[arg-type]


class Reply:
    """A response, as far as it has arrived."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.trailers: list[tuple[str, str]] = []
        self.ended = False
        self.reset: int | None = None

    @property
    def messages(self) -> list[bytes]:
        found = []
        at = 0
        while at + 5 <= len(self.body):
            length = int.from_bytes(self.body[at + 1 : at + 5], "big")
            found.append(self.body[at + 5 : at + 5 + length])
            at += 5 + length
        return found

    def end(self, name: str) -> str | None:
        return next((value for key, value in self.trailers if key == name), self.headers.get(name))

    @property
    def status(self) -> int | None:
        status = self.end("grpc-status")
        return None if status is None else int(status)

    @property
    def text(self) -> str:
        return decode_grpc_message(self.end("grpc-message") or "")

    def binary(self, name: str) -> bytes:
        value = self.end(name) or ""
        return base64.b64decode(value + "=" * (-len(value) % 4))


class Client:
    """The h2 library as a client, on any stream. `automatic`: windows are opened as data arrives."""

    def __init__(self, stream: trio.abc.Stream, *, automatic: bool = True) -> None:
        self.stream = stream
        self.automatic = automatic
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.replies: dict[int, Reply] = {}
        self.goaways: list[GoAwayFrame] = []
        self.settled = False
        self.pings = 0
        self.eof = False
        self._kept = b""
        self.h2.initiate_connection()

    async def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            await self.stream.send_all(data)

    async def begin(self, path: str = PATH, *extra: tuple[str, str]) -> int:
        """The headers of a call."""
        stream_id = self.h2.get_next_available_stream_id()
        self.replies[stream_id] = Reply()
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *extra,
        ]
        self.h2.send_headers(stream_id, fields)
        await self.flush()
        return stream_id

    async def send(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Data, in frames as the server allows; the caller minds the windows."""
        size = self.h2.max_outbound_frame_size
        for at in range(0, max(len(data), 1), size):
            piece = data[at : at + size]
            self.h2.send_data(stream_id, piece, end_stream=end and at + size >= len(data))
        await self.flush()

    async def ask(self, body: bytes, *extra: tuple[str, str], path: str = PATH) -> int:
        """A unary request, not waiting for its answer."""
        stream_id = await self.begin(path, *extra)
        await self.send(stream_id, message(body), end=True)
        return stream_id

    async def call(self, body: bytes, *extra: tuple[str, str], path: str = PATH) -> Reply:
        """A unary call."""
        return await self.answer(await self.ask(body, *extra, path=path))

    async def answer(self, stream_id: int) -> Reply:
        """Read until the response has ended."""
        reply = self.replies[stream_id]
        while not reply.ended and not self.eof:
            await self.read()
        return reply

    async def read_messages(self, stream_id: int, count: int) -> list[bytes]:
        """Read until so many messages have arrived."""
        reply = self.replies[stream_id]
        while len(reply.messages) < count:
            assert not reply.ended
            assert not self.eof
            await self.read()
        return reply.messages

    async def read(self) -> None:
        """Read once."""
        data = await self.stream.receive_some(65536)
        self.eof = not data
        for event in self.h2.receive_data(self._less_goaways(bytes(data))):
            self._on_event(event)
        await self.flush()

    def _less_goaways(self, data: bytes) -> bytes:
        """Whole frames, without GOAWAY: h2 takes it for the end, but calls go on behind it."""
        self._kept += data
        frames = b""
        while len(self._kept) >= 9 and len(self._kept) >= (size := 9 + int.from_bytes(self._kept[:3], "big")):
            whole, self._kept = self._kept[:size], self._kept[size:]
            if whole[3] == codes.GOAWAY:
                (goaway,) = parse_frames(whole)
                assert isinstance(goaway, GoAwayFrame)
                self.goaways.append(goaway)
            else:
                frames += whole
        return frames

    async def read_to_end(self) -> None:
        while not self.eof:
            await self.read()

    def _on_event(self, event: h2.events.Event) -> None:
        reply = self.replies.get(getattr(event, "stream_id", None) or 0, Reply())
        match event:
            case h2.events.ResponseReceived(headers=headers):
                reply.headers = dict(headers or ())  # type: ignore[arg-type]
            case h2.events.TrailersReceived(headers=headers):
                reply.trailers = list(headers or ())  # type: ignore[arg-type]
            case h2.events.DataReceived(data=data, flow_controlled_length=length, stream_id=stream_id):
                reply.body += data or b""
                if self.automatic and length:
                    self.h2.acknowledge_received_data(length, stream_id or 0)
            case h2.events.StreamEnded():
                reply.ended = True
            case h2.events.StreamReset(error_code=code):
                reply.ended = True
                reply.reset = code
            case h2.events.SettingsAcknowledged():
                self.settled = True
            case h2.events.PingReceived():
                self.pings += 1


class InMemory:
    """One connection in memory."""

    def __init__(self, port: GrpcPort, client: Client, ended: trio.Event) -> None:
        self.port = port
        self.client = client
        self.ended = ended

    @property
    def connection(self) -> GrpcServerConnection:
        (connection,) = self.port.connections
        return connection


@asynccontextmanager
async def in_memory(
    handlers: Handlers, *, automatic: bool = True, greeted: bool = True, **changes: object
) -> AsyncIterator[InMemory]:
    """One connection on an in-memory stream, in the time of the Trio run. At the end it must have no calls and no tasks left."""
    clock = TrioClock(trio.lowlevel.current_clock())  # type: ignore[attr-defined]
    port = GrpcPort(options(**changes), handlers, clock)
    ours, theirs = trio.testing.memory_stream_pair()
    ended = trio.Event()

    async def serve() -> None:
        await run_connection(port, StreamWire(theirs), Ends(BoundAddress(host="test", port=1)))
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        client = Client(ours, automatic=automatic)
        if greeted:
            await client.flush()
            while not client.settled:
                await client.read()
        served = [*port.connections]
        yield InMemory(port, client, ended)
        await ours.aclose()
        with trio.fail_after(5):
            await ended.wait()
    assert not port.connections
    assert not any(connection.exchanges or connection.behind for connection in served)


class Running:
    """A port on loopback."""

    def __init__(self, address: BoundAddress, stop: trio.Event) -> None:
        self.address = address
        self.stop = stop

    @property
    def target(self) -> str:
        return str(self.address)


@asynccontextmanager
async def running(handlers: Handlers, *, clock: Clock | None = None, **changes: object) -> AsyncIterator[Running]:
    """Serve on loopback inside the block; stopped in good order at its end."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        address = await nursery.start(partial(serve_grpc, options(**changes), handlers, clock or SystemClock(), stop=stop))
        try:
            yield Running(address, stop)
        finally:
            stop.set()
            nursery.cancel_scope.deadline = trio.current_time() + 10
    assert not nursery.cancel_scope.cancelled_caught, "the server did not end by itself"


# Handlers


def echo(call: UnaryCall, body: memoryview) -> None:
    call.reply((body,))


async def echo_stream(call: StreamCall) -> None:
    while (body := await call.receive_message()) is not None:
        await call.send_message((body,))


class Held:
    """A unary handler that keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[UnaryCall] = []
        self.bodies: list[bytes] = []
        self.cancelled: list[int] = []
        self._changed = trio.Event()

    def __call__(self, call: UnaryCall, body: memoryview) -> None:
        number = len(self.calls)
        self.calls.append(call)
        self.bodies.append(bytes(body))
        call.on_cancel(lambda: self._cancel(number))
        self._changed.set()

    def _cancel(self, number: int) -> None:
        self.cancelled.append(number)
        self._changed.set()

    async def wait(self, *, calls: int = 0, cancelled: int = 0) -> None:
        """Until so many calls have come and so many have been cancelled."""
        with trio.fail_after(20):
            while len(self.calls) < calls or len(self.cancelled) < cancelled:
                self._changed = trio.Event()
                await self._changed.wait()
