"""UnaryExchange: a call with one message each way. No task belongs to it; threads only for large compressed messages."""

from __future__ import annotations

from grpclib.const import Status

from tpy.errors import Unavailable
from tpy.frontends.grpc.transport.call import Metadata, Parts, UnaryHandler
from tpy.frontends.grpc.transport.compression import INLINE_PLAIN_BYTES_MAX
from tpy.frontends.grpc.transport.core.calls import (
    PREFIX_BYTES,
    Encoding,
    Fields,
    FramingFault,
    Message,
    MessageReader,
    RequestHead,
    prefix,
    response_headers,
    trailers,
    trailers_only,
    whole_message,
)
from tpy.frontends.grpc.transport.exchange import CallState, Exchange, ExchangeConnection, flatten
from tpy.unexpected import unexpected_error

_MESSAGES_MAX = 2
"""Messages that are looked for in what has arrived: one is right, and the second one is refused."""


class UnaryExchange(Exchange):
    """Implements UnaryCall."""

    __slots__ = ("_handler", "_message", "_reader")

    def __init__(
        self, link: ExchangeConnection, stream_id: int, head: RequestHead, deadline_ns: int | None, handler: UnaryHandler
    ) -> None:
        super().__init__(link, stream_id, head, deadline_ns)
        self._handler = handler
        self._reader: MessageReader | None = None
        self._message: Message | None = None

    # The request

    def on_data(self, data: memoryview, *, ended: bool) -> None:
        link = self._link
        link.server.credit(self._stream_id, len(data))  # the whole message is needed, whatever its size
        if self.state is not CallState.OPEN:
            return
        reader = self._reader
        if reader is None and ended and (message := whole_message(data, link.message_bytes_max)) is not None:
            self._serve(message)  # nearly always
            return
        try:
            if reader is None:
                reader = self._reader = MessageReader(link.message_bytes_max)
            for found in reader.cut(data, _MESSAGES_MAX)[0]:
                if self._message is not None:
                    raise FramingFault(Status.UNIMPLEMENTED, "the method takes exactly one message, got more")
                self._message = found
            if ended:
                self._on_whole(reader)
        except FramingFault as fault:
            self.fail(fault.status, fault.text)

    def _on_whole(self, reader: MessageReader) -> None:
        if reader.is_within_message:
            raise FramingFault(Status.INTERNAL, "the request ends within a message")
        if self._message is None:
            raise FramingFault(Status.UNIMPLEMENTED, "the method takes exactly one message, got none")
        (compressed, message), self._message = self._message, None
        if not compressed:
            self._serve(message)
        elif (unpacked := self._link.codec.unpack_now(message, self._head.encoding)) is not None:
            self._serve(unpacked)
        else:
            self._link.spawn(self._unpack_and_serve, message)

    async def _unpack_and_serve(self, message: memoryview) -> None:
        try:
            unpacked = await self._link.codec.unpack(message, self._head.encoding)
        except FramingFault as fault:
            if self.state is CallState.OPEN:
                self.fail(fault.status, fault.text)
            return
        self._serve(unpacked)

    def _serve(self, message: memoryview) -> None:
        if self.state is not CallState.OPEN:
            return
        try:
            if self._handler.in_task:
                self._link.task_begun()
            self._handler.handle(self, message)
        except Exception:
            error = unexpected_error("gRPC handler failed unexpectedly", text="internal error", path=self.path)
            if self.state is CallState.OPEN:
                self.fail(Status.UNAVAILABLE if isinstance(error, Unavailable) else Status.INTERNAL, error.message)

    def _stop(self) -> None:
        self._reader = self._message = None

    # The response

    def reply(self, parts: Parts, trailing_metadata: Metadata = ()) -> None:
        if not self._may_answer():
            return
        link = self._link
        flat, size = flatten(parts)
        if size > link.send_bytes_max:
            self.fail(Status.RESOURCE_EXHAUSTED, self._too_large_to_send(size))
            return
        end = trailers(Status.OK, "", trailing_metadata)
        self._set_answered()
        encoding = link.codec.reply_encoding(self._head.reply_encoding)
        if encoding == "identity":
            self._send(flat, size, encoding, end, compressed=False)
        elif size <= INLINE_PLAIN_BYTES_MAX:
            packed = link.codec.pack(flat, encoding)
            self._send((packed,), len(packed), encoding, end, compressed=True)
        else:
            link.spawn(self._pack_and_send, flat, encoding, end)

    async def _pack_and_send(self, parts: Parts, encoding: Encoding, end: Fields) -> None:
        packed = await self._link.codec.pack_in_thread(parts, encoding)
        self._send((packed,), len(packed), encoding, end, compressed=True)

    def _send(self, parts: Parts, size: int, encoding: Encoding, end: Fields, *, compressed: bool) -> None:
        begin = prefix(size, compressed=compressed)
        self._link.server.respond(self._stream_id, response_headers(encoding), (begin, *parts), PREFIX_BYTES + size, end)
        self._link.wake()

    def _end_fields(self, status: Status, message: str, metadata: Metadata) -> Fields:
        return trailers_only(status, message, metadata)
