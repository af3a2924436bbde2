"""Tensors that do not travel in their message: where a request says that they are, and the copies to and from there.

    TensorResolver.resolve      a region, an offset and a size, as a request names them -> RegionRange
    read_region                 the input that is there, decoded
    RegionRange.store           an output is written there

Codecs know no more of shared memory than this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument, NotFound
from tpy.frontends.binary_tensor import byte_size_mismatch, element_count, read_binary, write_binary
from tpy.limits import REGION_INLINE_BYTES_MAX, REGION_INLINE_STRING_BYTES_MAX
from tpy.messages import DataType, ModelDescription, Tensor
from tpy.regions import CountedRegion, Region, RegionArray

_SIZE_MAX = 2**64 - 1
"""The largest of Triton's offsets and sizes; negative ones of gRPC wrap around."""


class LongCopy(Exception):
    """An input is too large to be copied on the loop: the request is to be decoded again in a thread."""


class RegionRange:
    """Bytes of a region that a request names. It keeps the region, also when that is unregistered meanwhile."""

    __slots__ = ("_inline", "_offset", "_region", "byte_size")

    def __init__(self, region: Region, offset: int, byte_size: int, *, inline: bool) -> None:
        self._region = region
        self._offset = offset
        self.byte_size = byte_size
        self._inline = inline

    def reference(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> RegionArray:
        """Returns the array of `byte_size` bytes without a copy. Raises Unavailable as `load`."""
        return RegionArray(CountedRegion(self._region, self.byte_size), shape, dtype, self._offset)

    def load(self, *, inline_bytes_max: int = REGION_INLINE_BYTES_MAX) -> memoryview:
        """Returns a copy of the bytes. Raises LongCopy on the loop when there are more than `inline_bytes_max`; TpyError as
        Region.read."""
        if self._inline and self.byte_size > inline_bytes_max:
            raise LongCopy
        return self._region.read(self._offset, self.byte_size).data

    def store(self, tensor: Tensor) -> None:
        """Write the tensor's bytes. Raises Internal when they are more than there is room for; TpyError as Region.write."""
        data = write_binary(tensor.array, tensor.datatype)
        if len(data) > self.byte_size:
            raise Internal(
                f"shared memory size specified with the request for output '{echo(tensor.name)}' ({self.byte_size} bytes) "
                f"should be at least {len(data)} bytes to hold the results"
            )
        self._region.write(self._offset, data)


class TensorResolver:
    """Finds what requests name. `inline`: on the loop, where large copies are not made."""

    __slots__ = ("_inline", "_regions")

    def __init__(self, regions: Mapping[str, Region], *, inline: bool = False) -> None:
        self._regions = regions
        self._inline = inline

    def resolve(self, name: str, offset: int, byte_size: int) -> RegionRange:
        """Returns the range. Raises NotFound for an unknown region, InvalidArgument for a range that is not within it."""
        region = self._regions.get(name)
        if region is None:
            raise NotFound(f"Unable to find shared memory region: '{echo(name)}'")
        offset &= _SIZE_MAX
        byte_size &= _SIZE_MAX
        if offset >= region.facts.byte_size:
            raise InvalidArgument(f"Invalid offset for shared memory region: '{echo(name)}'")
        if byte_size > _SIZE_MAX - offset:
            raise InvalidArgument(
                f"Integer overflow detected: byte_size ({byte_size}) + offset ({offset}) exceeds maximum value ({_SIZE_MAX}) for "
                f"region '{echo(name)}'"
            )
        if offset + byte_size > region.facts.byte_size:
            raise InvalidArgument(f"Invalid offset + byte size for shared memory region: '{echo(name)}'")
        return RegionRange(region, offset, byte_size, inline=self._inline)


NO_REGIONS = TensorResolver({})
"""The resolver of a server without regions."""


def read_region(
    found: RegionRange, datatype: DataType, shape: tuple[int, ...], *, tensor: str, description: ModelDescription, prefix: str
) -> np.ndarray[Any, Any]:
    """The array of `shape` in a copy of `found`; without a copy a large one, where the model's instances make one. Raises as
    `load`, and as `read_binary`, before anything is copied where the size can be told."""
    model = description.name
    if datatype is DataType.BYTES:
        data = found.load(inline_bytes_max=REGION_INLINE_STRING_BYTES_MAX)
    else:
        expected = element_count(shape) * datatype.itemsize
        if found.byte_size != expected:
            raise byte_size_mismatch(expected, found.byte_size, tensor=tensor, model=model, prefix=prefix)
        is_left = expected > REGION_INLINE_BYTES_MAX and description.copies_inputs
        if is_left and datatype is not DataType.BOOL:  # whose bytes may be other than 0 and 1
            return found.reference(shape, datatype.numpy).as_array()
        data = found.load()
    return read_binary(data, datatype, shape, tensor=tensor, model=model, prefix=prefix)
