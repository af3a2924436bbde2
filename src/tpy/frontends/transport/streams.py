"""Wires whose bytes are awaited: TLS, and the streams of tests. Most servers do not import it: their ports are in the clear."""

from __future__ import annotations

import abc
import socket
import ssl

import trio

from tpy.demand import Demand
from tpy.frontends.transport.receiver import Receiver
from tpy.frontends.transport.turns import LoopTurns
from tpy.frontends.transport.wire import is_broken_socket
from tpy.limits import TLS_CLOSE_S_MAX
from tpy.sending import SendingStream
from tpy.units import KIB

_PACED_BYTES = 64 * KIB


class PacedStream(trio.abc.Stream):
    """A socket whose bytes are handed on in turn: decrypting them, or ending a connection, is work that very many clients can ask
    for in one turn of the loop."""

    def __init__(self, raw: socket.socket, turns: LoopTurns) -> None:
        self._raw = raw
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(raw))
        self._turns = turns

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._raw)
            if self._turns.is_long:
                await self._turns.wait()
            try:
                return self._raw.recv(max_bytes or _PACED_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


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
        return bytes(await self._stream.receive_some(size_max))

    async def send_eof(self) -> None:
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    def is_broken(self) -> bool:
        return False

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            await super().aclose()


class TlsWire(StreamWire):
    """TLS over the socket `raw`. It cannot finish sending apart from closing, which tells the peer (close_notify)."""

    def __init__(self, stream: trio.SSLStream[PacedStream], raw: socket.socket) -> None:
        super().__init__(stream)
        self._raw = raw

    async def receive(self, size_max: int) -> bytes:
        try:
            return await super().receive(size_max)
        except trio.BrokenResourceError as error:
            if isinstance(error.__cause__, ssl.SSLEOFError):  # HTTP clients close without telling
                return b""
            raise

    def is_broken(self) -> bool:
        return is_broken_socket(self._raw)

    async def aclose(self) -> None:
        with trio.move_on_after(TLS_CLOSE_S_MAX, shield=True):
            await self._stream.aclose()
        await super().aclose()
