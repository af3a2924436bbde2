"""RegionArray: an array in a region of a client's."""

from __future__ import annotations

import numpy as np

from tpy.devices import Array, ArrayReference
from tpy.errors import Unavailable
from tpy.messages import MemoryType, Place
from tpy.regions.region import Bytes, Region
from tpy.regions.registry import DeviceRegion


class CountedRegion:
    """A region of which `size` bytes are to be copied. They count as a copy from now on, until nobody refers to this any more:
    also while they are in the memory of a worker. Raises Unavailable when there are too many copies."""

    __slots__ = ("__weakref__", "region")

    def __init__(self, region: Region, size: int) -> None:
        region.copies.count(self, size)
        self.region = region


class RegionArray(ArrayReference):
    """An array that is read once, by whoever puts it where a model sees it; `memory` keeps the region."""

    __slots__ = ()

    memory: CountedRegion

    @property
    def place(self) -> Place:
        return Place(MemoryType.REGION)

    @property
    def gpu(self) -> int | None:
        """The GPU whose memory the region is in, None for the host's."""
        return self.memory.region.facts.gpu

    def within_reach(self, takes: frozenset[Place]) -> Array:
        """As `ArrayReference.within_reach`. On a GPU where it is, if that has memory for a copy."""
        region = self.memory.region
        if isinstance(region, DeviceRegion) and Place(MemoryType.GPU, region.facts.device_id) in takes:
            try:
                return region.on_device(self.offset, self.shape, self.dtype).as_array()
            except Unavailable:
                pass
        return self.to_host()

    def to_host(self) -> Array:
        """As `ArrayReference.to_host`. Raises as `Region.read_into`."""
        copy: Bytes = np.empty(self.nbytes, np.uint8)
        self.read_into(copy)
        return copy.view(self.dtype).reshape(self.shape)

    def read_into(self, target: Bytes) -> None:
        """Copy its bytes. Raises as `Region.read_into`."""
        self.memory.region.read_into(target, self.offset)
