"""The bytes of one connection: an interface small enough for a non-blocking socket and for Trio's in-memory streams."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

import trio

RECEIVE_BYTES = 64 * 1024
_PIECES_PER_SEND = 64
"""Buffers in one `sendmsg`: far below any system's IOV_MAX, enough for any response we write."""


class Wire(Protocol):
    """One owner reads, one owner writes; `close` may come at any time from the same loop. OSError from any method, or
    trio.BrokenResourceError and trio.ClosedResourceError, mean that the connection is gone."""

    async def receive(self) -> bytes:
        """Some bytes, b"" when the peer has finished sending."""
        ...

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill the beginning of `buffer`; how many bytes, 0 when the peer has finished sending."""
        ...

    def send_nowait(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Hand over as much as fits at once; how many bytes (0: the connection is full)."""
        ...

    async def send_some(self, pieces: Sequence[bytes | memoryview]) -> int:
        """Wait until something fits and hand it over; how many bytes, at least 1."""
        ...

    async def send_eof(self) -> None:
        """Finish sending; the peer sees the end of the stream."""
        ...

    def is_broken(self) -> bool:
        """Whether the peer is known to be gone, also when it had finished sending before."""
        ...

    async def aclose(self) -> None:
        """Close at once."""
        ...


class SocketWire(trio.abc.AsyncResource):
    """A connected stream socket (TCP or Unix). Owns it."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        self.raw = raw
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(raw))
        """The same socket for those who want Trio's interface instead; never both."""

    async def receive(self) -> bytes:
        while True:
            # No attempt before the wait: after a request has been read there is rarely more, and waiting is a checkpoint.
            await trio.lowlevel.wait_readable(self.raw)
            try:
                return self.raw.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            await trio.lowlevel.wait_readable(self.raw)
            try:
                return self.raw.recv_into(buffer)
            except BlockingIOError:
                continue

    def send_nowait(self, pieces: Sequence[bytes | memoryview]) -> int:
        try:
            if len(pieces) == 1:
                return self.raw.send(pieces[0])
            return self.raw.sendmsg(pieces[:_PIECES_PER_SEND])
        except BlockingIOError:
            return 0

    async def send_some(self, pieces: Sequence[bytes | memoryview]) -> int:
        while True:
            await trio.lowlevel.wait_writable(self.raw)
            if sent := self.send_nowait(pieces):
                return sent

    async def send_eof(self) -> None:
        self.raw.shutdown(socket.SHUT_WR)

    def is_broken(self) -> bool:
        return self.raw.fileno() < 0 or self.raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    async def aclose(self) -> None:
        await self.stream.aclose()


class StreamWire:
    """Any Trio stream, above all the in-memory pairs of tests. Takes nothing at once: everything goes through `send_some`."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(RECEIVE_BYTES))

    async def receive_into(self, buffer: memoryview) -> int:
        data = await self._stream.receive_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def send_nowait(self, pieces: Sequence[bytes | memoryview]) -> int:
        return 0

    async def send_some(self, pieces: Sequence[bytes | memoryview]) -> int:
        await self._stream.send_all(pieces[0])
        return len(pieces[0])

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    def is_broken(self) -> bool:
        return False

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)
