"""Shared memory for large tensors: anonymous files (memfd) that travel over the socket, so nothing is left behind by a crash.

Each end lends segments to the other: it writes tensors into one, sends its id (and, the first time, its file), and does not
touch it until the other end says that nobody looks at it any more. So an array stays valid for as long as somebody holds it, a
response that waits for a slow client as well as an input that a model keeps, and memory that was touched once is used again.

Segments cannot shrink (sealed): a broken or hostile peer cannot make a read of ours fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from .core.batch import Array, NoMemory, PlacedData, Segment
from .core.frames import ProtocolViolation

# linux/fcntl.h; the fcntl module names them since Python 3.9 only on some builds.
F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_SHRINK = 2

SEGMENT_BYTES_MIN = 1024 * 1024
"""Sizes are powers of two from here on: pages that are never touched cost nothing, and a somewhat larger batch fits."""

SEGMENT_BYTES_MAX = 1 << 36
"""64 GiB: more than any batch, and what a peer may make us map at most."""

BORROWED_SEGMENTS_MAX = 8192
"""Segments of a peer that are mapped at once: each costs a descriptor. A hundred streams of large responses stay below."""

FREE_SEGMENTS_MIN = 2
"""Free segments that are kept in any case: one being written while the answer in the other still goes out."""

FREE_BYTES_MAX = 64 * 1024 * 1024
"""Of free segments, beyond that: with four clients at a time five are in use, and 12 MB anew cost 2 ms of page faults."""


class _Segment:
    """One segment of ours."""

    __slots__ = ("bytes", "memory", "number")

    def __init__(self, number: int, memory: mmap.mmap) -> None:
        self.number = number
        self.memory = memory
        self.bytes = len(memory)

    def give_pages_back(self) -> None:
        """Give its memory back to the system, for both ends."""
        with contextlib.suppress(OSError):  # a kernel that cannot
            self.memory.madvise(mmap.MADV_REMOVE)


class Loan:
    """A segment on its way to the peer. `descriptor` is a file to send along (then to close with `sent`), or -1."""

    __slots__ = ("_memory", "descriptor", "number", "size")

    def __init__(self, number: int, memory: mmap.mmap, descriptor: int) -> None:
        self.number = number
        self.size = len(memory)
        self.descriptor = descriptor
        self._memory = memory

    def write(self, placed: Sequence[PlacedData]) -> None:
        """Copy tensors into it. Before it is sent."""
        whole = np.frombuffer(self._memory, np.uint8)
        for offset, data in placed:  # by numpy, which lets other threads run meanwhile: 300 MB into new memory take 0.3 s
            if isinstance(data, (memoryview, bytes)):
                whole[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
            else:
                data.read_into(whole[offset : offset + data.nbytes])

    def sent(self) -> None:
        """The message is out (or never will be)."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Lender:
    """The segments that this end writes. One thread at a time."""

    def __init__(self, *, frees_at_once: bool = True) -> None:
        """`frees_at_once`: the pages of segments are given back when these are dropped, which holds the GIL for 0.1 to 0.3 ms a
        MiB. Otherwise the peer does it, when it hears of them and unmaps them last."""
        self._frees_at_once = frees_at_once
        self._free: list[_Segment] = []
        self._lent: dict[int, Any] = {}
        """Segments, and whatever else the peer is shown (`lend`)."""
        self._numbers = 0
        self.dropped: list[int] = []
        """Those for `take_dropped`."""

    def take(self, size: int) -> Loan:
        """A segment of at least `size` bytes, which counts as lent. Raises OSError when there is no memory."""
        segment, descriptor = self._take(size)
        self._lent[segment.number] = segment
        return Loan(segment.number, segment.memory, descriptor)

    def lend(self, memory: object) -> int:
        """Keep this, which is not a segment, until its number is given back."""
        self._numbers += 1
        self._lent[self._numbers] = memory
        return self._numbers

    def lent(self, number: int) -> Any:
        """Returns what was lent under this number, None for nothing and for a segment."""
        found = self._lent.get(number)
        return None if isinstance(found, _Segment) else found

    def forget(self, numbers: Sequence[int]) -> None:
        """These were to be shown to the peer, and were not sent."""
        for number in numbers:
            self._lent.pop(number, None)

    def take_unsent(self, loan: Loan) -> None:
        """This one was not sent, and will not be."""
        segment = self._lent.pop(loan.number)
        if loan.descriptor < 0:  # the peer knows it
            self._free.append(segment)
        loan.sent()

    def take_back(self, numbers: Sequence[int]) -> None:
        """The peer does not look at these segments any more. Raises ProtocolViolation for one that it did not have."""
        for number in numbers:
            segment = self._lent.pop(number, None)
            if segment is None:
                raise ProtocolViolation(f"segment {number} given back, but it was not lent")
            if isinstance(segment, _Segment):
                self._free.append(segment)
        while len(self._free) > FREE_SEGMENTS_MIN and sum([segment.bytes for segment in self._free]) > FREE_BYTES_MAX:
            smallest = min(self._free, key=lambda segment: segment.bytes)
            self._free.remove(smallest)
            if self._frees_at_once:
                smallest.give_pages_back()  # the peer has it mapped until the next message
            self.dropped.append(smallest.number)

    def give_memory_back(self) -> None:
        """Give the pages of free segments back to the system, for both ends. The segments stay: what is written next gets new
        pages."""
        for segment in self._free:
            segment.give_pages_back()

    def take_dropped(self) -> list[int]:
        """Segments that the peer should unmap; to be said in the next message."""
        dropped = list(self.dropped)
        self.dropped.clear()
        return dropped

    def _take(self, size: int) -> tuple[_Segment, int]:
        fitting = [segment for segment in self._free if segment.bytes >= size]
        if fitting:
            segment = min(fitting, key=lambda candidate: candidate.bytes)
            self._free.remove(segment)
            return segment, -1
        length = max(SEGMENT_BYTES_MIN, 1 << (size - 1).bit_length())
        descriptor = os.memfd_create("tpy-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, length)
            fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK)
            memory = mmap.mmap(descriptor, length, mmap.MAP_SHARED)
        except BaseException:
            os.close(descriptor)
            raise
        self._numbers += 1
        return _Segment(self._numbers, memory), descriptor


