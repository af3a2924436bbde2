"""RegionArray: an array in a region of a client's."""

from __future__ import annotations

import numpy as np

from tpy.devices import Array, ArrayReference
from tpy.messages import MemoryType, Place
from tpy.regions.copies import Bytes
from tpy.regions.region import Region


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

    def to_host(self) -> Array:
        """As `ArrayReference.to_host`. Raises as `Region.read_into`."""
        copy: Bytes = np.empty(self.nbytes, np.uint8)
        self.read_into(copy)
        return copy.view(self.dtype).reshape(self.shape)

    def read_into(self, target: Bytes) -> None:
        """Copy its bytes. Raises as `Region.read_into`."""
        self.memory.region.read_into(target, self.offset)
