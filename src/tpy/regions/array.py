"""RegionArray: an array in a region of a client's."""

from __future__ import annotations

from tpy.devices import Array, ArrayReference
from tpy.messages import MemoryType, Place
from tpy.regions.copies import Bytes
from tpy.regions.region import Region


class RegionArray(ArrayReference):
    """An array that is read once, by whoever puts it where a model sees it; `memory` is the region, which it keeps."""

    __slots__ = ()

    memory: Region

    @property
    def place(self) -> Place:
        return Place(MemoryType.REGION)

    def to_host(self) -> Array:
        """As `ArrayReference.to_host`. Raises as `Region.read`."""
        return self.memory.read(self.offset, self.nbytes).view(self.dtype).reshape(self.shape)

    def read_into(self, target: Bytes) -> None:
        """Copy its bytes. Raises as `Region.read_into`."""
        self.memory.read_into(target, self.offset)
