"""Framing: a stream of bytes into frames and back.

A frame is a 24-byte prefix, two JSON texts and a data area:

    u16 magic | u8 kind | u8 version | u32 memory bytes | u32 header bytes | u32 data bytes | u64 stream     (little endian)

The first text, usually absent, is about shared memory (`endpoint.py`): a segment that comes with the frame, segments given back,
segments to be forgotten. The second, the header, says what the frame is for; it is padded with spaces so that the data area
begins at a multiple of ALIGNMENT.

The stream says what the frame belongs to, numbered by the end that opens it: a batch (EXECUTE, RESULT, NOT_STARTED), a request
whose responses do not come with its batch (RESPONSE), a call of the model to the server (CALL, ANSWER), a query (QUERY, REPLY,
READY_CHECK, and the NOTIFICATION that answers it). 0 for all else.

Nothing is ever unpickled or evaluated. Lengths are bounded before anything is allocated.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, NamedTuple

Buffer = bytes | bytearray | memoryview

MAGIC = 0x7079
"""The letters "py" as a number."""
VERSION = 3
ALIGNMENT = 16
"""Of the data area and of every tensor in it: what SIMD loads and other libraries' views of the arrays expect."""

HEADER_BYTES_MAX = 16 * 1024 * 1024
"""A header describes a batch: about 200 bytes per request. Stops a broken peer from having us allocate what it says."""

MEMORY_BYTES_MAX = 1024 * 1024
"""Some 100,000 numbers of segments: an end holds a few."""

DATA_BYTES_MAX = 1024 * 1024
"""Larger data goes to shared memory, so a larger data area is a lie."""

JOINED_BYTES_MAX = 8 * 1024
"""Up to so much data one copy and a plain send are cheaper: 5 us for a tiny frame, where several buffers take 7."""

_SPACES = b" " * ALIGNMENT

_PREFIX = struct.Struct("<HBBIIIQ")
PREFIX_BYTES = _PREFIX.size


class ProtocolViolation(Exception):
    """The peer sent what no peer of ours sends."""


@enum.unique
class FrameKind(enum.IntEnum):
    """The meaning of a frame. Below 64 the server sends it, from 64 on the worker."""

    LOAD = 1
    """Load this model."""
    EXECUTE = 2
    """Execute these batches, one after the other, each but the first with a token only."""
    FINALIZE = 3
    PROGRESS = 4
    """Numbers of responses of these requests that were taken; requests that nobody waits for any more."""
    ANSWER = 5
    """A response to a call."""
    REPLY = 6
    """To QUERY."""
    READY_CHECK = 7
    """Is the model ready? A NOTIFICATION answers."""
    HELLO = 64
    """The interpreter is up."""
    READY = 65
    FAILED = 66
    """The model was not loaded, or can run nothing any more, and why."""
    RESULT = 67
    """Of a batch."""
    NOT_STARTED = 68
    """This batch and those behind it will not be executed: their tokens were taken back."""
    FINALIZED = 69
    RESPONSE = 70
    """To a request of a decoupled model, or one that comes after its batch."""
    CALL = 71
    """A request of the model's to another model."""
    CALL_PROGRESS = 72
    """Numbers of answers to these calls that were taken; calls whose further answers nobody wants."""
    QUERY = 73
    """Something that the server replies to: cancellation, metrics, the model repository."""
    NOTIFICATION = 74
    """Something that it does not: a log line, a change of a metric, whether the model is ready."""


_KINDS = {int(kind): kind for kind in FrameKind}


class ReceivedFrame(NamedTuple):
    """A received frame. `header` is JSON text in UTF-8, `data` starts at an address that is a multiple of ALIGNMENT. `segment`
    is the shared memory (flat uint8) that the rest of its tensors lie in, once that is there, or why it cannot be had."""

    kind: FrameKind
    stream: int
    header: memoryview
    data: memoryview
    segment: Any = None


def encode(kind: FrameKind, stream: int, header: bytes, data: list[Buffer], data_bytes: int, memory: bytes = b"") -> list[Buffer]:
    """The buffers of a frame, to be written one after the other. `data_bytes` is the sum of `data`'s lengths."""
    padding = -(PREFIX_BYTES + len(memory) + len(header)) % ALIGNMENT
    prefix = _PREFIX.pack(MAGIC, kind, VERSION, len(memory), len(header) + padding, data_bytes, stream)
    if data_bytes <= JOINED_BYTES_MAX:
        return [b"".join((prefix, memory, header, _SPACES[:padding], *data))]
    return [b"".join((prefix, memory, header, _SPACES[:padding])), *data]


class FrameDecoder:
    """Takes bytes as they come, hands out whole frames. Each frame's memory is its own and stays valid."""

    def __init__(self) -> None:
        self.note: memoryview | None = None
        """The text about memory of the frame handed out last, if it had one."""
        self.pending = bytearray()
        """Received, and not handed out."""

    def feed(self, chunk: Buffer) -> None:
        """Add received bytes."""
        self.pending += chunk

    def next_frame(self) -> ReceivedFrame | None:
        """The next whole frame, or None. Raises ProtocolViolation as soon as the prefix is wrong."""
        pending = self.pending
        if len(pending) < PREFIX_BYTES:
            return None
        magic, number, version, memory_bytes, header_bytes, data_bytes, stream = _PREFIX.unpack_from(pending)
        if magic != MAGIC or version != VERSION:
            raise ProtocolViolation(f"not a frame: it begins with {bytes(pending[:PREFIX_BYTES]).hex()}")
        if header_bytes > HEADER_BYTES_MAX or data_bytes > DATA_BYTES_MAX or memory_bytes > MEMORY_BYTES_MAX:
            raise ProtocolViolation(
                f"frame too long: {memory_bytes} bytes about memory, {header_bytes} of header, {data_bytes} of data"
            )
        data_begin = PREFIX_BYTES + memory_bytes + header_bytes
        if data_begin % ALIGNMENT:
            raise ProtocolViolation(f"header of {header_bytes} bytes is not padded")
        kind = _KINDS.get(number)
        if kind is None:
            raise ProtocolViolation(f"unknown kind of frame: {number}")
        end = data_begin + data_bytes
        if len(pending) < end:
            return None
        if len(pending) == end:
            body, self.pending = pending, bytearray()
        else:
            body = pending[:end]
            del pending[:end]
        view = memoryview(body)
        header_begin = PREFIX_BYTES + memory_bytes
        self.note = view[PREFIX_BYTES:header_begin] if memory_bytes else None
        return ReceivedFrame(kind, stream, view[header_begin:data_begin], view[data_begin:end])
