"""DeviceBuffer: an array in a device's memory."""

from __future__ import annotations


class DeviceBuffer:
    """A contiguous array in a device's memory, which is there as long as `owner` is; nobody touches it here."""

    __slots__ = ("address", "device_id", "nbytes", "owner", "shape")

    def __init__(self, address: int, shape: tuple[int, ...], nbytes: int, device_id: int, owner: object) -> None:
        self.address = address
        self.shape = shape
        self.nbytes = nbytes
        self.device_id = device_id
        self.owner = owner
