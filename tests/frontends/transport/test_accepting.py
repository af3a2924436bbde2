"""Accepting connections while the system has no room for them."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
import trio.testing

from tests.unit.reactor.doubles import IoWaits
from tpy.clock import SystemClock
from tpy.frontends.transport import Ends, ListenOptions, Port, SocketWire, Wire, serve_port
from tpy.frontends.transport.accepting import ConnectionListener
from tpy.frontends.transport.listening import listen
from tpy.reactor import Reactor, reactor_of_run


@pytest.fixture
async def reactor() -> AsyncIterator[Reactor]:
    made = reactor_of_run()
    with made.running():
        yield made


class CrowdedSocket(socket.socket):
    """A listening socket whose first `failures` accepts find no file descriptor."""

    failures = 0
    reason = errno.EMFILE

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(self.reason, os.strerror(self.reason))
        return super().accept()


@pytest.mark.parametrize("port", ["HTTP", "metrics", "gRPC"])
@pytest.mark.parametrize("reason", [errno.EMFILE, errno.ENFILE])
async def test_connections_wait_until_there_is_a_file_descriptor_for_them(
    port: str,
    reactor: Reactor,
    reason: int,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with CrowdedSocket() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        client.connect(listening.getsockname())
        listening.failures = 100
        listening.reason = reason
        listener = ConnectionListener(listening, partial(SocketWire, reactor=reactor), port=port, at_once=4)
        began_s = trio.current_time()
        wire = await listener.accept()
        assert 5 < trio.current_time() - began_s < 20
        assert wire.raw.getpeername() == client.getsockname()
        await wire.aclose()
        await listener.aclose()
    [record] = caplog.records
    assert record.getMessage() == f"new {port} connections wait: the system has no room for them"
    assert record.exc_info is None


async def test_a_connection_that_is_gone_before_it_is_set_up_is_passed_over(reactor: Reactor) -> None:
    def connected(raw: socket.socket) -> SocketWire:
        if not made:
            made.append(raw)
            raise OSError(errno.EINVAL, "the peer has left")
        return SocketWire(raw, reactor)

    made: list[socket.socket] = []
    with socket.socket() as listening, socket.socket() as one, socket.socket() as other:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        one.connect(listening.getsockname())
        other.connect(listening.getsockname())
        listener = ConnectionListener(listening, connected, port="HTTP", at_once=4)
        wire = await listener.accept()
        assert wire.raw.getpeername() == other.getsockname()
        assert made[0].fileno() < 0
        await wire.aclose()
        await listener.aclose()


@pytest.mark.parametrize("reason", [errno.ECONNABORTED, errno.EPROTO, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.EOPNOTSUPP])
async def test_the_error_of_a_connection_that_is_gone_ends_nothing(reactor: Reactor, reason: int) -> None:
    with CrowdedSocket() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        client.connect(listening.getsockname())
        listening.failures = 3
        listening.reason = reason
        listener = ConnectionListener(listening, partial(SocketWire, reactor=reactor), port="HTTP", at_once=4)
        wire = await listener.accept()
        assert wire.raw.getpeername() == client.getsockname()
        await wire.aclose()
        await listener.aclose()


async def test_connections_that_come_together_are_accepted_in_one_turn_of_the_loop_a_bounded_number(reactor: Reactor) -> None:
    with contextlib.ExitStack() as clients, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        names = []
        for _ in range(4):
            client = clients.enter_context(socket.socket())
            client.connect(listening.getsockname())
            names.append(client.getsockname())
        listener = ConnectionListener(listening, partial(SocketWire, reactor=reactor), port="HTTP", at_once=3)
        wires = [await listener.accept()]
        with trio.testing.assert_no_checkpoints():
            wires += [await listener.accept(), await listener.accept()]
        with trio.testing.assert_checkpoints():
            wires.append(await listener.accept())
        assert [wire.raw.getpeername() for wire in wires] == names
        for wire in wires:
            await wire.aclose()
        await listener.aclose()


@pytest.mark.parametrize("shares", [False, True])
async def test_a_port_whose_socket_was_there_before_accepts_many_at_once_unless_processes_share_it(shares: bool) -> None:
    """The ports of every server are opened before its models are loaded."""
    port, turns, stop = Port(ListenOptions(), SystemClock(), name="HTTP"), IoWaits(), trio.Event()
    begun: list[int] = []

    async def serve(wire: Wire, ends: Ends) -> None:
        begun.append(turns.count)
        await wire.aclose()

    [listening] = await listen("127.0.0.1", 0, reuse_port=False)
    port.turns.reactor.shares_descriptors = shares
    with contextlib.ExitStack() as clients:
        for _ in range(10):
            clients.enter_context(socket.create_connection(listening.getsockname()))
        trio.lowlevel.add_instrument(turns)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve_port, port, serve, stop=stop, inherited=[listening]))
            with trio.fail_after(10):
                while len(begun) < 10:
                    await trio.lowlevel.checkpoint()
            stop.set()
        trio.lowlevel.remove_instrument(turns)
    assert len(set(begun)) == (10 if shares else 1)


async def test_accepted_connections_that_nobody_took_are_closed_with_the_listener(reactor: Reactor) -> None:
    with socket.socket() as listening, socket.socket() as one, socket.socket() as other:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        one.connect(listening.getsockname())
        other.connect(listening.getsockname())
        listener = ConnectionListener(listening, partial(SocketWire, reactor=reactor), port="HTTP", at_once=2)
        await (await listener.accept()).aclose()
        await listener.aclose()
        assert other.recv(1) == b""


async def test_small_pieces_leave_at_once_on_every_connection(reactor: Reactor) -> None:
    [listening] = await listen("127.0.0.1", 0, reuse_port=False)
    with socket.create_connection(listening.getsockname()):  # before anybody accepts
        listener = ConnectionListener(listening, partial(SocketWire, reactor=reactor), port="HTTP", at_once=2)
        wire = await listener.accept()
        assert wire.raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await wire.aclose()
        await listener.aclose()
