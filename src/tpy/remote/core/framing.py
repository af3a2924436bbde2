"""Frames: four bytes of length (little endian, of what follows), one byte of kind, the payload."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tpy.limits.remote import REMOTE_FRAME_BYTES_MAX


class ProtocolError(Exception):
    """The peer said something that it must not say. The connection, and the frontend process, end."""


_HEAD = struct.Struct("<IB")


def frame(kind: int, payload: bytes) -> bytes:
    """One frame. Raises ValueError for a payload that no frame can hold."""
    size = len(payload) + 1
    if size > REMOTE_FRAME_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes does not fit into a frame of at most {REMOTE_FRAME_BYTES_MAX}")
    return _HEAD.pack(size, kind) + payload


class FrameSplitter:
    """Finds frames in pieces of a stream. Holds at most one incomplete frame; its length is checked before it is collected."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 0
        """Below this many bytes there is no complete frame in the buffer."""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that `data` completes: kind and payload. Raises ProtocolError for a length that no frame has."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        position, end = 0, len(data)
        while end - position >= _HEAD.size:
            size, kind = _HEAD.unpack_from(data, position)
            if not 1 <= size <= REMOTE_FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {size} bytes, expected 1 to {REMOTE_FRAME_BYTES_MAX}")
            after = position + 4 + size
            if after > end:
                break
            yield kind, data[position + _HEAD.size : after]
            position = after
        if position < end:
            self._buffer += data[position:]
            self._needed = _HEAD.size if end - position < _HEAD.size else 4 + _HEAD.unpack_from(data, position)[0]

    @property
    def buffered(self) -> int:
        """Bytes of the frame that is not complete."""
        return len(self._buffer)
