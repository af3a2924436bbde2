"""The bytes of a connection between two processes: small enough for a non-blocking socket and for Trio's in-memory streams."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

import trio

from tpy.limits import REMOTE_RECEIVE_BYTES
from tpy.units import MIB

_PIECES_PER_SEND = 256
"""Buffers in one `sendmsg`: below any system's IOV_MAX."""

_JOINED_BYTES_MAX = MIB
"""Up to this size one copy is cheaper than many buffers."""

_SOCKET_BUFFER_BYTES = MIB
"""The size of the kernel's buffer: the responses of a whole turn, so that writing rarely has to wait."""

Pieces = Sequence[bytes | memoryview]

GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""The errors that the methods of a Wire raise when the other process is gone."""


class Wire(Protocol):
    """One task reads and one writes."""

    async def receive(self) -> bytes:
        """Some bytes, b"" at the end."""
        ...

    def send_nowait(self, pieces: Pieces) -> int:
        """Hand over as much as fits at once; how many bytes (0: the connection is full)."""
        ...

    async def send_some(self, pieces: Pieces) -> int:
        """Wait until something fits and hand it over; how many bytes, at least 1."""
        ...

    async def aclose(self) -> None:
        """Close at once."""
        ...


class SocketWire:
    """A connected Unix socket. Owns it."""

    def __init__(self, raw: socket.socket) -> None:
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        self._raw = raw

    async def receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._raw)
            try:
                return self._raw.recv(REMOTE_RECEIVE_BYTES)
            except BlockingIOError:
                continue

    def send_nowait(self, pieces: Pieces) -> int:
        try:
            if len(pieces) == 1:
                return self._raw.send(pieces[0])
            if sum(map(len, pieces)) <= _JOINED_BYTES_MAX:
                return self._raw.send(b"".join(pieces))
            return self._raw.sendmsg(pieces[:_PIECES_PER_SEND])
        except BlockingIOError:
            return 0

    async def send_some(self, pieces: Pieces) -> int:
        while True:
            await trio.lowlevel.wait_writable(self._raw)
            if sent := self.send_nowait(pieces):
                return sent

    async def aclose(self) -> None:
        if self._raw.fileno() >= 0:
            trio.lowlevel.notify_closing(self._raw)
            self._raw.close()
        await trio.lowlevel.checkpoint()


class StreamWire:
    """Any Trio stream, for tests. Takes nothing at once: everything goes through `send_some`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(REMOTE_RECEIVE_BYTES))

    def send_nowait(self, pieces: Pieces) -> int:
        return 0

    async def send_some(self, pieces: Pieces) -> int:
        data = b"".join(pieces)
        await self._stream.send_all(data)
        return len(data)

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)
