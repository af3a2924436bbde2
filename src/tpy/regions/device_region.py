"""A region in a GPU's memory."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from tpy.devices import DeviceArray, DeviceMemory, Devices
from tpy.messages import RegionFacts
from tpy.regions.copies import Bytes, RegionCopies

_numbers = count(1)


class DeviceRegion:
    """A `Region` over memory of a client's, opened by its CUDA IPC handle for as long as anyone refers to the region. `number` is
    its own: no other region of this process has it, whatever their names."""

    __slots__ = ("_devices", "_memory", "copies", "facts", "number")

    def __init__(self, facts: RegionFacts, memory: DeviceMemory, copies: RegionCopies, devices: Devices) -> None:
        """Copies on the device are in memory of `devices`."""
        self.facts = facts
        self.number = next(_numbers)
        self.copies = copies
        self._memory = memory
        self._devices = devices

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

    def on_device(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """Returns a copy of an array in the region, on its device. Raises Unavailable when that has no memory, Internal when it
        fails."""
        return self._devices.copy(DeviceArray(self._memory, shape, dtype, offset))

    def take(self, offset: int, array: DeviceArray) -> None:
        """Copy an array to `offset`, where there is room for it: on the device if it is on the same one. Raises as
        `on_device`."""
        memory = self._memory
        if array.memory.device.id == memory.device.id:
            memory.device.copy_within(memory.address + offset, array.address, array.nbytes)
        else:
            self.write(offset, array.to_host().reshape(-1).view(np.uint8).data)
