"""Maps of client's segments, copied to and from under a guard.

A map of a file that somebody else makes shorter raises SIGBUS where it is touched, which ends a process. Copies by system calls
do not, but they cost three times as much. So large copies go through a map, in threads that let go of the interpreter meanwhile:

* the thread that touches what is gone gets the signal; the interpreter only notes it, and the thread tries again, and again;
* the main thread, awake by the note, calls `_repair`, which puts empty memory in the place of the map, if it is that one's copy
  that cannot go on: its segment is too short, or has no memory there and the file system no room for any;
* the next try succeeds, the copy ends, and whoever made it sees that the map is lost.

Only threads other than the main one may copy so, and only while the main thread runs Python: `is_usable` says whether.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tpy.limits import REGION_SIGNALS_APART_S_MAX, REGION_UNEXPLAINED_SIGNALS_MAX

_MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x02, 0x10, 0x20
_KEEP_SIZE = 0x01
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.fallocate.restype = ctypes.c_int
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class SegmentMap:
    """A map of `size` bytes at `offset` of a segment, which must be open for as long as the map is used. `lost` once it is not
    the segment any more, `full` if that is because there was no room for its memory. Raises OSError when it cannot be made."""

    __slots__ = ("__weakref__", "_address", "_begin", "_descriptor", "_end", "_size", "full", "lost")

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._begin = offset
        self._end = offset + size
        self._address = _map(None, size, mmap.MAP_SHARED, descriptor, offset)
        self.lost = self.full = False
        weakref.finalize(self, _libc.munmap, self._address, size).atexit = False

    @property
    def is_short(self) -> bool:
        """True once the segment is shorter than the map."""
        return os.fstat(self._descriptor).st_size < self._end

    def load(self, offset: int, size: int, target: int) -> None:
        """Copy the bytes at `offset` to the address `target`. To be asked whether it is lost afterwards."""
        self._copy(offset, size, target, self._address + offset)

    def store(self, offset: int, size: int, source: int) -> None:
        """Copy the bytes at the address `source` to `offset`. To be asked whether it is lost afterwards."""
        self._copy(offset, size, self._address + offset, source)

    def find_room(self, offset: int, size: int) -> bool | None:
        """Have memory for the first page in this range without any. False if there is no room, None if every page has memory."""
        begin, end = self._begin + offset, self._begin + offset + size
        try:
            hole = os.lseek(self._descriptor, begin, os.SEEK_HOLE)
        except OSError:  # shorter meanwhile
            return None
        if hole >= end:
            return None
        page = hole - hole % mmap.PAGESIZE
        made: bool = _libc.fallocate(self._descriptor, _KEEP_SIZE, page, mmap.PAGESIZE) == 0
        self.full = not made and ctypes.get_errno() != errno.EINTR
        return not self.full

    def replace(self) -> None:
        """Put empty memory in its place."""
        self.lost = True
        _map(self._address, self._size, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_FIXED, -1, 0)

    def _copy(self, offset: int, size: int, target: int, source: int) -> None:
        copy = _Copy(self, offset, size)
        _active.add(copy)
        try:
            ctypes.memmove(target, source, size)  # without the interpreter
        finally:
            _active.discard(copy)


class _Copy:
    """A copy that is being made."""

    __slots__ = ("map", "offset", "size")

    def __init__(self, of: SegmentMap, offset: int, size: int) -> None:
        self.map = of
        self.offset = offset
        self.size = size


_active: set[_Copy] = set()
_main: int | None = None
_unexplained = 0
_unexplained_at = 0.0
_repairing = False


@contextmanager
def guarded() -> Iterator[None]:
    """Guards copies for the length of the block, in which the main thread, this one, runs an event loop."""
    global _main
    before = signal.signal(signal.SIGBUS, _repair)
    _main = threading.get_ident()
    try:
        yield
    finally:
        _main = None
        signal.signal(signal.SIGBUS, before or signal.SIG_DFL)  # None: not one of Python, such as faulthandler's


def is_usable() -> bool:
    """Returns true on a thread that may copy under the guard."""
    return _main is not None and threading.get_ident() != _main


def _repair(number: int, frame: FrameType | None) -> None:
    """Let the copies end that cannot go on. A thread that waits for that gets the signal again and again: signals during a repair
    are left to that repair, or each would begin another within the one before, without end."""
    global _repairing
    if _repairing:
        return
    _repairing = True
    try:
        _replace_broken(number)
    finally:
        _repairing = False


def _replace_broken(number: int) -> None:
    """Signals are merged, and one may come after its cause was repaired. What no copy explains ends the process in the end, as it
    would without the guard."""
    global _unexplained, _unexplained_at
    copies = tuple(_active)
    broken = {copy.map for copy in copies if copy.map.is_short}
    explained = bool(broken)
    if not broken:
        # A file system without room has the same effect, on segments whose memory it does not have yet.
        found = {copy: copy.map.find_room(copy.offset, copy.size) for copy in copies}
        broken = {copy.map for copy, room in found.items() if room is False}
        explained = any(room is not None for room in found.values())
    if not explained:
        now = time.monotonic()
        _unexplained = _unexplained + 1 if now - _unexplained_at < REGION_SIGNALS_APART_S_MAX else 1
        _unexplained_at = now
        if _unexplained < REGION_UNEXPLAINED_SIGNALS_MAX:
            return
        broken = {copy.map for copy in copies}
        if not broken:
            signal.signal(number, signal.SIG_DFL)
    _unexplained = 0
    for each in broken:
        each.replace()


def _map(address: int | None, size: int, flags: int, descriptor: int, offset: int) -> int:
    made: int | None = _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, offset)
    if made is None or made == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return made
