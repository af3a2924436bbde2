"""Link: messages on a wire. What is sent within one turn of the loop is written together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping

import msgspec
import trio

from tpy.remote.core.errors import ProtocolError
from tpy.remote.core.framing import FrameSplitter
from tpy.remote.core.messages import Reader, encode
from tpy.remote.wire import Wire
from tpy.sending import unsent


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
        it first, and `handle` gets what it returns. Raises ProtocolError for what is none, and GONE."""
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
