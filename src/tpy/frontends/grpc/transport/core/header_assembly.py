"""HeaderAssembly: the block of a HEADERS frame and of the CONTINUATION frames behind it."""

from __future__ import annotations

import msgspec

from tpy.http2 import codes
from tpy.http2.codes import ConnectionFault, Http2Code
from tpy.limits import GRPC_HEADER_FRAMES_MAX

_PRIORITY_BYTES = 5


class HeaderBlock(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole block. `ended`: the stream ends with it."""

    stream_id: int
    data: bytes
    ended: bool


class HeaderAssembly:
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
