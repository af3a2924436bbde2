"""The ranges of a block of memory that are free. Pure."""

from __future__ import annotations

import bisect

ALIGNMENT = 256
"""As cudaMalloc's, so that a range does for whatever a kernel wants."""


class Ranges:
    """Gives out ranges of `size` bytes by first fit, and joins what comes back."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._free = [(0, size)] if size else []  # (begin, length), by begin, never adjacent
        self._lent: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """Returns where the range begins; None when no free range is long enough."""
        length = max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
        for index, (begin, room) in enumerate(self._free):
            if room >= length:
                if room == length:
                    del self._free[index]
                else:
                    self._free[index] = (begin + length, room - length)
                self._lent[begin] = length
                self.used += length
                return begin
        return None

    def give_back(self, begin: int) -> None:
        """A range that was taken is free again. Raises KeyError for one that was not."""
        length = self._lent.pop(begin)
        self.used -= length
        index = bisect.bisect(self._free, (begin, 0))
        if index < len(self._free) and self._free[index][0] == begin + length:
            length += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == begin:
            index -= 1
            before, room = self._free.pop(index)
            begin, length = before, room + length
        self._free.insert(index, (begin, length))
