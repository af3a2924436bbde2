"""Maps of client's segments, copied to and from under a guard.

A map of a file that somebody else makes shorter raises SIGBUS where it is touched, which ends a process. Copies by system calls
do not, but they cost three times as much. So large copies go through a map, in threads that let go of the interpreter meanwhile:

* the thread that touches what is gone gets the signal; the interpreter only notes it, and the thread tries again, and again;
* the main thread, awake by the note, calls `_repair`, which puts empty memory in the place of the map;
* the next try succeeds, the copy ends, and whoever made it sees that the map is lost.

Only threads other than the main one may copy so, and only while the main thread runs Python: `is_usable` says whether.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tpy.limits import REGION_UNEXPLAINED_SIGNALS_MAX

_MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x02, 0x10, 0x20
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.restype = ctypes.c_int
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class SegmentMap:
    """A map of `size` bytes at `offset` of a segment, which must be open for as long as the map is used. `lost` once it is not
    the segment any more. Raises OSError when it cannot be made."""

    __slots__ = ("__weakref__", "_address", "_descriptor", "_end", "_size", "lost")

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._end = offset + size
        self._address = _map(None, size, mmap.MAP_SHARED, descriptor, offset)
        self.lost = False
        weakref.finalize(self, _libc.munmap, self._address, size).atexit = False

    @property
    def is_short(self) -> bool:
        """True once the segment is shorter than the map."""
        return os.fstat(self._descriptor).st_size < self._end

    def load(self, offset: int, size: int, target: int) -> None:
        """Copy the bytes at `offset` to the address `target`. To be asked whether it is lost afterwards."""
        self._copy(target, self._address + offset, size)

    def store(self, offset: int, size: int, source: int) -> None:
        """Copy the bytes at the address `source` to `offset`. To be asked whether it is lost afterwards."""
        self._copy(self._address + offset, source, size)

    def replace(self) -> None:
        """Put empty memory in its place."""
        self.lost = True
        _map(self._address, self._size, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_FIXED, -1, 0)

    def _copy(self, target: int, source: int, size: int) -> None:
        copy = _Copy(self)
        _active.add(copy)
        try:
            ctypes.memmove(target, source, size)  # without the interpreter
        finally:
            _active.discard(copy)


class _Copy:
    """A copy that is being made."""

    __slots__ = ("map",)

    def __init__(self, of: SegmentMap) -> None:
        self.map = of


_active: set[_Copy] = set()
_main: int | None = None
_unexplained = 0
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
    """Let the copies end that cannot go on. A thread that waits for that gets the signal again and again: those that come in the
    middle of a repair are left to it, or each would begin another within the one before, without end."""
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
    global _unexplained
    copies = tuple(_active)
    broken = [copy.map for copy in copies if copy.map.is_short]
    if not broken:
        _unexplained += 1
        if _unexplained < REGION_UNEXPLAINED_SIGNALS_MAX:
            return
        broken = [copy.map for copy in copies]  # a file system without room has the same effect
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
