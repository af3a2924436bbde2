"""FrameReader: the bytes of a peer as frames.

Header blocks and small frames are kept until they are whole. DATA is passed on as it arrives, whatever the size of its frame.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from tpy.frontends.grpc.transport.core.streams import Http2Stream
from tpy.http2 import codes
from tpy.http2.codes import ConnectionFault, Http2Code, read_frame_header
from tpy.limits import GRPC_HEADER_FRAMES_MAX
from tpy.units import KIB

_PRIORITY_BYTES = 5


class HeaderBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole block. `ended`: the stream ends with it."""

    stream_id: int
    data: bytes
    ended: bool


class _HeaderAssembly:
    """At most one block is under way; while it is (`stream_id` not 0), no other frame may come."""

    def __init__(self, block_bytes_max: int) -> None:
        self._block_bytes_max = block_bytes_max
        self._block = bytearray()
        self._frames = 0
        self._ended = False
        self.stream_id = 0

    def begin(self, flags: int, stream_id: int, payload: bytes) -> HeaderBlock | None:
        """HEADERS. The block, if it is whole already. Raises ConnectionFault."""
        if stream_id % 2 == 0:
            raise ConnectionFault(Http2Code.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        if flags & (codes.PADDED | codes.WITH_PRIORITY):
            payload = _bare(flags, payload)
        ended = bool(flags & codes.END_STREAM)
        if flags & codes.END_HEADERS:
            return HeaderBlock(stream_id=stream_id, data=payload, ended=ended)
        self._block += payload
        self._ended = ended
        self._frames = 1
        self.stream_id = stream_id
        return None

    def go_on(self, flags: int, payload: bytes) -> HeaderBlock | None:
        """CONTINUATION. The block, if it is whole now. Raises ConnectionFault."""
        if not self.stream_id:
            raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block += payload
        self._frames += 1
        if len(self._block) > self._block_bytes_max or self._frames > GRPC_HEADER_FRAMES_MAX:
            raise ConnectionFault(Http2Code.ENHANCE_YOUR_CALM, "a header block in too many or too large pieces")
        if not flags & codes.END_HEADERS:
            return None
        whole = HeaderBlock(stream_id=self.stream_id, data=bytes(self._block), ended=self._ended)
        self._block.clear()
        self.stream_id = 0
        return whole


def _bare(flags: int, payload: bytes) -> bytes:
    """The payload of HEADERS without padding and priority."""
    begin = padding = 0
    if flags & codes.PADDED:
        begin = 1
        padding = payload[0] if payload else 1
    if flags & codes.WITH_PRIORITY:
        begin += _PRIORITY_BYTES
    if begin + padding > len(payload):
        raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[begin : len(payload) - padding]


_SMALL_FRAME_BYTES_MAX = 16 * KIB
"""Frames other than DATA and header blocks: GOAWAY may carry a text."""

_HEADERS_OVERHEAD_BYTES = 6 + 255
"""Priority, pad length and padding of a HEADERS frame."""

ANY_NUMBER = 2**62
_BYTES_PER_FRAME = 16
"""A header block counts as one more frame per this many bytes: decoding it takes as long."""
_SETTINGS_FRAMES = 16
"""SETTINGS count as this many frames: each of the streams may be touched."""


class FrameHandler(Protocol):
    """Takes the frames. Every method may raise ConnectionFault."""

    def on_block(self, block: HeaderBlock) -> None:
        """A whole header block has arrived."""
        ...

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A frame other than HEADERS, CONTINUATION and DATA has arrived whole."""
        ...

    def on_unknown_frame(self) -> None:
        """A frame of an unknown type begins; it is passed over."""
        ...

    def begin_data(self, stream_id: int, length: int, padding: int) -> Http2Stream | None:
        """A DATA frame of `length` bytes begins, `padding` of them with their length byte. Returns the stream that takes it, or
        None when it is passed over."""
        ...

    def on_data(self, stream: Http2Stream, data: memoryview, *, ended: bool) -> None:
        """Bytes of such a frame, without padding."""
        ...

    def on_empty_data(self) -> None:
        """A DATA frame without bytes, which does not end its stream."""
        ...


class FrameReader:
    """One connection's, from its preface on."""

    def __init__(self, handler: FrameHandler, *, frame_bytes_max: int, block_bytes_max: int) -> None:
        self._handler = handler
        self._frame_bytes_max = frame_bytes_max
        self._header_frame_bytes_max = block_bytes_max + _HEADERS_OVERHEAD_BYTES
        self._assembly = _HeaderAssembly(block_bytes_max)
        self._kept = b""
        self.unread: tuple[bytes, int] | None = None
        """Bytes that have arrived and are still to be read, by `read` without further ones, and where the next frame begins."""
        self._frames_left = ANY_NUMBER
        self._greeted = False
        self._settings_seen = False
        self._payload_left = 0
        self._padding_left = 0
        self._payload_stream: Http2Stream | None = None
        self._payload_ends = False

    def read(self, data: bytes, frames_max: int) -> None:
        """Bytes have arrived: hand on the first `frames_max` frames, where large ones that are not DATA count as several. While
        there is more (`unread`), no further bytes may be given. Raises ConnectionFault."""
        self._frames_left = frames_max
        if self.unread is not None:
            (whole, at), self.unread = self.unread, None
            self._read(whole, at)
        else:
            self._read(self._kept + data if self._kept else data)

    def _read(self, data: bytes, at: int = 0) -> None:
        self._kept = b""
        if not self._greeted:
            if not self._read_preface(data):
                self._kept = data
                return
            at = len(codes.PREFACE)
        view = memoryview(data)
        end = len(data)
        while at < end:
            if self._payload_left or self._padding_left:
                at = self._read_payload(view, at, end)
                continue
            if end - at < codes.FRAME_HEADER_BYTES:
                break
            if self._frames_left <= 0:
                self.unread = data, at
                return
            high, low, kind, flags, stream_id = read_frame_header(data, at)
            length = high << 8 | low
            stream_id &= codes.STREAM_ID_MAX
            begin = at + codes.FRAME_HEADER_BYTES
            if length > _SMALL_FRAME_BYTES_MAX:
                self._check_long(kind, length)
            if kind != codes.CONTINUATION and self._assembly.stream_id:
                raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "a header block was interrupted")
            if not self._settings_seen and (kind != codes.SETTINGS or flags & codes.ACK):
                raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "the first frame must be SETTINGS")
            self._frames_left -= 1
            if kind == codes.DATA:
                padding = 0
                if flags & codes.PADDED:
                    if begin == end and length:
                        break
                    padding = 1 + (data[begin] if length else 0)
                    begin += 1
                at = begin
                self._begin_data(stream_id, flags, length, padding)
            elif kind > codes.CONTINUATION:
                at = begin
                self._handler.on_unknown_frame()
                self._padding_left = length
            elif end - begin < length:
                break
            else:
                at = begin + length
                self._frames_left -= _SETTINGS_FRAMES if kind == codes.SETTINGS else length // _BYTES_PER_FRAME
                self._on_whole(kind, flags, stream_id, data[begin:at])
        if at < end:
            self._kept = data[at:]

    def _read_preface(self, data: bytes) -> bool:
        """Returns whether it is here whole."""
        if not codes.PREFACE.startswith(data[: len(codes.PREFACE)]):
            raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "the client does not begin as HTTP/2 does")
        self._greeted = len(data) >= len(codes.PREFACE)
        return self._greeted

    def _check_long(self, kind: int, length: int) -> None:
        if length > self._frame_bytes_max:
            raise ConnectionFault(Http2Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if kind == codes.DATA or kind > codes.CONTINUATION:
            return
        if kind not in (codes.HEADERS, codes.CONTINUATION) or length > self._header_frame_bytes_max:
            raise ConnectionFault(Http2Code.ENHANCE_YOUR_CALM, f"a frame of type {kind} with {length} bytes")

    def _on_whole(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A frame other than DATA has arrived."""
        if kind == codes.HEADERS:
            block = self._assembly.begin(flags, stream_id, payload)
        elif kind == codes.CONTINUATION:
            if stream_id != self._assembly.stream_id:
                raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS of its stream")
            block = self._assembly.go_on(flags, payload)
        else:
            self._settings_seen = True
            self._handler.on_frame(kind, flags, stream_id, payload)
            return
        if block is not None:
            self._handler.on_block(block)

    # DATA

    def _begin_data(self, stream_id: int, flags: int, length: int, padding: int) -> None:
        """The header of a DATA frame has arrived; `padding` with its length byte, which is read already."""
        if padding > length:
            raise ConnectionFault(Http2Code.PROTOCOL_ERROR, "more padding than frame")
        stream = self._handler.begin_data(stream_id, length, padding)
        if stream is None:
            self._padding_left = length - 1 if padding else length
            return
        self._payload_left = length - padding
        self._payload_stream = stream
        self._payload_ends = bool(flags & codes.END_STREAM)
        if padding:
            self._padding_left = padding - 1
        if not self._payload_left:
            if self._payload_ends:
                self._handler.on_data(stream, memoryview(b""), ended=True)
            else:
                self._handler.on_empty_data()

    def _read_payload(self, view: memoryview, at: int, end: int) -> int:
        if self._payload_left:
            piece = view[at : min(end, at + self._payload_left)]
            self._payload_left -= len(piece)
            stream = self._payload_stream
            if stream is not None:
                self._handler.on_data(stream, piece, ended=self._payload_ends and not self._payload_left)
            return at + len(piece)
        skipped = min(end - at, self._padding_left)
        self._padding_left -= skipped
        return at + skipped
