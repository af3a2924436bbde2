"""The bytes of one connection: an interface small enough for a non-blocking socket, for TLS and for Trio's in-memory streams."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

import trio

from tpy.units import KIB

_PIECES_PER_SEND = 512
"""Buffers in one `sendmsg`: below any system's IOV_MAX."""

_JOINED_BYTES_MAX = 64 * KIB
"""Up to this size one copy is cheaper than many buffers."""

Pieces = Sequence[bytes | memoryview]

GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What the methods of a Wire raise when the connection is gone."""


class Wire(Protocol):
    """One task reads and one writes; `send_nowait` may be called from any when none is in `send_some`."""

    async def receive(self, size_max: int) -> bytes:
        """Some bytes, b"" when the peer has finished sending."""
        ...

    def send_nowait(self, pieces: Pieces) -> int:
        """Hand over as much as fits at once; how many bytes (0: the connection is full)."""
        ...

    async def send_some(self, pieces: Pieces) -> int:
        """Wait until something fits and hand it over; how many bytes, at least 1."""
        ...

    async def send_eof(self) -> None:
        """Finish sending, where that can be said apart from closing."""
        ...

    async def aclose(self) -> None:
        """Close at once."""
        ...


class SocketWire(trio.abc.AsyncResource):
    """A connected stream socket (TCP or Unix). Owns it."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        if raw.family != socket.AF_UNIX:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.raw = raw

    def as_stream(self) -> trio.SocketStream:
        """The same socket for those who want Trio's interface; from then on it belongs to the stream."""
        return trio.SocketStream(trio.socket.from_stdlib_socket(self.raw))

    async def receive(self, size_max: int) -> bytes:
        while True:
            # No attempt before the wait: after a request has been read there is rarely more, and waiting is a checkpoint.
            await trio.lowlevel.wait_readable(self.raw)
            try:
                return self.raw.recv(size_max)
            except BlockingIOError:
                continue

    def send_nowait(self, pieces: Pieces) -> int:
        try:
            if len(pieces) == 1:
                return self.raw.send(pieces[0])
            if sum(map(len, pieces)) <= _JOINED_BYTES_MAX:
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

    async def aclose(self) -> None:
        if self.raw.fileno() >= 0:
            trio.lowlevel.notify_closing(self.raw)
            self.raw.close()
        await trio.lowlevel.checkpoint()


class StreamWire:
    """Any Trio stream: TLS, and the in-memory pairs of tests. Takes nothing at once: everything goes through `send_some`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self, size_max: int) -> bytes:
        return bytes(await self._stream.receive_some(size_max))

    def send_nowait(self, pieces: Pieces) -> int:
        return 0

    async def send_some(self, pieces: Pieces) -> int:
        data = b"".join(pieces)
        await self._stream.send_all(data)
        return len(data)

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)
