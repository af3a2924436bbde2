"""Link: messages on a wire, the bytes of a connection between two processes: small enough for a non-blocking socket and for
Trio's in-memory streams. What is sent within one turn of the loop is written together."""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import trio

from tpy.limits.remote import REMOTE_RECEIVE_BYTES
from tpy.remote.core.framing import FrameSplitter, ProtocolError
from tpy.remote.core.messages import Reader, encode
from tpy.sending import Pieces, SendingSocket, unsent
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


class Link:
    """One instance, one `read` and one `write`, each in a task of its owner. `accepted` are the messages of the peer; `stall_s`
    is how long it may take nothing of what there is for it."""

    def __init__(self, wire: Wire, accepted: Mapping[int, type[msgspec.Struct]], *, stall_s: float = math.inf) -> None:
        self._wire = wire
        self._reader = Reader(accepted)
        self._stall_s = stall_s
        self._unsent: list[bytes | memoryview] = []
        self._later: deque[tuple[Callable[[], bytes], list[bytes | memoryview]]] = deque()
        """Frames that are to be made, each with those behind it."""
        self._closing = False
        self._writer = trio.lowlevel.ParkingLot()
        self.unsent_bytes = 0
        """Bytes that the peer has not taken."""

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, in this turn of the loop. Raises ValueError for one that has no form, and sends nothing."""
        self.send_encoded(encode(message))

    def send_encoded(self, frame: bytes) -> None:
        """The same for a frame."""
        (self._later[-1][1] if self._later else self._unsent).append(frame)
        self.unsent_bytes += len(frame)
        if self._writer:
            self._writer.unpark_all()

    def send_later(self, make: Callable[[], bytes]) -> None:
        """The same for a frame that a thread is to make, being too long for the loop: what is sent from now on is behind it.
        `make` raises nothing."""
        self._later.append((make, []))
        self._writer.unpark_all()

    def finish(self) -> None:
        """No more messages: `write` ends when all is written."""
        self._closing = True
        self._writer.unpark_all()

    async def read(
        self,
        handle: Callable[[msgspec.Struct], None],
        job_of: Callable[[msgspec.Struct], Callable[[], msgspec.Struct] | None] = lambda message: None,
    ) -> None:
        """Call `handle` with every message until the peer is at its end. When `job_of` returns a job for a message, a thread does
        it first, and `handle` gets what it returns. Raises ProtocolError for anything but a message, and GONE."""
        splitter = FrameSplitter()
        while data := await self._wire.receive():
            for kind, payload in splitter.feed(data):
                message = self._reader.read(kind, payload)
                job = job_of(message)
                handle(message if job is None else await trio.to_thread.run_sync(job))

    async def write(self) -> None:
        """Write what is sent until `finish`. Raises ProtocolError when the peer takes nothing for too long, and GONE."""
        while True:
            if self._unsent:
                sent = self._wire.send_nowait(self._unsent)
                if not sent:
                    sent = await self._send_some()
                self._drop(sent)
            elif self._later:
                frame = await trio.to_thread.run_sync(self._later[0][0])
                self._unsent = [frame, *self._later.popleft()[1]]
                self.unsent_bytes += len(frame)
            elif self._closing:
                return
            else:
                await self._writer.park()

    async def _send_some(self) -> int:
        with trio.move_on_after(self._stall_s) as patience:
            return await self._wire.send_some(self._unsent)
        if patience.cancelled_caught:
            raise ProtocolError(f"takes none of {self.unsent_bytes} bytes for {self._stall_s:g} seconds")
        return 0

    def _drop(self, sent: int) -> None:
        """`sent` bytes have been written."""
        self.unsent_bytes -= sent
        self._unsent = unsent(self._unsent, sent)
