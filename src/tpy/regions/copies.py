"""The memory that copies out of regions take, counted."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from tpy.errors import Unavailable
from tpy.limits import REGION_COPIES_BYTES_MAX

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
