"""Framing: a stream of bytes into frames and back.

A frame is a 16-byte prefix, a JSON header padded with spaces to a multiple of ALIGNMENT, and a data area:

    u16 magic | u8 kind | u8 version | u32 header bytes (padded) | u32 data bytes | u32 number     (little endian)

The number says what the frame belongs to. In EXECUTE, RUN, RESULT, PART, NOT_BEGUN, IS_CANCELLED and CANCELLED it is that of the
batch (of a RUN, the first one): both ends count batches from 1 on. In RESPONSE it is that of the response to its request, from 1
on. It is 0 in all others. Whoever gets a frame with another number than the one that is due does not believe its peer any more.

Nothing is ever unpickled or evaluated. Lengths are bounded before anything is allocated.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview

MAGIC = 0x7079
VERSION = 2
ALIGNMENT = 16
"""Of the data area and of every tensor in it: what SIMD loads and other libraries' views of the arrays expect."""

HEADER_BYTES_MAX = 16 * 1024 * 1024
"""A header describes a batch: about 200 bytes per request. Stops a broken peer from having us allocate what it says."""

DATA_BYTES_MAX = 1024 * 1024
"""Larger data goes to shared memory, so a larger data area is a lie."""

NUMBER_MAX = (1 << 32) - 1
"""Numbers go on with 0 behind it."""

_PREFIX = struct.Struct("<HBBIII")
PREFIX_BYTES = _PREFIX.size


class ProtocolViolation(Exception):
    """The peer sent what no peer of ours sends."""


@enum.unique
class Kind(enum.IntEnum):
    """What a frame says. Below 64 the server speaks, from 64 on the worker. The calls of models to the server (CALL, REPOSITORY,
    NOTE, and ANSWER to them) go over a line of their own."""

    LOAD = 1
    EXECUTE = 2
    CANCELLED = 3
    FINALIZE = 4
    PROGRESS = 5
    ANSWER = 6
    RUN = 7
    HELLO = 64
    READY = 65
    FAILED = 66
    RESULT = 67
    IS_CANCELLED = 68
    FINALIZED = 69
    RESPONSE = 70
    CALL = 71
    REPOSITORY = 72
    NOTE = 73
    PART = 74
    NOT_BEGUN = 75


class Frame(NamedTuple):
    """A received frame. `header` is JSON text in UTF-8, `data` starts at an address that is a multiple of ALIGNMENT."""

    kind: Kind
    header: memoryview
    data: memoryview
    number: int

    def require_number(self, due: int) -> None:
        """Raises ProtocolViolation when the frame belongs to something else than what is due."""
        if self.number != due & NUMBER_MAX:
            raise ProtocolViolation(f"{self.kind.name} with number {self.number}, while {due & NUMBER_MAX} was due")


def encode(kind: Kind, header: bytes, data: list[Buffer], data_bytes: int, number: int = 0) -> list[Buffer]:
    """The buffers of a frame, to be written one after the other. `data_bytes` is the sum of `data`'s lengths."""
    padding = -len(header) % ALIGNMENT
    prefix = _PREFIX.pack(MAGIC, kind, VERSION, len(header) + padding, data_bytes, number & NUMBER_MAX)
    return [prefix + header + b" " * padding, *data]


class FrameDecoder:
    """Takes bytes as they come, hands out whole frames. Each frame's memory is its own and stays valid."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: Buffer) -> None:
        """Add received bytes."""
        self._pending += chunk

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None. Raises ProtocolViolation as soon as the prefix is wrong."""
        pending = self._pending
        if len(pending) < PREFIX_BYTES:
            return None
        magic, kind, version, header_bytes, data_bytes, number = _PREFIX.unpack_from(pending)
        if magic != MAGIC or version != VERSION:
            raise ProtocolViolation(f"not a frame: it begins with {bytes(pending[:PREFIX_BYTES]).hex()}")
        if header_bytes > HEADER_BYTES_MAX or data_bytes > DATA_BYTES_MAX:
            raise ProtocolViolation(f"frame too long: {header_bytes} bytes of header, {data_bytes} bytes of data")
        if header_bytes % ALIGNMENT:
            raise ProtocolViolation(f"header of {header_bytes} bytes is not padded")
        try:
            known = Kind(kind)
        except ValueError:
            raise ProtocolViolation(f"unknown kind of frame: {kind}") from None
        end = PREFIX_BYTES + header_bytes + data_bytes
        if len(pending) < end:
            return None
        if len(pending) == end:
            body, self._pending = pending, bytearray()
        else:
            body = pending[:end]
            del pending[:end]
        view = memoryview(body)
        data_begin = PREFIX_BYTES + header_bytes
        return Frame(known, view[PREFIX_BYTES:data_begin], view[data_begin:end], number)
