"""StreamExchange: a call whose messages come and go one by one, with a task for its handler."""

from __future__ import annotations

from collections import deque

import trio
from grpclib.const import Status

from tpy.frontends.grpc.transport.call import Metadata, Parts, StreamHandler
from tpy.frontends.grpc.transport.compression import INLINE_PLAIN_BYTES_MAX
from tpy.frontends.grpc.transport.core.calls import (
    PREFIX_BYTES,
    Fields,
    FramingFault,
    Message,
    MessageReader,
    RequestHead,
    prefix,
    response_headers,
    trailers,
    trailers_only,
)
from tpy.frontends.grpc.transport.exchange import CallState, Exchange, ExchangeConnection, flatten, guard
from tpy.limits import (
    GRPC_CONNECTION_MESSAGES_PER_TURN_MAX,
    GRPC_MANY_STREAMS,
    GRPC_STREAM_MESSAGES_PER_TURN_MAX,
    GRPC_STREAM_SEND_BYTES_MAX,
)
from tpy.units import KIB

_MESSAGES_MAX = 256
"""Messages that wait, made of the bytes that have arrived."""

_PIECE_BYTES = 4 * KIB
"""Smaller pieces of bytes are put together while they wait."""


class StreamExchange(Exchange):
    """Implements StreamCall. Back-pressure: what has arrived and was not taken is not credited to the client's window, except
    for a message that is under way while none waits; `send_message` waits for the queue of the stream."""

    __slots__ = (
        "_begun",
        "_debt",
        "_encoding",
        "_half_closed",
        "_reader",
        "_receivers",
        "_scope",
        "_senders",
        "_taken",
        "arrived",
        "uncut",
    )

    def __init__(self, link: ExchangeConnection, stream_id: int, head: RequestHead, deadline_ns: int | None) -> None:
        super().__init__(link, stream_id, head, deadline_ns)
        self._reader = MessageReader(link.message_bytes_max)
        self.arrived: deque[Message] = deque()
        self.uncut: deque[memoryview | bytearray] = deque()
        """Bytes behind the messages that have arrived. A message is some objects, however small it is; bytes are only bytes."""
        self._debt = 0
        """Bytes that have arrived and are not credited."""
        self._taken = 0
        """Messages since others had their turn."""
        self._half_closed = False
        self._begun = False
        self._encoding = link.codec.reply_encoding(head.reply_encoding)
        self._receivers = trio.lowlevel.ParkingLot()
        self._senders = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()

    async def run(self, handler: StreamHandler) -> None:
        """The handler's task (in the connection's nursery)."""
        with self._scope:
            held = await guard(self.path, handler.handle(self))
            if self.state is CallState.OPEN:
                if held:
                    self.finish()
                else:
                    self.fail(Status.INTERNAL, "internal error")

    # The request

    def on_data(self, data: memoryview, *, ended: bool) -> None:
        if self.state is not CallState.OPEN:
            self._link.server.credit(self._stream_id, len(data))
            return
        self._debt += len(data)
        self._keep(data)
        self._half_closed = ended
        if not self._cut():
            return
        if self.arrived or ended:
            self._receivers.unpark_all()

    def _keep(self, data: memoryview) -> None:
        """Put bytes behind the ones that are not messages yet; small pieces together, as each is an object too."""
        uncut = self.uncut
        if not uncut or len(data) >= _PIECE_BYTES:
            uncut.append(data)
        elif isinstance(tail := uncut[-1], bytearray) and len(tail) < _PIECE_BYTES:
            tail += data
        else:
            uncut.append(bytearray(data))

    def _cut(self) -> bool:
        """Make messages of the bytes, as long as few wait; when none does, the client may go on with the one that is under way.
        False: they are not messages, and the call is over."""
        uncut, arrived = self.uncut, self.arrived
        try:
            while uncut and (room := _MESSAGES_MAX - len(arrived)) > 0:
                data = memoryview(uncut.popleft())
                messages, taken = self._reader.cut(data, room)
                arrived += messages
                if taken < len(data):
                    uncut.appendleft(data[taken:])
            if self._half_closed and not uncut and self._reader.is_within_message:
                raise FramingFault(Status.INTERNAL, "the request ends within a message")
        except FramingFault as fault:
            self.abort(fault.status, fault.text)
            return False
        if not arrived and not self._half_closed:
            self._pay(self._debt)
            self._wake_for_credit()
        return True

    def _wake_for_credit(self) -> None:
        if self._link.server.has_output:
            self._link.wake()

    def _pay(self, size: int) -> None:
        self._debt -= size
        self._link.server.credit(self._stream_id, size)

    async def receive_message(self) -> memoryview | None:
        while not self.arrived:
            if self.uncut and self._cut():
                continue
            if self._half_closed or self.state is not CallState.OPEN:
                await trio.lowlevel.checkpoint()
                return None
            self._taken = 0
            await self._receivers.park()
        # What has arrived together is taken together: a turn of the loop for each would cost more than the message.
        self._taken += 1
        if self._may_go_on():
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._taken = 1
            await self._link.turns.wait()
            if not self.arrived:  # the call was cancelled meanwhile
                await trio.lowlevel.checkpoint()
                return None
        compressed, message = self.arrived.popleft()
        if self.state is CallState.OPEN:
            more = self.arrived or self.uncut
            self._pay(min(self._debt, PREFIX_BYTES + len(message)) if more else self._debt)
            self._wake_for_credit()
        if not compressed:
            return message
        try:
            unpacked = self._link.codec.unpack_now(message, self._head.encoding)
            return await self._link.codec.unpack(message, self._head.encoding) if unpacked is None else unpacked
        except FramingFault as fault:
            self.abort(fault.status, fault.text)
            await trio.lowlevel.checkpoint()  # raises Cancelled
            return None

    def _may_go_on(self) -> bool:
        """Returns True if the next message may be taken in this turn of the loop."""
        streams = max(1, self._link.server.open_streams)
        if self._taken == 1 and streams <= GRPC_MANY_STREAMS:
            return True
        together = GRPC_CONNECTION_MESSAGES_PER_TURN_MAX // streams
        return self._taken <= min(together, GRPC_STREAM_MESSAGES_PER_TURN_MAX) and not self._link.turns.is_long

    # The response

    async def send_message(self, parts: Parts) -> None:
        await trio.lowlevel.checkpoint()
        while self.state is CallState.OPEN and self._is_behind():
            self._link.behind.add(self)
            await self._senders.park()
        if not self._may_answer():
            return
        flat, size = flatten(parts)
        if self._encoding != "identity" and INLINE_PLAIN_BYTES_MAX < size <= self._link.send_bytes_max:
            packed = await self._link.codec.pack_in_thread(flat, self._encoding)
            if self._may_answer():
                self._put((packed,), len(packed), compressed=True)
        else:
            self._send(flat, size)

    def send_nowait(self, parts: Parts) -> bool:
        if not self._may_answer():
            return True
        flat, size = flatten(parts)
        if self._is_behind() or (self._encoding != "identity" and INLINE_PLAIN_BYTES_MAX < size <= self._link.send_bytes_max):
            return False
        self._send(flat, size)
        return True

    def finish(self, trailing_metadata: Metadata = ()) -> None:
        if not self._may_answer():
            return
        fields = self._end_fields(Status.OK, "", trailing_metadata)
        self._set_answered()
        self._link.server.finish(self._stream_id, fields)
        self._link.wake()

    def on_progress(self) -> None:
        """Output was written (called by the connection)."""
        if not self._is_behind():
            self._link.behind.discard(self)
            self._senders.unpark_all()

    def _is_behind(self) -> bool:
        return self._link.server.queued_bytes(self._stream_id) > GRPC_STREAM_SEND_BYTES_MAX

    def _send(self, parts: Parts, size: int) -> None:
        if size > self._link.send_bytes_max:
            self.abort(Status.RESOURCE_EXHAUSTED, self._too_large_to_send(size))
        elif self._encoding == "identity":
            self._put(parts, size, compressed=False)
        else:
            packed = self._link.codec.pack(parts, self._encoding)
            self._put((packed,), len(packed), compressed=True)

    def _put(self, parts: Parts, size: int, *, compressed: bool) -> None:
        server = self._link.server
        if not self._begun:
            self._begun = True
            server.send_headers(self._stream_id, response_headers(self._encoding))
        server.send_data(self._stream_id, (prefix(size, compressed=compressed), *parts), PREFIX_BYTES + size)
        self._link.wake()

    # The end

    def _end_fields(self, status: Status, message: str, metadata: Metadata) -> Fields:
        return trailers(status, message, metadata) if self._begun else trailers_only(status, message, metadata)

    def _set_answered(self) -> None:
        super()._set_answered()
        self._release()

    def _stop(self) -> None:
        self.arrived.clear()
        self.uncut.clear()
        self._release()
        self._scope.cancel()

    def _release(self) -> None:
        self._link.behind.discard(self)
        self._receivers.unpark_all()
        self._senders.unpark_all()
