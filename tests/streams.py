"""Wires over Trio's streams, as in-memory pairs: their bytes are awaited one piece after the other."""

from __future__ import annotations

import abc

import trio

from tpy.demand import Demand
from tpy.frontends.transport.receiver import Receiver
from tpy.frontends.transport.tls_wire import first_bytes
from tpy.sending import Pieces
from tpy.units import KIB

STREAM_BYTES_MAX = 64 * KIB
"""Bytes that are sent over a stream at once."""


class SendingStream:
    """The sending half of a stream of Trio's. Owns it. Takes nothing at once: everything goes through `send_some`."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream

    def send_nowait(self, pieces: Pieces) -> int:
        return 0

    async def send_some(self, pieces: Pieces) -> int:
        data = b"".join(first_bytes(pieces, STREAM_BYTES_MAX))
        await self.stream.send_all(data)
        return len(data)

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self.stream)


class PulledWire(abc.ABC):
    """The reading half of a wire whose bytes are awaited one piece after the other."""

    def __init__(self) -> None:
        self._resumed = trio.Event()
        self._reading = trio.CancelScope()

    @abc.abstractmethod
    async def receive(self, size_max: int) -> bytes:
        """Some bytes, b"" when the peer has finished sending."""

    async def read(self, receiver: Receiver) -> None:
        with trio.CancelScope() as self._reading:
            await self._read(receiver)

    async def _read(self, receiver: Receiver) -> None:
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

    def read_now(self, receiver: Receiver) -> None:
        """Nothing: all of it is awaited."""
        return

    def resume(self) -> None:
        self._resumed.set()

    def stop_reading(self) -> None:
        self._reading.cancel()


class StreamWire(SendingStream, PulledWire):
    """Any Trio stream: the in-memory pairs of tests."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        SendingStream.__init__(self, stream)
        PulledWire.__init__(self)

    async def receive(self, size_max: int) -> bytes:
        return bytes(await self.stream.receive_some(size_max))

    async def send_eof(self) -> None:
        if isinstance(self.stream, trio.abc.HalfCloseableStream):
            await self.stream.send_eof()

    def is_broken(self) -> bool:
        return False

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            await super().aclose()
