"""Receivers that note what they get, and connections that a reactor reads."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from tpy.clock import SystemClock
from tpy.frontends.transport import GONE, Demand, LoopTurns, Receiver, SocketWire
from tpy.reactor import Reactor


class Turning:
    """A clock that a test puts forward."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return 0


class Recorder:
    """A receiver that notes what it gets; `answer` says what it wants next."""

    def __init__(self, answer: Callable[[bytes], Demand] = lambda data: Demand.READ) -> None:
        self.receive_bytes_max = 4
        self.buffer: memoryview | None = None
        self.received: list[bytes] = []
        self.turns = 0
        self._answer = answer

    def get_buffer(self) -> memoryview | None:
        return self.buffer

    def buffer_updated(self, count: int) -> Demand:
        assert self.buffer is not None
        data = bytes(self.buffer[:count])
        self.buffer = None
        return self.data_received(data)

    def data_received(self, data: bytes) -> Demand:
        self.received.append(data)
        return self._answer(data)

    def proceed(self) -> Demand:
        self.turns += 1
        return self._answer(b"")


class Served:
    """A poller, and connections that it reads."""

    def __init__(self, reactor: Reactor, nursery: trio.Nursery) -> None:
        self.reactor = reactor
        self.ended: list[Receiver] = []
        self.errors: list[BaseException] = []
        self.peers: list[socket.socket] = []
        self.wires: list[SocketWire] = []
        self.nursery = nursery

    def connect(self, receiver: Receiver) -> socket.socket:
        peer, raw = socket.socketpair()
        wire = SocketWire(raw, self.reactor)
        self.peers.append(peer)
        self.wires.append(wire)
        self.nursery.start_soon(self.read, wire, receiver)
        return peer

    async def read(self, wire: SocketWire, receiver: Receiver) -> None:
        try:
            await wire.read(receiver)
        except (RuntimeError, *GONE) as error:
            self.errors.append(error)
        self.ended.append(receiver)


@asynccontextmanager
async def polling(clock: Turning | SystemClock | None = None) -> AsyncIterator[Served]:
    turns = LoopTurns(clock or SystemClock())
    with trio.fail_after(10):
        async with turns.watched(), trio.open_nursery() as nursery:
            served = Served(turns.reactor, nursery)
            yield served
            nursery.cancel_scope.cancel()
    for wire, peer in zip(served.wires, served.peers, strict=True):
        await wire.aclose()
        peer.close()
    assert not turns.reactor.polled


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked(0.005)
