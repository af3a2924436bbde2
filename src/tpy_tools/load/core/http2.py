"""HTTP/2 as a gRPC client speaks it on one connection: calls with one message or many, flow control both ways.

The headers of all calls are the same, so that they are a few bytes from the second call on; header blocks of answers that change
no table are decoded once.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from tpy.http2 import codes
from tpy.http2.codes import (
    SETTINGS_ACK,
    ConnectionFault,
    frame_header,
    ping_frame,
    read_frame_header,
    settings_frame,
    window_update_frame,
)
from tpy.http2.header_blocks import HeaderReader, Headers, HeaderWriter
from tpy.limits.loading import LOAD_CREDIT_BYTES, LOAD_HEAD_BYTES_MAX
from tpy_tools.load.core.answers import AnswerPart, BrokenAnswer

_PRIORITY_BYTES = 5
_WHOLE_BLOCK = codes.END_HEADERS | codes.PADDED | codes.WITH_PRIORITY
"""A block with the first of them alone is the whole payload of its frame."""

_MESSAGE_HEAD = struct.Struct(">BI")
_MESSAGE_HEAD_BYTES = 5
_NUMBER = struct.Struct(">I")
_UNAVAILABLE = 14
_UNKNOWN = 2


def frame_message(message: bytes, *, compressed: bool = False) -> bytes:
    """A message as gRPC sends it."""
    return _MESSAGE_HEAD.pack(compressed, len(message)) + message


class _Call:
    """One call. `unary`: its only message is given with its status. `missing`: bytes of a message behind its `parts`."""

    __slots__ = ("kept", "message", "missing", "parts", "room", "taken", "unary")

    def __init__(self, room: int, *, unary: bool) -> None:
        self.kept = b""
        self.message = b""
        self.missing = 0
        self.parts: list[bytes] = []
        self.room = room
        self.taken = 0
        self.unary = unary


class GrpcConnection:
    """One connection's calls of one method. What is to be sent collects until `outgoing` takes it."""

    def __init__(self, authority: str, path: str, metadata: Sequence[tuple[str, str]] = (), *, scheme: str = "http") -> None:
        headers = [
            (":method", "POST"),
            (":scheme", scheme),
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "tpy-perf"),
            *((name.lower(), value) for name, value in metadata),
        ]
        self._headers: Headers = tuple((name.encode(), value.encode()) for name, value in headers)
        self._writer = HeaderWriter()
        self._reader = HeaderReader(_text_of, list_bytes_max=LOAD_HEAD_BYTES_MAX)
        self._calls: dict[int, _Call] = {}
        self._next_stream = 1
        self._kept = b""
        self._part: tuple[int, int, bytes] | None = None
        self._taken = 0
        self._room = codes.WINDOW_DEFAULT
        self._initial_room = codes.WINDOW_DEFAULT
        self._frame_max = codes.FRAME_BYTES_MIN
        self._waiting: deque[tuple[int, memoryview, bool]] = deque()
        self._out: list[bytes | memoryview] = [
            codes.PREFACE,
            settings_frame([(codes.ENABLE_PUSH, 0), (codes.INITIAL_WINDOW_SIZE, codes.WINDOW_MAX)]),
            window_update_frame(0, codes.WINDOW_MAX - codes.WINDOW_DEFAULT),
        ]

    def call(self, framed: bytes) -> int:
        """Begin a call of one message, and end it. Returns its stream."""
        stream = self.open(unary=True)
        self._send(stream, framed, end=True)
        return stream

    def open(self, *, unary: bool = False) -> int:
        """Begin a call whose messages follow. Returns its stream."""
        stream = self._next_stream
        self._next_stream += 2
        self._calls[stream] = _Call(self._initial_room, unary=unary)
        block = self._writer.constant(self._headers)
        self._out.append(frame_header(len(block), codes.HEADERS, codes.END_HEADERS, stream) + block)
        return stream

    def send(self, stream: int, framed: bytes) -> None:
        """Send a message of an open call."""
        self._send(stream, framed, end=False)

    def end(self, stream: int) -> None:
        """No message of this call follows."""
        self._send(stream, b"", end=True)

    def outgoing(self) -> bytes:
        """The bytes that are to be sent now."""
        if self._waiting:
            self._flush()
        out, self._out = self._out, []
        return b"".join(out)

    @property
    def calls(self) -> int:
        """The number of calls that are not ended."""
        return len(self._calls)

    def feed(self, data: bytes) -> list[tuple[int, AnswerPart]]:
        """Take bytes. Returns what is complete with them: streams, and their messages or ends. Raises BrokenAnswer."""
        if self._kept:
            data = self._kept + data
        found: list[tuple[int, AnswerPart]] = []
        at, size = 0, len(data)
        while at + codes.FRAME_HEADER_BYTES <= size:
            high, low, kind, flags, stream = read_frame_header(data, at)
            begin = at + codes.FRAME_HEADER_BYTES
            end = begin + (high << 8) + low
            if end > size:
                break
            at = end
            if kind == codes.DATA:
                self._on_data(stream, flags, data, begin, end, found)
            elif kind == codes.HEADERS and flags & _WHOLE_BLOCK == codes.END_HEADERS:
                self._on_headers(stream, flags, data[begin:end], found)
            else:
                self._on_other(kind, flags, stream, data[begin:end], found)
        self._kept = data[at:]
        if self._taken > LOAD_CREDIT_BYTES:
            self._out.append(window_update_frame(0, self._taken))
            self._taken = 0
        return found

    def _send(self, stream: int, payload: bytes, *, end: bool) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        size = len(payload)
        if not self._waiting and size <= self._room and size <= call.room and size <= self._frame_max:
            self._room -= size
            call.room -= size
            self._out.append(frame_header(size, codes.DATA, codes.END_STREAM if end else 0, stream) + payload)
        else:
            self._waiting.append((stream, memoryview(payload), end))

    def _flush(self) -> None:
        """Send what waits for room, in order."""
        while self._waiting:
            stream, payload, end = self._waiting[0]
            call = self._calls.get(stream)
            if call is None:
                self._waiting.popleft()
                continue
            size = max(0, min(len(payload), self._room, call.room, self._frame_max))
            if not size and payload:
                return
            last = size == len(payload)
            self._out += (frame_header(size, codes.DATA, codes.END_STREAM if last and end else 0, stream), payload[:size])
            self._room -= size
            call.room -= size
            if last:
                self._waiting.popleft()
            else:
                self._waiting[0] = (stream, payload[size:], end)

    def _on_data(self, stream: int, flags: int, data: bytes, begin: int, end: int, found: list[tuple[int, AnswerPart]]) -> None:
        size = end - begin
        self._taken += size
        call = self._calls.get(stream)
        if call is None:
            return
        if flags & codes.PADDED:
            end -= data[begin]
            begin += 1
        payload = data[begin:end]
        if call.missing:
            part, payload = payload[: call.missing], payload[call.missing :]
            call.parts.append(part)
            call.missing -= len(part)
            if not call.missing:  # a large message is put together once, not with each part of it
                message, call.parts = b"".join(call.parts), []
                _on_message(stream, call, message, found)
        elif call.kept:
            payload = call.kept + payload
        at, length = 0, len(payload)
        while at + _MESSAGE_HEAD_BYTES <= length:
            compressed, message_bytes = _MESSAGE_HEAD.unpack_from(payload, at)
            stop = at + _MESSAGE_HEAD_BYTES + message_bytes
            if compressed:
                raise BrokenAnswer("the answer is compressed, which was not asked for")
            message = payload[at + _MESSAGE_HEAD_BYTES : stop]
            if stop > length:
                call.parts, call.missing = [message], stop - length
                at = length
                break
            _on_message(stream, call, message, found)
            at = stop
        call.kept = payload[at:]
        call.taken += size
        if flags & codes.END_STREAM:
            self._end(stream, AnswerPart(_UNKNOWN, b"the call ended without a status", True), found)
        elif call.taken > LOAD_CREDIT_BYTES:
            self._out.append(window_update_frame(stream, call.taken))
            call.taken = 0

    def _on_headers(self, stream: int, flags: int, block: bytes, found: list[tuple[int, AnswerPart]]) -> None:
        try:
            headers = self._reader.request(block)
        except ConnectionFault as fault:
            raise BrokenAnswer(f"headers that cannot be read: {fault.text}") from fault
        if not flags & codes.END_STREAM:
            return
        call = self._calls.get(stream)
        if call is None:
            return
        status = headers.get("grpc-status", "")
        if status == "0":
            self._end(stream, AnswerPart(0, call.message, True, headers), found)
        elif status.isdecimal():
            self._end(stream, AnswerPart(int(status), unquote(headers.get("grpc-message", "")).encode(), True, headers), found)
        else:
            text = f"HTTP status {headers.get(':status', 'none')}, and no gRPC status"
            self._end(stream, AnswerPart(_UNKNOWN, text.encode(), True, headers), found)

    def _end(self, stream: int, answer: AnswerPart, found: list[tuple[int, AnswerPart]]) -> None:
        del self._calls[stream]
        found.append((stream, answer))

    def _on_other(self, kind: int, flags: int, stream: int, payload: bytes, found: list[tuple[int, AnswerPart]]) -> None:
        if kind == codes.HEADERS:
            payload = _without_padding(flags, payload)
            if flags & codes.WITH_PRIORITY:
                payload = payload[_PRIORITY_BYTES:]
            if flags & codes.END_HEADERS:
                self._on_headers(stream, flags, payload, found)
            else:
                self._part = (stream, flags, payload)
        elif kind == codes.CONTINUATION and self._part is not None:
            first, first_flags, block = self._part
            self._part = (first, first_flags, block + payload)
            if flags & codes.END_HEADERS:
                self._part = None
                self._on_headers(first, first_flags, block + payload, found)
        elif kind == codes.SETTINGS and not flags & codes.ACK:
            self._on_settings(payload)
        elif kind == codes.PING and not flags & codes.ACK:
            self._out.append(ping_frame(payload, ack=True))
        elif kind == codes.WINDOW_UPDATE:
            room = _NUMBER.unpack(payload)[0] & codes.WINDOW_MAX
            if not stream:
                self._room += room
            elif stream in self._calls:
                self._calls[stream].room += room
        elif kind == codes.RST_STREAM and stream in self._calls:
            code = _NUMBER.unpack(payload)[0]
            self._end(stream, AnswerPart(_UNAVAILABLE, f"the server reset the call, HTTP/2 error {code}".encode(), True), found)
        elif kind == codes.GOAWAY:
            raise BrokenAnswer(f"the server ends the connection {payload[8:200].decode(errors='replace')}".rstrip())

    def _on_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            name, value = struct.unpack_from(">HI", payload, at)
            if name == codes.INITIAL_WINDOW_SIZE:
                for call in self._calls.values():
                    call.room += value - self._initial_room
                self._initial_room = value
            elif name == codes.MAX_FRAME_SIZE:
                self._frame_max = value
            elif name == codes.HEADER_TABLE_SIZE:
                self._writer.limit_table(value)
        self._out.append(SETTINGS_ACK)


def _on_message(stream: int, call: _Call, message: bytes, found: list[tuple[int, AnswerPart]]) -> None:
    if call.unary:
        call.message = message
    else:
        found.append((stream, AnswerPart(0, message, False)))


def _text_of(headers: Headers) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode(errors="replace") for name, value in headers}


def _without_padding(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & codes.PADDED else payload
