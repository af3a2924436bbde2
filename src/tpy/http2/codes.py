"""The numbers of HTTP/2: frame types, flags, settings, error codes; what ends a connection; and frames as bytes."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
WINDOW_MAX: Final = 2**31 - 1
WINDOW_DEFAULT: Final = 65_535
FRAME_BYTES_MIN: Final = 16_384
"""The smallest SETTINGS_MAX_FRAME_SIZE that may be announced, and what holds until one is."""
FRAME_BYTES_LIMIT: Final = 2**24 - 1
STREAM_ID_MAX: Final = 2**31 - 1
HEADER_TABLE_BYTES: Final = 4096
"""HPACK's dynamic table until something else is agreed; we never ask for more."""

# Frame types
DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

# Flags
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

# Settings
HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6


class Http2Code(enum.IntEnum):
    """Error codes of a stream or connection (RFC 9113, 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(Exception):
    """The peer broke a rule in a way that ends the connection: a GOAWAY with `code` and `text` goes out, then nothing more."""

    def __init__(self, code: Http2Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


_HEADER = struct.Struct(">HBBBI")
read_frame_header = _HEADER.unpack_from
"""(length // 256, length % 256, type, flags, stream id with the reserved bit) at an offset of a buffer."""

_U32 = struct.Struct(">I")


def frame_header(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The nine bytes before a payload of `length` bytes."""
    return _HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def settings_frame(values: Iterable[tuple[int, int]]) -> bytes:
    """SETTINGS with (identifier, value) pairs."""
    payload = b"".join(struct.pack(">HI", *pair) for pair in values)
    return frame_header(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK = frame_header(0, SETTINGS, ACK, 0)


def ping_frame(payload: bytes, *, ack: bool) -> bytes:
    """PING with eight bytes."""
    return frame_header(8, PING, ACK if ack else 0, 0) + payload


def window_update_frame(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE; stream 0 is the connection."""
    return frame_header(4, WINDOW_UPDATE, 0, stream_id) + _U32.pack(increment)


def rst_stream_frame(stream_id: int, code: Http2Code) -> bytes:
    """RST_STREAM."""
    return frame_header(4, RST_STREAM, 0, stream_id) + _U32.pack(code)


_GOAWAY_TEXT_BYTES_MAX = 1024


def goaway_frame(last_stream_id: int, code: Http2Code, text: str = "") -> bytes:
    """GOAWAY; `text` is for whoever reads the peer's log, and cut after a kilobyte."""
    payload = struct.pack(">II", last_stream_id, code) + text.encode()[:_GOAWAY_TEXT_BYTES_MAX]
    return frame_header(len(payload), GOAWAY, 0, 0) + payload
