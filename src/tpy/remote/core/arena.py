"""Arena: which parts of a shared memory are taken. Only offsets and sizes: the memory itself is elsewhere.

The owner allocates and writes; the other process reads, and reports when it is done with a block. First fit over a list of free
blocks, neighbours joined: there are few blocks at a time, and they are large.
"""

from __future__ import annotations

from bisect import bisect_left

from tpy.remote.core.framing import ProtocolError

_ALIGNMENT = 4096
"""Blocks begin on pages, so that the pages of a free block can be given back, and any dtype is aligned."""


class Arena:
    """`size` bytes, a multiple of the page size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[tuple[int, int]] = [(0, size)]
        """(offset, size) by offset, never adjacent."""
        self._taken: dict[int, int] = {}

    @property
    def taken_bytes(self) -> int:
        """Bytes in blocks that are taken."""
        return sum(self._taken.values())

    def allocate(self, size: int) -> int | None:
        """The offset of a block of at least `size` bytes, None when no block is free."""
        needed = -(-max(size, 1) // _ALIGNMENT) * _ALIGNMENT
        for index, (offset, free) in enumerate(self._free):
            if free >= needed:
                if free == needed:
                    del self._free[index]
                else:
                    self._free[index] = (offset + needed, free - needed)
                self._taken[offset] = needed
                return offset
        return None

    def release(self, offset: int) -> int:
        """The block at `offset` is free again. Returns its size.

        Raises ProtocolError when no block was taken there: the peer releases what it was not given.
        """
        released = size = self._taken.pop(offset, 0)
        if not size:
            raise ProtocolError(f"release of a block at {offset}, where no block is allocated")
        index = bisect_left(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index > 0 and sum(self._free[index - 1]) == offset:
            index -= 1
            before, before_size = self._free[index]
            offset, size = before, before_size + size
            self._free[index] = (offset, size)
        else:
            self._free.insert(index, (offset, size))
        return released
