"""A region in a GPU's memory."""

from __future__ import annotations

import numpy as np

from tpy.devices import DeviceMemory
from tpy.messages import RegionFacts
from tpy.regions.copies import Bytes, RegionCopies


class DeviceRegion:
    """A `Region` over memory of a client's, opened by its CUDA IPC handle for as long as anyone refers to the region."""

    __slots__ = ("_memory", "copies", "facts")

    def __init__(self, facts: RegionFacts, memory: DeviceMemory, copies: RegionCopies) -> None:
        self.facts = facts
        self._memory = memory
        self.copies = copies

    def read(self, offset: int, size: int) -> Bytes:
        """As `Region.read`."""
        copy = self.copies.allocate(size)
        self.read_into(copy, offset)
        return copy

    def read_into(self, target: Bytes, offset: int) -> None:
        """As `Region.read_into`."""
        self._memory.device.copy_out(target, self._memory.address + offset)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """As `Region.write`."""
        self._memory.device.copy_in(self._memory.address + offset, np.frombuffer(data, np.uint8))
