"""Windows for the responses of a decoupled request that are on their way: the sending end waits when its window is full, the
receiving end says now and then how many were taken."""

from __future__ import annotations

from collections import deque

from .frames import ProtocolViolation

RESPONSES_MAX = 64
"""Sent and not taken, per request. The same as the server holds for one request."""

BYTES_MAX = 16 * 1024 * 1024
"""The same in bytes of their tensors. One response may always be sent, whatever its size."""


class Window:
    """The responses of one request that were sent and are not known to be taken; the same numbers at both ends."""

    __slots__ = ("_bytes", "_sizes")

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def is_full(self) -> bool:
        """True if no further response may be sent."""
        return len(self._sizes) >= RESPONSES_MAX or (len(self._sizes) > 0 and self._bytes >= BYTES_MAX)

    def sent(self, size: int) -> None:
        """A response with `size` bytes of tensors is on its way. Raises ProtocolViolation when the window is full."""
        if self.is_full:
            raise ProtocolViolation(f"a response beyond the {len(self._sizes)} that may wait")
        self._sizes.append(size)
        self._bytes += size

    def taken(self, count: int) -> int:
        """The oldest `count` were taken; how many bytes they had. Raises ProtocolViolation for more than there are."""
        if not 0 <= count <= len(self._sizes):
            raise ProtocolViolation(f"{count} of {len(self._sizes)} responses were taken")
        size = sum([self._sizes.popleft() for _ in range(count)])
        self._bytes -= size
        return size


class Receipts:
    """Responses that the receiving end of one request has taken and not yet reported: reports are of at least half a window."""

    __slots__ = ("_bytes", "_count", "window")

    def __init__(self) -> None:
        self.window = Window()
        self._count = 0
        self._bytes = 0

    def taken(self, count: int) -> int:
        """`count` more were taken: the number to say now, 0 for none."""
        self._bytes += self.window.taken(count)
        self._count += count
        if 2 * self._count < RESPONSES_MAX and 2 * self._bytes < BYTES_MAX:
            return 0
        taken, self._count, self._bytes = self._count, 0, 0
        return taken
