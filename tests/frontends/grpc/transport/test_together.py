"""Answers that the engine gives together leave a connection in one piece, at once."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from tpy.clock import SystemClock
from tpy.deliveries import Deliveries
from tpy.frontends.grpc.transport import StreamCall, StreamHandler, UnaryHandler
from tpy.frontends.grpc.transport.connection import run_connection
from tpy.frontends.grpc.transport.port import GrpcPort
from tpy.frontends.transport import Ends, Pieces, SocketWire
from tpy.reactor import Reactor

from .harness import PATH, Client, Held, options
from .peer import message


class CountingWire(SocketWire):
    """Counts what is written without waiting. `full`: nothing is taken so."""

    def __init__(self, raw: socket.socket, reactor: Reactor) -> None:
        super().__init__(raw, reactor)
        self.written = 0
        self.full = False

    def send_nowait(self, pieces: Pieces) -> int:
        self.written += 1
        return 0 if self.full else super().send_nowait(pieces)


class Served:
    def __init__(self, deliveries: Deliveries, wire: CountingWire, client: Client) -> None:
        self.deliveries = deliveries
        self.wire = wire
        self.client = client
        self.ended = trio.Event()


@asynccontextmanager
async def on_a_socket(handler: UnaryHandler | StreamHandler) -> AsyncIterator[Served]:
    deliveries = Deliveries()
    port = GrpcPort(options(), {PATH: handler}, SystemClock(), deliveries)
    ours, theirs = socket.socketpair()
    reactor = port.turns.reactor
    wire = CountingWire(theirs, reactor)
    ours.setblocking(False)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    served = Served(deliveries, wire, Client(stream))
    with trio.fail_after(10):
        with reactor.running():
            async with trio.open_nursery() as nursery:

                async def serve() -> None:
                    await run_connection(port, wire, Ends())
                    served.ended.set()

                nursery.start_soon(serve)
                await served.client.flush()
                while not served.client.settled:
                    await served.client.read()
                yield served
                await stream.aclose()
                await served.ended.wait()


async def test_calls_that_are_answered_in_one_block_are_written_once_and_at_its_end() -> None:
    held = Held()
    async with on_a_socket(UnaryHandler(held)) as served:
        streams = [await served.client.ask(b"x") for _ in range(3)]
        while len(held.calls) < 3:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        before = served.wire.written
        with served.deliveries:
            for number, call in enumerate(held.calls):
                call.reply((b"%d" % number,))
            assert served.wire.written == before
        assert served.wire.written == before + 1
        for number, stream_id in enumerate(streams):
            reply = await served.client.answer(stream_id)
            assert (reply.messages, reply.status) == ([b"%d" % number], 0)
        assert served.wire.written == before + 1


async def test_what_the_client_does_not_take_at_once_is_left_to_the_writer() -> None:
    held = Held()
    async with on_a_socket(UnaryHandler(held)) as served:
        stream_id = await served.client.ask(b"x")
        while not held.calls:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        served.wire.full = True
        with served.deliveries:
            held.calls[0].reply((b"y",))
        served.wire.full = False
        assert (await served.client.answer(stream_id)).messages == [b"y"]


async def test_a_client_that_is_gone_ends_its_connection_and_nothing_else() -> None:
    calls: list[StreamCall] = []

    async def wait(call: StreamCall) -> None:
        calls.append(call)
        await call.receive_message()
        await trio.sleep_forever()

    async with on_a_socket(StreamHandler(wait)) as served:
        stream_id = await served.client.begin()
        await served.client.send(stream_id, message(b"x"))
        while not calls:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        served.wire.raw.shutdown(socket.SHUT_WR)  # writing fails from now on
        with served.deliveries:
            assert calls[0].send_nowait((b"y",))
        await served.ended.wait()
