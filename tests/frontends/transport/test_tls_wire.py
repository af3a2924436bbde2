"""TLS over a socket: nothing is lost, whatever comes together, and what is wrong ends the connection."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.frontends.transport.receivers import Recorder, Turning, settle
from tests.unit.reactor.doubles import IoWaits
from tpy.clock import SystemClock
from tpy.frontends.transport import GONE, Demand, LoopTurns, SocketWire, TlsOptions
from tpy.frontends.transport.tls import tls_context
from tpy.frontends.transport.tls_wire import TlsWire
from tpy.limits import LOOP_TURN_NS_MAX
from tpy.sending import Pieces, size_of, unsent
from tpy.units import KIB, MIB

CERTIFICATES = Path(__file__).parents[1] / "grpc" / "transport" / "certificates"
OPTIONS = TlsOptions(certificate_file=str(CERTIFICATES / "server.pem"), key_file=str(CERTIFICATES / "server.key"))


class Peer:
    """A client, whose socket does not block."""

    def __init__(self, raw: socket.socket, *, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        raw.setblocking(False)
        self.raw = raw
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
        context.maximum_version = version
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def feed(self) -> None:
        try:
            data = self.raw.recv(MIB)
        except BlockingIOError:
            return
        self.incoming.write(data) if data else self.incoming.write_eof()

    def flush(self) -> None:
        self.raw.sendall(self.outgoing.read())

    async def handshake(self, *, last: bytes = b"") -> None:
        """`last` leaves with its last message."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                await settle()
                self.feed()
            else:
                break
        if last:
            self.tls.write(last)
        self.flush()
        await settle()

    def send(self, *texts: bytes) -> None:
        """Each in a record of its own, all at once."""
        for text in texts:
            self.tls.write(text)
        self.flush()

    def receive(self) -> bytes:
        """Returns what has arrived, then b"" at the end."""
        self.feed()
        found = b""
        while True:
            try:
                data = self.tls.read(MIB)
            except ssl.SSLWantReadError:
                return found
            if not data:
                return found
            found += data


class Connected:
    """Both ends, agreed."""

    def __init__(self, peer: Peer, wire: TlsWire, turns: LoopTurns, nursery: trio.Nursery) -> None:
        self.peer = peer
        self.wire = wire
        self.turns = turns
        self.errors: list[BaseException] = []
        self.is_over = False
        self._nursery = nursery

    async def begin(self, receiver: Recorder) -> None:
        self._nursery.start_soon(self.read, receiver)
        await settle()

    async def read(self, receiver: Recorder) -> None:
        try:
            await self.wire.read(receiver)
        except GONE as error:
            self.errors.append(error)
        self.is_over = True


