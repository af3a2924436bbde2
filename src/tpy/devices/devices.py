"""Devices: the GPUs of one server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tpy.devices.array import Array, DeviceArray
from tpy.devices.device import Device, DeviceMemory
from tpy.devices.pools import DevicePool, PinnedPool
from tpy.errors import Unavailable

CUDA_POOL_BYTES_DEFAULT = 64 * 1024 * 1024
PINNED_POOL_BYTES_DEFAULT = 256 * 1024 * 1024
"""Triton's."""


class Devices:
    """The devices by id, and their pools. Any thread."""

    def __init__(
        self,
        devices: Sequence[Device] = (),
        *,
        pinned_pool_bytes: int = PINNED_POOL_BYTES_DEFAULT,
        cuda_pool_bytes: Mapping[int, int] | None = None,
    ) -> None:
        """`cuda_pool_bytes` by id, where that is not the default."""
        sizes = cuda_pool_bytes or {}
        self._pools = {device.id: DevicePool(device, sizes.get(device.id, CUDA_POOL_BYTES_DEFAULT)) for device in devices}
        self.pinned = PinnedPool(devices[0] if devices else None, pinned_pool_bytes)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._pools)

    def get(self, device_id: int) -> Device:
        """Raises Unavailable for a device that is not there."""
        return self._pool(device_id).device

    def allocate(self, device_id: int, size: int) -> DeviceMemory:
        """Returns memory of the device. Raises Unavailable when it has no room."""
        return self._pool(device_id).allocate(size)

    def pool_used_bytes(self, device_id: int) -> int:
        """Of the device's pool, now."""
        return self._pool(device_id).used_bytes

    def to_device(self, array: Array, device_id: int) -> DeviceArray:
        """Returns a copy of a host array on the device."""
        memory = self.allocate(device_id, array.nbytes)
        made = DeviceArray(memory, array.shape, array.dtype)
        if array.nbytes:
            memory.device.copy_in(made.address, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return made

    def concatenate(self, arrays: Sequence[Array | DeviceArray], device_id: int) -> DeviceArray:
        """Returns the rows of all arrays, of the host or of the device, one after the other, on the device."""
        rows = sum(array.shape[0] for array in arrays)
        first = arrays[0]
        memory = self.allocate(device_id, sum(array.nbytes for array in arrays))
        made = DeviceArray(memory, (rows, *first.shape[1:]), first.dtype)
        at = made.address
        for array in arrays:
            if isinstance(array, DeviceArray):
                memory.device.copy_within(at, array.address, array.nbytes)
            elif array.nbytes:
                memory.device.copy_in(at, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            at += array.nbytes
        return made

    def copy(self, array: DeviceArray) -> DeviceArray:
        """Returns a copy on the same device, in memory of the server's own."""
        made = DeviceArray(self.allocate(array.memory.device.id, array.nbytes), array.shape, array.dtype)
        if array.nbytes:
            made.memory.device.copy_within(made.address, array.address, array.nbytes)
        return made

    def to_host(self, array: DeviceArray) -> Array:
        """Returns a copy in host memory, pinned while there is any."""
        return array.to_host(self.pinned.allocate(array.nbytes))

    def _pool(self, device_id: int) -> DevicePool:
        pool = self._pools.get(device_id)
        if pool is None:
            raise Unavailable(f"there is no GPU {device_id}")
        return pool


NO_DEVICES = Devices(pinned_pool_bytes=0)
"""Those of a machine without GPUs."""
