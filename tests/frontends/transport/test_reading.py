"""Connections that are ready are read together, each in its turn."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import trio
import trio.testing

from tests.frontends.transport.receivers import Recorder, Turning, polling, settle
from tpy.frontends.transport import Demand, LoopTurns, SocketWire
from tpy.limits import LOOP_TURN_NS_MAX, LOOP_TURN_TASKS_MAX
from tpy.units import NS_PER_S


async def test_bytes_arrive_in_pieces_with_the_end() -> None:
    async with polling() as served:
        receiver = Recorder()
        peer = served.connect(receiver)
        await settle()
        peer.sendall(b"123456")
        await settle()
        assert receiver.received == [b"1234", b"56"]
        peer.shutdown(socket.SHUT_WR)
        await settle()
        assert receiver.received[2:] == [b""]
        assert served.ended == [receiver]


async def test_bytes_go_into_a_buffer_that_the_receiver_gives() -> None:
    async with polling() as served:
        receiver = Recorder()
        receiver.buffer = memoryview(bytearray(3))
        peer = served.connect(receiver)
        peer.sendall(b"12345")
        await settle()
        assert receiver.received == [b"123", b"45"]


async def test_who_pauses_is_not_read_until_it_is_resumed() -> None:
    async with polling() as served:
        paused, other = Recorder(lambda data: Demand.PAUSE), Recorder()
        peer, busy = served.connect(paused), served.connect(other)
        await settle()
        peer.sendall(b"12345678")
        await settle()
        busy.sendall(b"x")
        await settle()
        assert (paused.received, other.received) == ([b"1234"], [b"x"])
        served.wires[0].resume()
        served.wires[0].resume()
        await settle()
        assert paused.received == [b"1234", b"5678"]


async def test_who_goes_on_is_not_read_meanwhile_and_others_are() -> None:
    left = [3]

    def some_more(data: bytes) -> Demand:
        left[0] -= 1
        return Demand.CONTINUE if left[0] > 0 else Demand.READ

    async with polling() as served:
        slow, other = Recorder(some_more), Recorder()
        peer, busy = served.connect(slow), served.connect(other)
        await settle()
        peer.sendall(b"12345678")
        busy.sendall(b"x")
        await settle()
        assert slow.turns == 2
        assert slow.received == [b"1234", b"5678"]
        assert other.received == [b"x"]


async def test_a_bug_in_one_receiver_ends_its_connection_only() -> None:
    def fail(data: bytes) -> Demand:
        raise RuntimeError("a bug")

    async with polling() as served:
        broken, other = Recorder(fail), Recorder()
        peer, busy = served.connect(broken), served.connect(other)
        await settle()
        peer.sendall(b"x")
        busy.sendall(b"y")
        await settle()
        assert served.ended == [broken]
        assert [str(error) for error in served.errors] == ["a bug"]
        busy.sendall(b"z")
        await settle()
        assert b"".join(other.received) == b"yz"


async def test_a_reset_ends_its_connection_only() -> None:
    async with polling() as served:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            peer = socket.create_connection(listening.getsockname())
            raw, _ = listening.accept()
        wire = SocketWire(raw, served.reactor)
        served.wires.append(wire)
        served.peers.append(peer)
        receiver = Recorder()
        served.nursery.start_soon(served.read, wire, receiver)
        await settle()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        await settle()
        assert served.ended == [receiver]
        assert isinstance(served.errors[0], ConnectionResetError)


async def test_reading_may_be_cancelled_and_called_again() -> None:
    async with polling() as served:
        peer, raw = socket.socketpair()
        wire = SocketWire(raw, served.reactor)
        served.wires.append(wire)
        served.peers.append(peer)
        receiver = Recorder()
        with trio.move_on_after(0.001):
            await wire.read(receiver)
        peer.sendall(b"12")
        await settle()
        assert receiver.received == []
        served.nursery.start_soon(served.read, wire, receiver)
        await settle()
        assert receiver.received == [b"12"]


@pytest.mark.parametrize("count", [3, 40])
async def test_a_long_turn_ends_before_the_next_connection_is_read(count: int) -> None:
    """Bytes that clients send at once keep the loop for one piece of one of them at a time."""
    clock = Turning()
    order: list[str] = []

    def work(data: bytes) -> Demand:
        clock.ns += LOOP_TURN_NS_MAX + 1
        order.append("piece")
        return Demand.READ

    async with polling(clock) as served:
        peers = [served.connect(Recorder(work)) for _ in range(count)]
        await settle()

        async def other() -> None:
            while order.count("piece") < count:
                order.append("other")
                await trio.lowlevel.checkpoint()

        for peer in peers:
            peer.sendall(b"x")
        served.nursery.start_soon(other)
        await settle()
    assert order.count("piece") == count
    runs = "".join("p" if each == "piece" else "o" for each in order).split("o")
    assert max(map(len, runs)) <= 2  # a turn may begin with the one and end with the other


async def test_connections_with_much_to_do_take_turns() -> None:
    clock = Turning()
    goes: list[int] = []

    def work(number: int) -> Callable[[bytes], Demand]:
        def do(data: bytes) -> Demand:
            clock.ns += NS_PER_S
            goes.append(number)
            return Demand.CONTINUE if goes.count(number) < 5 else Demand.READ

        return do

    count = 2 * LOOP_TURN_TASKS_MAX
    async with polling(clock) as served:
        for number in range(count):
            served.connect(Recorder(work(number))).sendall(b"x")
        await settle()
    assert [goes.count(number) for number in range(count)] == [5] * count
    for position in range(0, len(goes), count):
        seen = goes[: position + count]
        most, least = max(seen.count(each) for each in range(count)), min(seen.count(each) for each in range(count))
        assert most - least <= 2  # nobody is far ahead


@pytest.mark.parametrize("is_long", [False, True])
async def test_what_a_new_connection_has_sent_is_read_at_once_unless_the_turn_is_long(is_long: bool) -> None:
    clock = Turning()
    turns = LoopTurns(clock)
    receiver = Recorder()
    peer, raw = socket.socketpair()
    wire = SocketWire(raw, turns.reactor)
    peer.send(b"now")
    async with turns.watched(), trio.open_nursery() as nursery:
        await trio.lowlevel.checkpoint()
        clock.ns += 2 * LOOP_TURN_NS_MAX * is_long
        with trio.CancelScope() as scope:
            scope.cancel()
            await wire.read(receiver)
        nursery.cancel_scope.cancel()
    assert receiver.received == ([] if is_long else [b"now"])
    await wire.aclose()
    peer.close()


async def test_what_was_begun_is_read_on() -> None:
    async with polling() as served:
        peer, raw = socket.socketpair()
        wire = SocketWire(raw, served.reactor)
        served.peers.append(peer)
        served.wires.append(wire)
        receiver = Recorder()
        peer.send(b"now")
        wire.read_now(receiver)
        assert receiver.received == [b"now"]
        served.nursery.start_soon(served.read, wire, receiver)
        peer.send(b"next")
        await settle()
        assert receiver.received == [b"now", b"next"]
        peer.close()
        await settle()
        assert served.ended == [receiver]


async def test_a_stop_within_what_was_begun_stops_nothing_that_begins_after_it() -> None:
    async with polling() as served:
        peer, raw = socket.socketpair()
        wire = SocketWire(raw, served.reactor)
        served.peers.append(peer)
        served.wires.append(wire)
        receiver = Recorder()
        wire.read_now(receiver)
        wire.stop_reading()
        served.nursery.start_soon(served.read, wire, receiver)
        peer.send(b"next")
        await settle()
        assert (receiver.received, served.ended) == ([b"next"], [])
        wire.stop_reading()
        await settle()
        assert served.ended == [receiver]


async def test_a_receiver_that_has_more_to_do_from_the_beginning_goes_on_while_nobody_else_sends() -> None:
    turns_left = [3]

    def more(data: bytes) -> Demand:
        turns_left[0] -= 1
        return Demand.CONTINUE if turns_left[0] else Demand.READ

    async with polling() as served:
        await settle()  # the poller waits
        peer, raw = socket.socketpair()
        wire = SocketWire(raw, served.reactor)
        served.peers.append(peer)
        served.wires.append(wire)
        peer.send(b"now")
        served.nursery.start_soon(wire.read, Recorder(more))
        await settle()
        assert turns_left == [0]
        assert len(served.reactor.polled) == 1
        await settle()


async def test_a_bug_in_what_was_begun_is_raised_at_once() -> None:
    def broken(data: bytes) -> Demand:
        raise LookupError("a bug")

    async with polling() as served:
        peer, raw = socket.socketpair()
        wire = SocketWire(raw, served.reactor)
        served.peers.append(peer)
        served.wires.append(wire)
        receiver = Recorder(broken)
        peer.send(b"now")
        with pytest.raises(LookupError, match="a bug"):
            wire.read_now(receiver)


async def test_who_waits_to_send_is_told_that_the_wire_was_closed() -> None:
    async with polling() as served:
        peer, raw = socket.socketpair()
        wire = SocketWire(raw, served.reactor)
        served.peers.append(peer)
        served.wires.append(wire)
        while wire.send_nowait([b"x" * 100_000]):
            pass

        async def send() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await wire.send_some([b"x"])

        served.nursery.start_soon(send)
        await settle()
        wire.close()
        await settle()
