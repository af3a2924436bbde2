"""Bounded pools: of pinned host memory, and of each device's memory. Both go on without one, as Triton does, and say so once."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any

import numpy as np

from tpy.devices.core.ranges import Ranges
from tpy.devices.device import Bytes, Device, DeviceMemory
from tpy.errors import TpyError

_log = logging.getLogger(__name__)


class _Block:
    """Gives out ranges of one block of memory, at `address`."""

    def __init__(self, address: int, size: int, owner: object) -> None:
        self.address = address
        self._owner = owner
        self._ranges = Ranges(size)
        self._lock = threading.RLock()  # the garbage collector, and so `give_back`, may run wherever it is held

    @property
    def used(self) -> int:
        return self._ranges.used

    def take(self, size: int) -> int | None:
        with self._lock:
            return self._ranges.take(size)

    def give_back(self, begin: int) -> None:
        with self._lock:
            self._ranges.give_back(begin)


class PinnedPool:
    """Host memory for copies from and to devices: pinned as far as the pool goes, ordinary beyond. Any thread."""

    def __init__(self, device: Device | None, size: int) -> None:
        """`size` 0 means no pool. Where memory cannot be pinned there is no pool either, and a warning is logged."""
        self.total_bytes = max(0, size)
        self._memory: Bytes | None = None
        self._block: _Block | None = None
        self._warned = False
        if device is None or not self.total_bytes:
            return
        try:
            memory = device.allocate_pinned(self.total_bytes)
        except TpyError as error:
            _log.warning(
                "Unable to allocate pinned system memory, pinned memory pool will not be available: %(reason)s",
                {"reason": error.message},
            )
            return
        self._memory = memory
        self._block = _Block(memory.ctypes.data, memory.size, memory)
        _log.info("Pinned memory pool is created at '%#x' with size %d", self._block.address, self.total_bytes)

    @property
    def used_bytes(self) -> int:
        """Of the pool, now."""
        return 0 if self._block is None else self._block.used

    def allocate(self, size: int) -> Bytes:
        """Returns `size` bytes, which are the pool's again when nobody refers to them."""
        block, memory = self._block, self._memory
        begin = None if block is None else block.take(size)
        if begin is None or block is None or memory is None:
            self._warn("" if block is not None else ": no pinned memory pool")
            return np.empty(size, np.uint8)
        # The array that is handed out is a view: arrays that are made of it refer to it, and not past it to the memory.
        array: Bytes = np.frombuffer(memory[begin : begin + size].data, np.uint8) if size else np.empty(0, np.uint8)
        weakref.finalize(array, block.give_back, begin).atexit = False
        return array

    def is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        """Returns whether the array lies in the pool."""
        block = self._block
        return block is not None and 0 <= array.ctypes.data - block.address < self.total_bytes

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "failed to allocate pinned system memory%(reason)s, falling back to non-pinned system memory", {"reason": reason}
            )


class DevicePool:
    """Memory of one device: from the pool as far as that goes, and else from the device itself. Any thread."""

    def __init__(self, device: Device, size: int) -> None:
        """`size` 0 means no pool."""
        self.device = device
        self._block: _Block | None = None
        self._warned = False
        if size <= 0:
            return
        try:
            memory = device.allocate(size)
        except TpyError as error:
            _log.error("Failed to initialize CUDA memory manager: %(reason)s", {"reason": error.message})
            return
        self._block = _Block(memory.address, size, memory)
        self.memory = memory
        _log.info("CUDA memory pool is created on device %d with size %d", device.id, size)

    @property
    def used_bytes(self) -> int:
        """Of the pool, now."""
        return 0 if self._block is None else self._block.used

    def allocate(self, size: int) -> DeviceMemory:
        """Returns memory, the pool's as long as that has any. Raises Unavailable when the device has no room, either."""
        block = self._block
        begin = None if block is None else block.take(size)
        if block is None or begin is None:
            if block is not None and not self._warned:
                self._warned = True
                _log.warning(
                    "Failed to allocate CUDA memory with byte size %d on GPU %d: the pool is full; falling back to other memory",
                    size,
                    self.device.id,
                )
            return self.device.allocate(size)
        return DeviceMemory(self.device, block.address + begin, size, owner=self.memory, release=lambda: block.give_back(begin))
