"""The bytes of one connection: who receives them, and an interface for sending that fits a socket, TLS and Trio's streams."""

from __future__ import annotations

import abc
import socket
import ssl
from typing import Protocol

import trio

from tpy.frontends.transport.poller import Poller
from tpy.frontends.transport.receiver import Demand, Receiver
from tpy.frontends.transport.turns import LoopTurns
from tpy.limits import TLS_CLOSE_S_MAX
from tpy.sending import GONE, Pieces, SendingSocket, SendingStream
from tpy.units import KIB

_JOINED_BYTES_MAX = 64 * KIB
_PACED_BYTES = 64 * KIB


class Wire(Protocol):
    """One task reads and one writes; `send_nowait` may be called from any task while no task is in `send_some`, `resume` from
    any. Any method but `resume` may raise one of GONE."""

    async def read(self, receiver: Receiver) -> None:
        """Hand what arrives to `receiver` until the peer has finished sending. May be cancelled and called again: no byte is
        lost. A receiver that paused is asked anew."""
        ...

    def read_now(self, receiver: Receiver) -> None:
        """Hand it what has arrived, as far as that needs no waiting. To be followed by `read`."""
        ...

    def resume(self) -> None:
        """Read on after `Demand.PAUSE`."""
        ...

    def stop_reading(self) -> None:
        """Have the present `read` return."""
        ...

    def send_nowait(self, pieces: Pieces) -> int:
        """Send as much as fits at once; returns the number of bytes (0: the connection is full)."""
        ...

    async def send_some(self, pieces: Pieces) -> int:
        """Wait until something fits and send it; returns the number of bytes, at least 1."""
        ...

    async def send_eof(self) -> None:
        """Finish sending, where that can be said apart from closing."""
        ...

    def is_broken(self) -> bool:
        """Returns whether the peer is known to be gone, also when it had finished sending before."""
        ...

    async def aclose(self) -> None:
        """Close at once, also when it is cancelled; TLS within TLS_CLOSE_S_MAX."""
        ...


class SocketWire(SendingSocket, trio.abc.AsyncResource):
    """A connected stream socket (TCP or Unix), read by a poller. Owns the socket."""

    def __init__(self, raw: socket.socket, poller: Poller) -> None:
        super().__init__(raw, joined_bytes_max=_JOINED_BYTES_MAX)
        self.is_continuing = False
        self._waited_for = False
        """Trio may know the socket: a task has waited for it."""
        self._poller = poller
        self._receiver: Receiver | None = None
        self._over: trio.Event | None = None
        self._error: BaseException | None = None

    async def read(self, receiver: Receiver) -> None:
        if self._over is None or (self._over.is_set() and self._error is None):  # else it was begun, and may have ended
            self._begin(receiver)
        try:
            if self._over is not None and not self._over.is_set():
                await self._over.wait()
        finally:
            self._poller.discard(self)
            self._receiver = self._over = None
        if self._error is not None:
            raise self._error

    def read_now(self, receiver: Receiver) -> None:
        self._begin(receiver)
        if self._error is not None and not isinstance(self._error, GONE):
            raise self._error  # a bug in the receiver, which is told also where nothing more would be read

    def _begin(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._over = trio.Event()
        self._poller.begin(self)

    def resume(self) -> None:
        if self._over is not None and not self._over.is_set():
            self._poller.add(self)

    def stop_reading(self) -> None:
        if self._over is not None:
            self._over.set()

    # Polled

    def fileno(self) -> int:
        return self.raw.fileno()

    def receive(self) -> Demand:
        receiver = self._receiver
        if receiver is None:
            return Demand.PAUSE
        buffer = receiver.get_buffer()
        try:
            if buffer is None:
                data = self.raw.recv(receiver.receive_bytes_max)
                count = len(data)
            else:
                count = self.raw.recv_into(buffer)
        except BlockingIOError:
            return Demand.READ
        except OSError as error:
            self.end(error)
            return Demand.PAUSE
        demand = receiver.data_received(data) if buffer is None else receiver.buffer_updated(count)
        if not count:
            self.end()
            return Demand.PAUSE
        return demand

    def proceed(self) -> Demand:
        return Demand.PAUSE if self._receiver is None else self._receiver.proceed()

    def end(self, error: BaseException | None = None) -> None:
        self._error = error
        self.stop_reading()

    # Writing

    def as_stream(self, turns: LoopTurns) -> PacedStream:
        """The same socket for callers that want Trio's interface; from then on it belongs to the stream."""
        self._waited_for = True
        return PacedStream(self.raw, turns)

    async def wait_readable(self) -> None:
        """Wait for bytes, before the poller reads."""
        self._waited_for = True
        await trio.lowlevel.wait_readable(self.raw)

    async def send_some(self, pieces: Pieces) -> int:
        self._waited_for = True
        return await super().send_some(pieces)

    async def send_eof(self) -> None:
        self.raw.shutdown(socket.SHUT_WR)

    def is_broken(self) -> bool:
        return _is_broken(self.raw)

    def close(self) -> None:
        if self.raw.fileno() >= 0:
            self._poller.discard(self)
        if self._waited_for:
            super().close()
        else:
            self.raw.close()

    async def aclose(self) -> None:
        self.close()


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
        return _is_broken(self._raw)

    async def aclose(self) -> None:
        with trio.move_on_after(TLS_CLOSE_S_MAX, shield=True):
            await self._stream.aclose()
        await super().aclose()


def _is_broken(raw: socket.socket) -> bool:
    return raw.fileno() < 0 or raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
