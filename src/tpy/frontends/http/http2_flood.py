"""A bound on what HTTP/2 clients may send that is no request: Hypercorn answers pings and settings for as long as they come.

Sees the bytes that arrive, before Hypercorn does. Sans-IO: time is an argument, in nanoseconds.
"""

from __future__ import annotations

from typing import Final

from tpy import limits
from tpy.frontends.core.budget import Budget

_PREFACE_BYTES: Final = 24
_HEAD_BYTES: Final = 9
_DATA: Final = 0
_HEADERS: Final = 1
_RESET: Final = 3
_CONTINUATION: Final = 9


class Http2Flood:
    """Follows the frames of one connection."""

    __slots__ = ("_head", "_idle_frames", "_resets", "_skip")

    def __init__(self, now_ns: int) -> None:
        self._idle_frames = Budget(limits.HTTP2_IDLE_FRAMES_BURST_MAX, limits.HTTP2_IDLE_FRAMES_PER_S_MAX, now_ns)
        self._resets = Budget(limits.HTTP2_RESETS_BURST_MAX, limits.HTTP2_RESETS_PER_S_MAX, now_ns)
        self._skip = _PREFACE_BYTES
        self._head = b""

    def received(self, data: bytes, now_ns: int) -> str | None:
        """The peer sent these bytes; what there is too much of, or None when all is well."""
        place, end = 0, len(data)
        while place < end:
            if self._skip:
                step = min(self._skip, end - place)
                self._skip -= step
                place += step
                continue
            step = _HEAD_BYTES - len(self._head)
            self._head += data[place : place + step]
            place += step
            if len(self._head) == _HEAD_BYTES:
                length, kind = int.from_bytes(self._head[:3], "big"), self._head[3]
                self._head, self._skip = b"", length
                if (abuse := self._count(kind, length, now_ns)) is not None:
                    return abuse
        return None

    def sent(self, count: int) -> None:
        """We sent so many bytes: who reads much may open windows and ping as often."""
        self._idle_frames.refund(count // limits.HTTP2_ANSWER_BYTES_PER_IDLE_FRAME)

    def _count(self, kind: int, length: int, now_ns: int) -> str | None:
        if kind == _RESET:
            return None if self._resets.spend(now_ns) else "resets"
        if kind == _HEADERS:
            self._idle_frames.refund(limits.GRPC_IDLE_FRAMES_PER_ANSWER_FRAME)
        elif (kind != _DATA or not length) and kind != _CONTINUATION and not self._idle_frames.spend(now_ns):
            return "frames that carry nothing"
        return None
