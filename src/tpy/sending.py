"""Sending the pieces of messages over a socket that does not block."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import trio

_PIECES_PER_SEND = 512
"""Buffers in one `sendmsg`: below any system's IOV_MAX."""

Pieces = Sequence[bytes | memoryview]

GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""The errors of a connection that is gone."""


class SendingSocket:
    """The sending half of a connected socket. Owns it. Up to `joined_bytes_max` one copy is cheaper than many buffers. Any method
    may raise one of GONE."""

    def __init__(self, raw: socket.socket, *, joined_bytes_max: int) -> None:
        raw.setblocking(False)
        self.raw = raw
        self._joined_bytes_max = joined_bytes_max

    def send_nowait(self, pieces: Pieces) -> int:
        """Send as much as fits at once; returns the number of bytes (0: the connection is full)."""
        try:
            if len(pieces) == 1:
                return self.raw.send(pieces[0])
            if size_of(pieces) <= self._joined_bytes_max:
                return self.raw.send(b"".join(pieces))
            return self.raw.sendmsg(pieces[:_PIECES_PER_SEND])
        except BlockingIOError:
            return 0

    async def send_some(self, pieces: Pieces) -> int:
        """Wait until something fits and send it; returns the number of bytes, at least 1."""
        while True:
            await trio.lowlevel.wait_writable(self.raw)
            if sent := self.send_nowait(pieces):
                return sent

    def close(self) -> None:
        """Close at once. Idempotent."""
        if self.raw.fileno() >= 0:
            trio.lowlevel.notify_closing(self.raw)
            self.raw.close()

    async def aclose(self) -> None:
        """Close at once. Idempotent."""
        self.close()
        await trio.lowlevel.checkpoint()


def size_of(pieces: Pieces) -> int:
    """The bytes in `pieces`."""
    return sum([len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces])


def unsent(pieces: Pieces, sent: int) -> list[bytes | memoryview]:
    """The rest of `pieces` when their first `sent` bytes are gone; no copies."""
    for index, piece in enumerate(pieces):
        size = len(piece) if isinstance(piece, bytes) else piece.nbytes
        if sent < size:
            return [memoryview(piece).cast("B")[sent:], *pieces[index + 1 :]] if sent else list(pieces[index:])
        sent -= size
    return []
