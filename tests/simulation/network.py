"""Connections in memory. Their buffers are small, so that writers meet full ones, and either side may vanish."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from tests.streams import PulledWire


class _Pipe:
    """One direction. `capacity` bytes fit; the rest has to wait."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._data = bytearray()
        self._finished = False
        self._broken = False
        self._readers = trio.lowlevel.ParkingLot()
        self._writers = trio.lowlevel.ParkingLot()

    @property
    def broken(self) -> bool:
        return self._broken

    def write(self, data: bytes | memoryview) -> int:
        """As much as fits."""
        if self._broken or self._finished:
            raise trio.BrokenResourceError("the peer is gone")
        size = min(len(data), self._capacity - len(self._data))
        if size > 0:
            self._data += data[:size]
            self._readers.unpark_all()
        return max(size, 0)

    async def wait_room(self) -> None:
        await trio.lowlevel.checkpoint()
        while len(self._data) >= self._capacity and not self._broken:
            await self._writers.park()

    async def read(self, size_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._data and not self._finished and not self._broken:
            await self._readers.park()
        if self._broken:
            raise trio.BrokenResourceError("the peer is gone")
        data = bytes(self._data[:size_max])
        del self._data[:size_max]
        self._writers.unpark_all()
        return data

    def finish(self) -> None:
        """No more will be written."""
        self._finished = True
        self._readers.unpark_all()

    def shatter(self) -> None:
        """A reset: both sides fail at once, and what was under way is lost."""
        self._broken = True
        self._readers.unpark_all()
        self._writers.unpark_all()


class ServerWire(PulledWire):
    """The server's end: a Wire of the frontends' transport."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        super().__init__()
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self, size_max: int) -> bytes:
        return await self._incoming.read(size_max)

    def send_nowait(self, pieces: Sequence[bytes | memoryview]) -> int:
        sent = 0
        for piece in pieces:
            written = self._outgoing.write(piece)
            sent += written
            if written < len(piece):
                break
        return sent

    async def send_some(self, pieces: Sequence[bytes | memoryview]) -> int:
        while True:
            await self._outgoing.wait_room()
            if sent := self.send_nowait(pieces):
                return sent

    async def send_eof(self) -> None:
        self._outgoing.finish()

    def is_broken(self) -> bool:
        return self._outgoing.broken

    async def aclose(self) -> None:
        # What was written before still arrives, as it does from a socket that is closed in good order.
        self._outgoing.finish()
        self._incoming.shatter()
        await trio.lowlevel.checkpoint()


class ClientStream(trio.abc.HalfCloseableStream):
    """The client's end."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._sending = trio.StrictFIFOLock()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._incoming.read(max_bytes or 65536)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        async with self._sending:
            while rest:
                await self._outgoing.wait_room()
                rest = rest[self._outgoing.write(rest) :]

    async def wait_send_all_might_not_block(self) -> None:
        await self._outgoing.wait_room()

    async def send_eof(self) -> None:
        self._outgoing.finish()
        await trio.lowlevel.checkpoint()

    def vanish(self) -> None:
        """A reset, as of a client whose process died."""
        self._outgoing.shatter()
        self._incoming.shatter()

    async def aclose(self) -> None:
        self._outgoing.finish()
        self._incoming.shatter()
        await trio.lowlevel.checkpoint()


def connection(*, to_server: int, to_client: int) -> tuple[ClientStream, ServerWire]:
    """A connection whose buffers hold so many bytes each way."""
    up, down = _Pipe(to_server), _Pipe(to_client)
    return ClientStream(down, up), ServerWire(up, down)
