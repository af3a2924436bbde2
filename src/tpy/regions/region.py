"""A region: memory of a client's, mostly a range of a segment; and the memory that copies out of regions take, counted."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from typing import Any, Protocol

import numpy as np

from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.limits import REGION_COPIES_BYTES_MAX, REGION_INLINE_BYTES_MAX
from tpy.messages import RegionFacts
from tpy.regions import maps
from tpy.regions.segments import identity_of

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class RegionCopies:
    """Copies that are alive, of all regions of one process. A request that names regions is small, whatever the tensors are that
    it has the server copy: this bounds them, as request bodies are bounded where they arrive. Used from any thread."""

    def __init__(self, capacity: int = REGION_COPIES_BYTES_MAX) -> None:
        self._capacity = capacity
        self._lock = threading.RLock()  # the garbage collector, and so `_give_back`, may run wherever it is held
        self.held_bytes = 0

    def allocate(self, size: int) -> Bytes:
        """Returns `size` bytes to copy into, which count until the array and all views of it are gone. Raises Unavailable when
        there would be too many."""
        self._take(size)
        try:
            # The array that is handed out is a view: arrays that are made of it refer to it, and not past it to the memory.
            array: Bytes = np.frombuffer(np.empty(size, np.uint8).data, np.uint8)
        except (MemoryError, ValueError):
            self._give_back(size)
            raise Unavailable(f"there is no memory for a tensor of {size} bytes from a shared memory region") from None
        weakref.finalize(array, self._give_back, size).atexit = False
        return array

    def count(self, owner: object, size: int) -> None:
        """Count `size` bytes that are copied elsewhere, until `owner` is gone. Raises as `allocate`."""
        self._take(size)
        weakref.finalize(owner, self._give_back, size).atexit = False

    def _take(self, size: int) -> None:
        with self._lock:
            if self.held_bytes + size > self._capacity:
                raise Unavailable(
                    f"the server holds {self.held_bytes} bytes of tensors from shared memory regions, at most {self._capacity} "
                    f"are accepted: no room for {size} more"
                )
            self.held_bytes += size

    def _give_back(self, size: int) -> None:
        with self._lock:
            self.held_bytes -= size


class Region(Protocol):
    """A registered region. It stays usable for as long as anyone refers to it. Used from any thread."""

    @property
    def facts(self) -> RegionFacts: ...

    @property
    def copies(self) -> RegionCopies:
        """The count of its copies."""
        ...

    def read(self, offset: int, size: int) -> Bytes:
        """Returns a copy of the `size` bytes at `offset`, which lie within the region. Raises InvalidArgument or Internal when
        its memory is not there any more, Unavailable when there are too many copies."""
        ...

    def read_into(self, target: Bytes, offset: int) -> None:
        """Copy the bytes at `offset`, which lie within the region, to `target`, which is contiguous. Raises as `read`, but
        Unavailable."""
        ...

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Copy `data` to `offset`, where there is room for it within the region. Raises as `read`."""
        ...


class SegmentRegion:
    """A `Region` in a segment of the system, which stays open for as long as anyone refers to the region: a request that began
    with it ends with it, also when it is unregistered meanwhile. Small copies are system calls, large ones go through a map where
    that is safe."""

    __slots__ = ("__weakref__", "_map", "copies", "descriptor", "facts", "identity")

    def __init__(self, facts: RegionFacts, descriptor: int, copies: RegionCopies) -> None:
        self.facts = facts
        self.descriptor = descriptor
        """Of the segment. The region closes it."""
        self.identity = identity_of(descriptor)
        """Of the segment, whatever its name."""
        self.copies = copies
        self._map: maps.SegmentMap | None = None
        weakref.finalize(self, os.close, descriptor).atexit = False

    def read(self, offset: int, size: int) -> Bytes:
        """Returns a copy of the `size` bytes at `offset`, which lie within the region. Raises InvalidArgument when the segment
        has become too short for that, Unavailable when there are too many copies."""
        copy = self.copies.allocate(size)
        self.read_into(copy, offset)
        return copy

    def read_into(self, target: Bytes, offset: int) -> None:
        """As `Region.read_into`."""
        try:
            found = self._mapped(target.size)
            if found is not None:
                found.load(offset, target.size, target.ctypes.data)
                self._check(found)
            else:
                self._read(target.data, self.facts.offset + offset)
        except OSError as error:
            raise self._failed("read", error) from None

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Copy `data` to `offset`, where there is room for it within the region. Raises InvalidArgument when the segment has
        become too short for that."""
        try:
            found = self._mapped(len(data))
            if found is not None:
                source = np.frombuffer(data, np.uint8)
                found.store(offset, len(data), source.ctypes.data)
                self._check(found)
            else:
                self._write(memoryview(data), self.facts.offset + offset)
        except OSError as error:
            raise self._failed("written", error) from None

    def _read(self, into: memoryview, at: int) -> None:
        while into:
            count = os.preadv(self.descriptor, [into], at)
            if not count:
                raise self._too_short()
            at += count
            into = into[count:]

    def _write(self, data: memoryview, at: int) -> None:
        # A write would make a segment longer again that its client has made shorter.
        if os.fstat(self.descriptor).st_size < at + len(data):
            raise self._too_short()
        while data:
            count = os.pwritev(self.descriptor, [data], at)
            at += count
            data = data[count:]

    def _mapped(self, size: int) -> maps.SegmentMap | None:
        """The map, when a copy of this size is to go through it; made by whoever needs it first."""
        if size <= REGION_INLINE_BYTES_MAX or not maps.is_usable():
            return None
        found = self._map
        if found is None or found.lost:
            found = self._map = maps.SegmentMap(self.descriptor, self.facts.offset, self.facts.byte_size)
        if found.is_short:
            raise self._too_short()
        return found

    def _check(self, used: maps.SegmentMap) -> None:
        """Raise InvalidArgument, or OSError, when the copy failed."""
        if used.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if used.lost:
            raise self._too_short()

    def _too_short(self) -> InvalidArgument:
        return InvalidArgument(
            f"shared memory region '{echo(self.facts.name)}' is shorter now than when it was registered: its segment "
            f"'{echo(self.facts.key)}' was truncated"
        )

    def _failed(self, action: str, error: OSError) -> Internal:
        return Internal(f"shared memory region '{echo(self.facts.name)}' cannot be {action}: {error.strerror}")
