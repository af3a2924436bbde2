"""Frames as bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tpy.http2 import codes
from tpy.http2.codes import Http2Code

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
    return frame_header(len(payload), codes.SETTINGS, 0, 0) + payload


SETTINGS_ACK = frame_header(0, codes.SETTINGS, codes.ACK, 0)


def ping_frame(payload: bytes, *, ack: bool) -> bytes:
    """PING with eight bytes."""
    return frame_header(8, codes.PING, codes.ACK if ack else 0, 0) + payload


def window_update_frame(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE; stream 0 is the connection."""
    return frame_header(4, codes.WINDOW_UPDATE, 0, stream_id) + _U32.pack(increment)


def rst_stream_frame(stream_id: int, code: Http2Code) -> bytes:
    """RST_STREAM."""
    return frame_header(4, codes.RST_STREAM, 0, stream_id) + _U32.pack(code)


def goaway_frame(last_stream_id: int, code: Http2Code, text: str = "") -> bytes:
    """GOAWAY; `text` is for whoever reads the peer's log."""
    payload = struct.pack(">II", last_stream_id, code) + text.encode()
    return frame_header(len(payload), codes.GOAWAY, 0, 0) + payload
