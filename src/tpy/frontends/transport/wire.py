"""The bytes of one connection: who receives them, and an interface that fits a socket, TLS and the streams of tests."""

from __future__ import annotations

import socket
from typing import Protocol

import trio

from tpy.demand import Demand
from tpy.frontends.transport.receiver import Receiver
from tpy.reactor import Reactor
from tpy.sending import GONE, Pieces, SendingSocket
from tpy.units import KIB

_JOINED_BYTES_MAX = 64 * KIB


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
        """Send as much as fits at once; returns the number of bytes (0: the connection is full). What did not fit comes first in
        what is sent next."""
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
    """A connected stream socket (TCP or Unix), read by a reactor. Owns the socket."""

    def __init__(self, raw: socket.socket, reactor: Reactor) -> None:
        super().__init__(raw, joined_bytes_max=_JOINED_BYTES_MAX)
        self.is_continuing = False
        self._waited_for = False
        """Trio may know the socket: a task has waited for it."""
        self._reactor = reactor
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
            self._reactor.discard(self)
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
        self._reactor.begin(self)

    def resume(self) -> None:
        if self._over is not None and not self._over.is_set():
            self._reactor.add(self)

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

    def given_away(self) -> socket.socket:
        """The same socket for another wire; from then on it belongs to that."""
        self._waited_for = True
        return self.raw

    async def wait_readable(self) -> None:
        """Wait for bytes, before the reactor reads."""
        self._waited_for = True
        await trio.lowlevel.wait_readable(self.raw)

    async def send_some(self, pieces: Pieces) -> int:
        self._waited_for = True
        return await super().send_some(pieces)

    async def send_eof(self) -> None:
        self.raw.shutdown(socket.SHUT_WR)

    def is_broken(self) -> bool:
        return is_broken_socket(self.raw)

    def close(self) -> None:
        if self.raw.fileno() >= 0:
            self._reactor.discard(self)
        if self._waited_for:
            super().close()
        else:
            self.raw.close()

    async def aclose(self) -> None:
        self.close()


def is_broken_socket(raw: socket.socket) -> bool:
    """Returns whether the peer is known to be gone."""
    return raw.fileno() < 0 or raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