@asynccontextmanager
async def connected(
    *, last: bytes = b"", clock: Turning | SystemClock | None = None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> AsyncIterator[Connected]:
    turns = LoopTurns(clock or SystemClock())
    ours, theirs = socket.socketpair()
    clear = SocketWire(ours, turns.reactor)
    with trio.fail_after(20):
        async with turns.watched(), trio.open_nursery() as nursery:
            peer = Peer(theirs, version=version)
            wire = TlsWire(clear, turns, tls_context(OPTIONS, port="HTTP", alpn=()))
            nursery.start_soon(wire.handshake)
            await peer.handshake(last=last)
            yield Connected(peer, wire, turns, nursery)
            await wire.aclose()
            nursery.cancel_scope.cancel()
    clear.close()
    theirs.close()
    assert not turns.reactor.polled


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_bytes_go_both_ways(version: ssl.TLSVersion) -> None:
    async with connected(version=version) as ends:
        receiver = Recorder()
        receiver.receive_bytes_max = 100
        await ends.begin(receiver)
        ends.peer.send(b"one", b"two")
        await settle()
        assert receiver.received == [b"one", b"two"]
        assert ends.wire.send_nowait([b"a", memoryview(b"bc"), b""]) == 3
        assert ends.peer.receive() == b"abc"


@pytest.mark.parametrize("is_long", [False, True])
async def test_what_comes_with_the_handshakes_last_message_is_read(is_long: bool) -> None:
    """The kernel tells of no more bytes then."""
    clock = Turning()
    async with connected(last=b"12345678", clock=clock) as ends:
        clock.ns += 2 * LOOP_TURN_NS_MAX * is_long
        receiver = Recorder()
        await ends.begin(receiver)
        assert receiver.received == [b"1234", b"5678"]


async def test_more_than_the_receiver_takes_at_once_is_handed_on_in_order() -> None:
    async with connected() as ends:
        receiver = Recorder()
        receiver.receive_bytes_max = 1000
        await ends.begin(receiver)
        texts = [bytes([number]) * (3 * KIB) for number in range(60)]
        for text in texts:
            ends.peer.send(text)
            await settle()
        assert b"".join(receiver.received) == b"".join(texts)


async def test_bytes_go_into_a_buffer_that_the_receiver_gives() -> None:
    async with connected() as ends:
        receiver = Recorder()
        receiver.buffer = memoryview(bytearray(3))
        await ends.begin(receiver)
        ends.peer.send(b"12345")
        await settle()
        assert receiver.received == [b"123", b"45"]


async def test_who_pauses_gets_nothing_until_it_is_resumed() -> None:
    async with connected() as ends:
        receiver = Recorder(lambda data: Demand.PAUSE)
        await ends.begin(receiver)
        ends.peer.send(b"1234", b"5678")
        await settle()
        assert receiver.received == [b"1234"]
        ends.wire.resume()
        ends.wire.resume()
        await settle()
        assert receiver.received == [b"1234", b"5678"]
        assert receiver.turns == 0


async def test_who_paused_is_asked_anew_when_it_is_read_again() -> None:
    async with connected() as ends:
        paused = Recorder(lambda data: Demand.PAUSE)
        await ends.begin(paused)
        ends.peer.send(b"1234", b"5678")
        await settle()
        ends.wire.stop_reading()
        await settle()
        receiver = Recorder()
        await ends.begin(receiver)
        assert (paused.received, receiver.received) == ([b"1234"], [b"5678"])


async def test_who_pauses_before_its_next_turn_gets_nothing_more() -> None:
    async with connected() as ends:
        receiver = Recorder(lambda data: Demand.PAUSE)
        await ends.begin(receiver)
        ends.peer.send(b"1", b"2", b"3", b"4")
        await settle()
        ends.wire.resume()  # it would go on with the next turn
        ends.wire.stop_reading()
        with trio.move_on_after(0.01):
            await ends.wire.read(receiver)
        assert receiver.received == [b"1", b"2"]


@pytest.mark.parametrize("count", [5, 500])
async def test_small_records_leave_turns_to_others(count: int) -> None:
    clock = Turning()
    turns: list[int] = []

    def work(data: bytes) -> Demand:
        turns.append(waits.count)
        clock.ns += LOOP_TURN_NS_MAX + 1
        return Demand.READ

    waits = IoWaits()
    async with connected(clock=clock) as ends:
        receiver = Recorder(work)
        await ends.begin(receiver)
        trio.lowlevel.add_instrument(waits)
        ends.peer.send(*[b"x"] * count)
        while len(receiver.received) < count:
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(waits)
    assert b"".join(receiver.received) == b"x" * count
    assert len(set(turns)) >= count - 1  # the first turn also goes on with the first one


async def test_who_goes_on_is_called_in_later_turns() -> None:
    left = [3]

    def more(data: bytes) -> Demand:
        left[0] -= 1
        return Demand.CONTINUE if left[0] > 0 else Demand.READ

    async with connected() as ends:
        receiver = Recorder(more)
        await ends.begin(receiver)
        ends.peer.send(b"1234", b"5678")
        await settle()
        assert receiver.turns == 2
        assert receiver.received == [b"1234", b"5678"]


async def test_who_is_resumed_before_its_next_turn_still_has_it() -> None:
    clock = Turning()
    answers = 5 * [Demand.CONTINUE]

    def work(data: bytes) -> Demand:
        clock.ns += LOOP_TURN_NS_MAX + 1
        return answers.pop() if answers else Demand.READ

    async with connected(clock=clock) as ends:
        receiver = Recorder(work)
        await ends.begin(receiver)
        ends.peer.send(b"1")
        for _ in range(20):
            await trio.lowlevel.checkpoint()
            ends.wire.resume()
        await settle()
        assert (receiver.received, receiver.turns) == ([b"1"], 5)


async def test_a_client_that_takes_nothing_gets_every_byte_once() -> None:
    """Bytes that are encrypted and do not fit are not encrypted again."""
    content = b"".join(b"%07d " % number for number in range(200_000))
    async with connected() as ends:
        pieces: Pieces = [content[:100], memoryview(content)[100:]]
        left = size_of(pieces)
        while sent := ends.wire.send_nowait(pieces):
            assert sent <= 64 * KIB
            pieces = unsent(pieces, sent)
        assert 0 < size_of(pieces) < left
        received = bytearray()
        async with trio.open_nursery() as nursery:

            async def send(rest: Pieces) -> None:
                while rest:
                    rest = unsent(rest, await ends.wire.send_some(rest))

            nursery.start_soon(send, pieces)
            while len(received) < len(content):
                received += ends.peer.receive()
                await trio.lowlevel.checkpoint()
        assert received == content


async def say_goodbye(ends: Connected) -> None:
    with pytest.raises(ssl.SSLWantReadError):
        ends.peer.tls.unwrap()
    ends.peer.flush()


async def leave(ends: Connected) -> None:
    ends.peer.raw.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("end", [say_goodbye, leave])
async def test_the_end_is_told_once_with_what_came_before(end: Callable[[Connected], object]) -> None:
    async with connected() as ends:
        receiver = Recorder()
        await ends.begin(receiver)
        ends.peer.send(b"1234")
        await end(ends)  # type: ignore[misc]
        await settle()
        assert receiver.received == [b"1234", b""]
        assert (ends.is_over, ends.errors) == (True, [])
        assert ends.wire.send_nowait([b"answer"]) == 6
        assert ends.peer.receive() == b"answer"


async def test_bytes_that_are_no_tls_end_the_connection() -> None:
    async with connected() as ends:
        receiver = Recorder()
        await ends.begin(receiver)
        ends.peer.raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        await settle()
        assert (receiver.received, ends.is_over) == ([], True)
        assert isinstance(ends.errors[0], ssl.SSLError)
        with pytest.raises(ssl.SSLError):  # the alert has arrived
            ends.peer.receive()


async def test_a_bug_in_the_receiver_ends_its_connection() -> None:
    def fail(data: bytes) -> Demand:
        raise OSError("a bug")

    async with connected() as ends:
        await ends.begin(Recorder(fail))
        ends.peer.send(b"x")
        await settle()
        assert [str(error) for error in ends.errors] == ["a bug"]


async def test_who_closes_says_so_behind_what_it_sent() -> None:
    async with connected() as ends:
        assert ends.wire.send_nowait([b"last"]) == 4
        await ends.wire.aclose()
        assert ends.peer.receive() == b"last"
        assert ends.peer.tls.read(1) == b""  # and not SSLEOFError
