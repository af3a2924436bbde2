"""TlsWire: TLS over a socket, read by the reactor as one in the clear is. Most servers do not import it."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from typing import cast

import trio

from tpy.demand import Demand
from tpy.frontends.transport.receiver import Receiver
from tpy.frontends.transport.turns import LoopTurns
from tpy.frontends.transport.wire import SocketWire
from tpy.limits import TLS_CLOSE_S_MAX
from tpy.sending import Pieces
from tpy.units import KIB

_RECEIVE_BYTES = 32 * KIB
"""Bytes that are taken from the socket at once."""

_ENCRYPTED_BYTES_MAX = 64 * KIB
"""Bytes that are encrypted in one; and a writer's time-out is for these."""

_UNSENT_BYTES_MAX = 4 * _ENCRYPTED_BYTES_MAX
"""Encrypted bytes that the client has not taken. Beyond a writer's part they are answers to what it asks of TLS itself."""


class TlsWire(SocketWire):
    """The server's side. It cannot finish sending apart from closing, which tells the peer (close_notify); but HTTP clients close
    without telling. Takes the socket of a wire in the clear, which is not to be used any more.

    A client that is sent something while it has sent half of a key update is cut off: OpenSSL encrypts nothing then."""

    def __init__(self, clear: SocketWire, turns: LoopTurns, context: ssl.SSLContext) -> None:
        super().__init__(clear.given_away(), turns.reactor)
        self._turns = turns
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.certificate = self._tls.getpeercert
        self._has_ended = False
        """The client sends nothing more; without close_notify, perhaps."""
        self._unsent = b""
        """Encrypted, and not sent."""
        self._encrypted = 0
        """The bytes of a writer in it."""
        self._demand = Demand.READ
        """The last answer of the receiver."""

    @property
    def protocol(self) -> str | None:
        """The protocol that both sides agreed on (ALPN), if any."""
        return self._tls.selected_alpn_protocol()

    async def handshake(self) -> None:
        """To be called before all else. Raises one of GONE where the client has left, or speaks no TLS that is served."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush_all()
            except ssl.SSLError:
                self._flush()  # which says why
                raise
            else:
                self._flush()
                return
            await self.wait_readable()
            if self._turns.is_long:  # very many clients can ask for this work in one turn of the loop
                await self._turns.wait()
            with contextlib.suppress(BlockingIOError):
                self._feed(self.raw.recv(_RECEIVE_BYTES))
            if self._has_ended:
                raise trio.BrokenResourceError("the client has left during the handshake")

    # Reading

    def _begin(self, receiver: Receiver) -> None:
        self._end_pause()
        super()._begin(receiver)
        self._go_on()  # the turn may have been long

    def resume(self) -> None:
        self._end_pause()
        super().resume()
        self._go_on()

    def _end_pause(self) -> None:
        if self._demand is Demand.PAUSE:  # a receiver that has more to do keeps its turn
            self._demand = Demand.READ

    def _go_on(self) -> None:
        """Have what was received already handed on: the kernel does not say that it is there."""
        if self._over is not None and not self._over.is_set() and self._demand is Demand.READ and self._has_more:
            self._reactor.continue_soon(self)

    @property
    def _has_more(self) -> bool:
        return self._incoming.pending > 0 or self._tls.pending() > 0

    def receive(self) -> Demand:
        try:
            self._feed(self.raw.recv(_RECEIVE_BYTES))
        except BlockingIOError:
            if not self._has_more:
                return Demand.READ
        except OSError as error:
            self.end(error)
            return Demand.PAUSE
        return self._hand_on()

    def proceed(self) -> Demand:
        if self._receiver is None or self._demand is Demand.PAUSE or self._over is None or self._over.is_set():
            return Demand.PAUSE
        if self._demand is Demand.CONTINUE:
            self._demand = self._receiver.proceed()
            if self._demand is not Demand.READ:
                return self._demand
        return self._hand_on()

    def _feed(self, data: bytes) -> None:
        if data:
            self._incoming.write(data)
        else:
            self._has_ended = True  # which OpenSSL is not told: it would refuse to send the answers that are owed

    def _hand_on(self) -> Demand:
        """Decrypt what was received, as long as the receiver takes it."""
        while (receiver := self._receiver) is not None:
            buffer = receiver.get_buffer()
            try:
                if buffer is None:
                    data = self._tls.read(receiver.receive_bytes_max)
                    count = len(data)
                else:
                    data = b""
                    count = cast(int, self._tls.read(len(buffer), buffer))  # its number, which typeshed does not know
            except ssl.SSLWantReadError:
                if not self._has_ended:
                    return self._answered()
                data, count = b"", 0
            except ssl.SSLZeroReturnError:
                data, count = b"", 0
            except ssl.SSLError as error:
                with contextlib.suppress(OSError):
                    self._flush()  # which says why
                self.end(error)
                return Demand.PAUSE
            self._demand = receiver.data_received(data) if buffer is None else receiver.buffer_updated(count)
            if not count:
                self.end()
                return Demand.PAUSE
            if self._demand is not Demand.READ:
                return self._demand
            if not (self._has_more or self._has_ended):
                return self._answered()
            if self._turns.is_long:  # tiny records are many: a receiver is bounded for each call, not for all of these
                return Demand.CONTINUE
        return Demand.PAUSE

    def _answered(self) -> Demand:
        """Send what TLS itself answers."""
        if self._outgoing.pending:
            try:
                self._flush()
            except OSError as error:
                self.end(error)
                return Demand.PAUSE
            if len(self._unsent) > _UNSENT_BYTES_MAX:
                self.end(trio.BrokenResourceError("the client takes no answers of TLS"))
                return Demand.PAUSE
        return Demand.READ

    # Writing

    def send_nowait(self, pieces: Pieces) -> int:
        if not self._encrypted and (not self._unsent or self._flush()):
            self._encrypted = self._tls.write(b"".join(first_bytes(pieces, _ENCRYPTED_BYTES_MAX)))
        if not self._flush():
            return 0  # these come again, and are not encrypted again
        sent, self._encrypted = self._encrypted, 0
        return sent

    def _flush(self) -> bool:
        """Send what is encrypted, as far as it fits. Returns whether all of it did."""
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
        if self._unsent:
            with contextlib.suppress(BlockingIOError):
                self._unsent = self._unsent[self.raw.send(self._unsent) :]
        return not self._unsent

    async def _flush_all(self) -> None:
        while not self._flush():
            self._waited_for = True
            await trio.lowlevel.wait_writable(self.raw)

    async def send_eof(self) -> None:
        """Nothing: see above."""

    async def aclose(self) -> None:
        try:
            with trio.move_on_after(TLS_CLOSE_S_MAX, shield=True), contextlib.suppress(OSError):
                with contextlib.suppress(ssl.SSLError):  # what the client says to it, or has sent besides, is not waited for
                    self._tls.unwrap()
                await self._flush_all()
        finally:
            self.close()


def first_bytes(pieces: Pieces, size_max: int) -> Iterator[bytes | memoryview]:
    """Up to `size_max` bytes from the beginning of `pieces`; no copies."""
    for piece in pieces:
        view = memoryview(piece).cast("B")[:size_max]
        yield view
        size_max -= len(view)
        if not size_max:
            return
