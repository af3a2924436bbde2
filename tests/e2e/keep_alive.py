"""A lean HTTP/1.1 client on Trio that keeps its connections, for tests that send many requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

_READ_BYTES = 65_536


class Reply(NamedTuple):
    """An answer with a Content-Length body."""

    status: int
    body: bytes


class KeepAliveConnection:
    """One connection, one request at a time. It is never opened again: a server that closes it fails the test."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = b""

    async def post(self, path: str, body: bytes = b"") -> Reply:
        """Send a request and read its answer. Raises EOFError when the server closes the connection."""
        return await self.send(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body))

    async def send(self, request: bytes) -> Reply:
        """Send a request that was written out before."""
        await self._stream.send_all(request)
        while b"\r\n\r\n" not in self._buffer:
            await self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(self._buffer) < length:
            await self._more()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return Reply(int(lines[0].split()[1]), body)

    async def _more(self) -> None:
        received = await self._stream.receive_some(_READ_BYTES)
        if not received:
            raise EOFError("the server closed a connection that was in use")
        self._buffer += received


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[KeepAliveConnection]:
    """A connection to host:port."""
    host, port = address.split(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield KeepAliveConnection(stream)
