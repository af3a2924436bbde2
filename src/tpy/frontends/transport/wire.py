"""The bytes of one connection: who receives them, and an interface for sending that fits a socket, TLS and Trio's streams."""

from __future__ import annotations

import abc
import socket
from collections.abc import Iterator, Sequence
from typing import Protocol

import trio

from tpy.frontends.transport.poller import Poller
from tpy.frontends.transport.receiver import Demand, Receiver
from tpy.units import KIB

_PIECES_PER_SEND = 512
"""Buffers in one `sendmsg`: below any system's IOV_MAX."""

_JOINED_BYTES_MAX = 64 * KIB
"""Up to this size one copy is cheaper than many buffers."""

Pieces = Sequence[bytes | memoryview]

GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""The errors of a Wire whose connection is gone."""


class Wire(Protocol):
    """One task reads and one writes; `send_nowait` may be called from any when none is in `send_some`, `resume` from any. Any
    method but `resume` may raise one of GONE."""

    async def read(self, receiver: Receiver) -> None:
        """Hand what arrives to `receiver` until the peer has finished sending. May be cancelled and called again: no byte is
        lost. A receiver that paused is asked anew."""
        ...

    def resume(self) -> None:
        """Read on after `Demand.PAUSE`."""
        ...

    def send_nowait(self, pieces: Pieces) -> int:
        """Send as much as fits at once; returns the number of bytes (0: the connection is full)."""
        ...

    async def send_some(self, pieces: Pieces) -> int:
        """Wait until something fits and send it; returns the number of bytes, at least 1."""
        ...

    async def send_eof(self) -> None:
        """Finish sending, where that can be said apart from closing."""
        ...

    def is_broken(self) -> bool:
        """Returns whether the peer is known to be gone, also when it had finished sending before."""
        ...

    async def aclose(self) -> None:
        """Close at once."""
        ...


class SocketWire(trio.abc.AsyncResource):
    """A connected stream socket (TCP or Unix), read by a poller. Owns the socket."""

    def __init__(self, raw: socket.socket, poller: Poller) -> None:
        raw.setblocking(False)
        if raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw = raw
        self.is_continuing = False
        self._poller = poller
        self._receiver: Receiver | None = None
        self._over = trio.Event()
        self._error: BaseException | None = None

    async def read(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._over = trio.Event()
        self._poller.add(self)
        try:
            await self._over.wait()
        finally:
            self._poller.discard(self)
            self._receiver = None
        if self._error is not None:
            raise self._error

    def resume(self) -> None:
        if self._receiver is not None and not self._over.is_set():
            self._poller.add(self)

    # Polled

    def fileno(self) -> int:
        return self.raw.fileno()

    def receive(self) -> Demand:
        receiver = self._receiver
        if receiver is None:
            return Demand.PAUSE
        buffer = receiver.get_buffer()
        try:
            if buffer is None:
                data = self.raw.recv(receiver.receive_bytes_max)
                count = len(data)
            else:
                count = self.raw.recv_into(buffer)
        except BlockingIOError:
            return Demand.READ
        except OSError as error:
            self.end(error)
            return Demand.PAUSE
        demand = receiver.data_received(data) if buffer is None else receiver.buffer_updated(count)
        if not count:
            self.end()
            return Demand.PAUSE
        return demand

    def proceed(self) -> Demand:
        return Demand.PAUSE if self._receiver is None else self._receiver.proceed()

    def end(self, error: BaseException | None = None) -> None:
        self._error = error
        self._over.set()

    # Writing

    def as_stream(self) -> trio.SocketStream:
        """The same socket for those who want Trio's interface; from then on it belongs to the stream."""
        return trio.SocketStream(trio.socket.from_stdlib_socket(self.raw))

    def send_nowait(self, pieces: Pieces) -> int:
        try:
            if len(pieces) == 1:
                return self.raw.send(pieces[0])
            if size_of(pieces) <= _JOINED_BYTES_MAX:
                return self.raw.send(b"".join(pieces))
            return self.raw.sendmsg(pieces[:_PIECES_PER_SEND])
        except BlockingIOError:
            return 0

    async def send_some(self, pieces: Pieces) -> int:
        while True:
            await trio.lowlevel.wait_writable(self.raw)
            if sent := self.send_nowait(pieces):
                return sent

    async def send_eof(self) -> None:
        self.raw.shutdown(socket.SHUT_WR)

    def is_broken(self) -> bool:
        return self.raw.fileno() < 0 or self.raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    async def aclose(self) -> None:
        if self.raw.fileno() >= 0:
            self._poller.discard(self)
            trio.lowlevel.notify_closing(self.raw)
            self.raw.close()
        await trio.lowlevel.checkpoint()


class PulledWire(abc.ABC):
    """The reading half of a wire whose bytes are awaited one piece after the other."""

    def __init__(self) -> None:
        self._resumed = trio.Event()

    @abc.abstractmethod
    async def receive(self, size_max: int) -> bytes:
        """Some bytes, b"" when the peer has finished sending."""

    async def read(self, receiver: Receiver) -> None:
        while True:
            self._resumed = trio.Event()
            buffer = receiver.get_buffer()
            data = await self.receive(receiver.receive_bytes_max if buffer is None else len(buffer))
            if buffer is None:
                demand = receiver.data_received(data)
            else:
                buffer[: len(data)] = data
                demand = receiver.buffer_updated(len(data))
            if not data:
                return
            while demand is Demand.CONTINUE:
                await trio.lowlevel.checkpoint()
                demand = receiver.proceed()
            if demand is Demand.PAUSE:
                await self._resumed.wait()

    def resume(self) -> None:
        self._resumed.set()


class StreamWire(PulledWire):
    """Any Trio stream: TLS, and the in-memory pairs of tests. Takes nothing at once: everything goes through `send_some`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__()
        self._stream = stream

    async def receive(self, size_max: int) -> bytes:
        return bytes(await self._stream.receive_some(size_max))

    def send_nowait(self, pieces: Pieces) -> int:
        return 0

    async def send_some(self, pieces: Pieces) -> int:
        # A part only: it is encrypted at once, on the loop, and a writer's time-out is for what is sent at once.
        data = b"".join(_first_bytes(pieces, _JOINED_BYTES_MAX))
        await self._stream.send_all(data)
        return len(data)

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    def is_broken(self) -> bool:
        return False

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


def size_of(pieces: Pieces) -> int:
    """The bytes in `pieces`."""
    return sum([len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces])


def _first_bytes(pieces: Pieces, size_max: int) -> Iterator[bytes | memoryview]:
    """Up to `size_max` bytes from the beginning of `pieces`; no copies."""
    for piece in pieces:
        view = memoryview(piece).cast("B")[:size_max]
        yield view
        size_max -= len(view)
        if not size_max:
            return


def unsent(pieces: Pieces, sent: int) -> list[bytes | memoryview]:
    """The rest of `pieces` when their first `sent` bytes are gone; no copies."""
    for index, piece in enumerate(pieces):
        size = len(piece) if isinstance(piece, bytes) else piece.nbytes
        if sent < size:
            return [memoryview(piece).cast("B")[sent:], *pieces[index + 1 :]] if sent else list(pieces[index:])
        sent -= size
    return []
