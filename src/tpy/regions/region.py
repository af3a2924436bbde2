"""A region: a range of a client's segment."""

from __future__ import annotations

import os
import weakref

from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument
from tpy.messages import RegionFacts
from tpy.regions.copies import Bytes, RegionCopies
from tpy.regions.segments import identity_of


class Region:
    """A registered region. Its segment stays open for as long as anyone refers to the region: a request that began with it ends
    with it, also when it is unregistered meanwhile. Used from any thread."""

    __slots__ = ("__weakref__", "_copies", "descriptor", "facts", "identity")

    def __init__(self, facts: RegionFacts, descriptor: int, copies: RegionCopies) -> None:
        self.facts = facts
        self.descriptor = descriptor
        """Of the segment. The region closes it."""
        self.identity = identity_of(descriptor)
        """Of the segment, whatever its name."""
        self._copies = copies
        weakref.finalize(self, os.close, descriptor).atexit = False

    def read(self, offset: int, size: int) -> Bytes:
        """Returns a copy of the `size` bytes at `offset`, which lie within the region. Raises InvalidArgument when the segment
        has become too short for that, Unavailable when there are too many copies."""
        copy = self._copies.allocate(size)
        into, at = copy.data, self.facts.offset + offset
        done = 0
        try:
            while done < size:
                count = os.preadv(self.descriptor, [into[done:]], at + done)
                if not count:
                    raise self._too_short()
                done += count
        except OSError as error:
            raise self._failed("read", error) from None
        return copy

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Copy `data` to `offset`, where there is room for it within the region. Raises InvalidArgument when the segment has
        become too short for that."""
        size, at = len(data), self.facts.offset + offset
        view = memoryview(data)
        done = 0
        try:
            # A write would make a segment longer again that its client has made shorter.
            if os.fstat(self.descriptor).st_size < at + size:
                raise self._too_short()
            while done < size:
                done += os.pwritev(self.descriptor, [view[done:]], at + done)
        except OSError as error:
            raise self._failed("written", error) from None

    def _too_short(self) -> InvalidArgument:
        return InvalidArgument(
            f"shared memory region '{echo(self.facts.name)}' is shorter now than when it was registered: its segment "
            f"'{echo(self.facts.key)}' was truncated"
        )

    def _failed(self, action: str, error: OSError) -> Internal:
        return Internal(f"shared memory region '{echo(self.facts.name)}' cannot be {action}: {error.strerror}")