class _Hold:
    """Keeps a borrowed segment from being given back; every array over it has this as its base."""

    __slots__ = ("__array_interface__", "_number", "_released", "_whole")

    def __init__(self, whole: Array, number: int, released: deque[int]) -> None:
        self._whole = whole
        self._number = number
        self._released = released
        self.__array_interface__ = whole.__array_interface__

    def __del__(self) -> None:
        # The last array over the segment is gone, in whatever thread that happened. Appending is atomic.
        self._released.append(self._number)


class Borrower:
    """The peer's segments, as this end sees them."""

    def __init__(self, *, writable: bool) -> None:
        self._protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._mapped: dict[int, Array] = {}
        self._unmapped: dict[int, int] = {}
        """The files of those for which there was no memory."""
        self.released: deque[int] = deque()
        """Those for `take_released`."""

    def borrow(self, number: int, size: int, descriptor: int | None) -> Segment:
        """The segment as flat uint8; it counts as in use until the returned array and all its views are gone. NoMemory when it
        cannot be mapped now: it is not in use, and the next message with it tries again.

        `descriptor` is the file that came with the message, None for a segment that is known; it is the borrower's. Raises
        ProtocolViolation when the segment is not what the message says.
        """
        whole = self._mapped.get(number)
        if descriptor is not None and (whole is not None or number in self._unmapped):
            os.close(descriptor)
            raise ProtocolViolation(f"segment {number} was sent twice")
        if descriptor is None:
            descriptor = self._unmapped.pop(number, None)
        if descriptor is not None:
            keeps = False
            try:
                if len(self._mapped) + len(self._unmapped) >= BORROWED_SEGMENTS_MAX:
                    raise ProtocolViolation(f"more than {BORROWED_SEGMENTS_MAX} segments were sent, and none forgotten")
                whole = map_sealed(number, size, descriptor, self._protection)
            except NoMemory as error:
                keeps = True
                self._unmapped[number] = descriptor
                self.released.append(number)
                return NoMemory(str(error))
            finally:
                if not keeps:
                    os.close(descriptor)
            self._mapped[number] = whole
        if whole is None or whole.size != size:
            raise ProtocolViolation(f"segment {number} of {size} bytes is not known")
        return np.asarray(_Hold(whole, number, self.released))

    def drop(self, numbers: Sequence[int]) -> None:
        """The peer will not use these any more."""
        for number in numbers:
            self._mapped.pop(number, None)
            descriptor = self._unmapped.pop(number, None)
            if descriptor is not None:
                os.close(descriptor)

    def close(self) -> None:
        """Close the files. Segments are unmapped when nobody looks at them."""
        self.drop(list(self._unmapped))

    def take_released(self) -> list[int]:
        """Segments that nobody here looks at any more; to be said in the next message."""
        released = []
        while self.released:
            released.append(self.released.popleft())
        return released


def trim() -> None:
    """Have glibc return free memory of this process to the system; another C library is left alone."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if found is not None:
        found(0)


def map_sealed(number: int, size: int, descriptor: int, protection: int) -> np.ndarray[Any, Any]:
    """A peer's file as flat uint8. Raises ProtocolViolation when it is not memory of this size that cannot shrink, NoMemory when
    there is no address space for it."""
    if not 0 < size <= SEGMENT_BYTES_MAX:
        raise ProtocolViolation(f"segment {number} is said to have {size} bytes")
    try:
        sealed = fcntl.fcntl(descriptor, F_GET_SEALS) & F_SEAL_SHRINK
    except OSError:
        sealed = 0
    if not sealed or os.fstat(descriptor).st_size < size:
        raise ProtocolViolation(f"segment {number} is not sealed memory of {size} bytes")
    try:
        memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, protection)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise NoMemory(f"no address space for {size} bytes of shared memory: {error}") from None
        raise ProtocolViolation(f"segment {number} of {size} bytes cannot be mapped: {error}") from None
    return np.frombuffer(memory, np.uint8)
