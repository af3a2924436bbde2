"""The bytes of a connection between two processes: small enough for a non-blocking socket and for Trio's in-memory streams."""

from __future__ import annotations

import socket
from typing import Protocol

import trio

from tpy.limits import REMOTE_RECEIVE_BYTES
from tpy.sending import Pieces, SendingSocket, SendingStream
from tpy.units import MIB

_SOCKET_BUFFER_BYTES = MIB
"""The size of the kernel's buffer: the responses of a whole turn, so that writing rarely has to wait."""


class Wire(Protocol):
    """One task reads and one writes. Any method may raise one of GONE."""

    async def receive(self) -> bytes:
        """Some bytes, b"" at the end."""
        ...

    def send_nowait(self, pieces: Pieces) -> int:
        """Hand over as much as fits at once; returns the number of bytes (0: the connection is full)."""
        ...

    async def send_some(self, pieces: Pieces) -> int:
        """Wait until something fits and hand it over; returns the number of bytes, at least 1."""
        ...

    async def aclose(self) -> None:
        """Close at once."""
        ...


class SocketWire(SendingSocket):
    """A connected Unix socket. Owns it."""

    def __init__(self, raw: socket.socket) -> None:
        super().__init__(raw, joined_bytes_max=MIB)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)

    async def receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self.raw)
            try:
                return self.raw.recv(REMOTE_RECEIVE_BYTES)
            except BlockingIOError:
                continue


class StreamWire(SendingStream):
    """Any Trio stream, for tests."""

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(REMOTE_RECEIVE_BYTES))
