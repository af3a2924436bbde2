"""Shared memory for tensors: anonymous files that have no name anywhere, so that nothing is left of them however their processes
end. Their size is sealed: nobody can take it away under the other's feet."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import trio

from tpy.errors import InvariantViolation
from tpy.limits.remote import REMOTE_ARENA_WARM_BYTES
from tpy.remote.core.arena import Arena
from tpy.remote.core.framing import ProtocolError
from tpy.remote.core.messages import encode
from tpy.remote.core.tensors import Bytes, Place


def create_memory(size: int) -> int:
    """A descriptor of new shared memory of `size` bytes, which take memory as they are written. The caller closes it."""
    descriptor = os.memfd_create("tpy-tensors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class OwnMemory:
    """Memory that this process writes and the other reads."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)
        self._bytes: Bytes = np.frombuffer(self._map, np.uint8)
        self._arena = Arena(size)
        self._lock = threading.Lock()
        """Held while blocks are taken, in threads too, or released."""

    @property
    def taken_bytes(self) -> int:
        """Bytes in blocks that are taken."""
        return self._arena.taken_bytes

    def frame(self, message: Callable[[Place], msgspec.Struct]) -> bytes:
        """The frame of a message whose tensors are placed here: the other process releases their blocks. Raises ValueError and
        MemoryError, and places nothing, for one that cannot be sent. In any thread."""
        placed: list[int] = []

        def place(size: int) -> tuple[int, Bytes] | None:
            with self._lock:
                offset = self._arena.allocate(size)
            if offset is None:
                return None
            placed.append(offset)
            return offset, self._bytes[offset : offset + size]

        try:
            return encode(message(place))
        except BaseException:
            for offset in placed:
                self.release(offset)
            raise

    def release(self, offset: int) -> None:
        """The block at `offset` is not read any more. Raises ProtocolError when there is no such block."""
        with self._lock:
            size = self._arena.release(offset)
        start = max(offset, REMOTE_ARENA_WARM_BYTES)
        if start < offset + size:
            with contextlib.suppress(OSError):  # a kernel that does not: the pages stay
                self._map.madvise(mmap.MADV_REMOVE, start, offset + size - start)

    def close(self) -> None:
        """Nothing is written any more."""
        self._bytes = np.empty(0, np.uint8)
        self._map.close()


class PeerMemory:
    """Memory that the other process writes and this one reads. `tell` is called on the Trio thread when there is something in
    `take_released`. Made in a Trio run."""

    def __init__(self, descriptor: int, size: int, tell: Callable[[], None]) -> None:
        self._map: mmap.mmap | None = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        self._descriptor = os.dup(descriptor)
        self._size = size
        self._tell = tell
        self._token = trio.lowlevel.current_trio_token()
        self._released: deque[int] = deque()
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._newest = 0

    def view(self, offset: int, size: int) -> Bytes:
        """See core.tensors.View. The block is released when the array, and all that are views of it, are gone."""
        if not 0 <= offset < offset + size <= self._size:
            raise ProtocolError(f"a block of {size} bytes at {offset}, outside the {self._size} bytes of shared memory")
        if self._map is None:
            raise InvariantViolation("the shared memory of a process that is gone is looked at")
        array: Bytes = np.frombuffer(self._map, np.uint8, count=size, offset=offset)
        self._newest = number = self._newest + 1

        def gone(_: object) -> None:
            # Wherever the last reference was: in an instance's thread, or in the middle of anything on the loop.
            del self._watched[number]
            if self._map is None:
                return
            self._released.append(offset)
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._tell, idempotent=True)

        self._watched[number] = weakref.ref(array, gone)
        return array

    def read(self, offset: int, size: int) -> bytes:
        """See core.tensors.Read."""
        return os.pread(self._descriptor, size, offset)

    def take_released(self) -> tuple[int, ...]:
        """The offsets of blocks that are not read any more, each once."""
        found: list[int] = []
        while self._released:
            found.append(self._released.popleft())
        return tuple(found)

    def close(self) -> None:
        """The other process is gone: nobody is told of releases any more. The memory goes with the last array that is a view of
        it."""
        self._map = None
        os.close(self._descriptor)
