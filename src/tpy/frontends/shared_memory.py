"""Tensors that do not travel in their message: where a request says that they are, and the copies to and from there.

    TensorResolver.resolve      a region, an offset and a size, as a request names them -> RegionRange
    read_region                 the input that is there, decoded
    RegionRange.store           an output is written there

Codecs know no more of shared memory than this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from tpy.devices import DeviceArray
from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument, NotFound
from tpy.frontends.binary_tensor import byte_size_mismatch, element_count, read_binary, write_binary
from tpy.limits import REGION_INLINE_BYTES_MAX, REGION_INLINE_STRING_BYTES_MAX
from tpy.messages import DataType, ModelDescription, Residency, Tensor
from tpy.regions import CountedRegion, DeviceRegion, Region, RegionArray

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

    @property
    def gpu(self) -> int | None:
        """The GPU whose memory it is in, None for the host's. Copies from and to that are made in threads only."""
        return self._region.facts.gpu

    @property
    def takes_device_arrays(self) -> bool:
        """True if an output may be stored that is still on a GPU."""
        return isinstance(self._region, DeviceRegion)

    def reference(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> RegionArray:
        """Returns the array of `byte_size` bytes without a copy. Raises Unavailable as `load`."""
        return RegionArray(CountedRegion(self._region, self.byte_size), shape, dtype, self._offset)

    def load(self, *, inline_bytes_max: int = REGION_INLINE_BYTES_MAX) -> memoryview:
        """Returns a copy of the bytes. Raises LongCopy on the loop for memory of a GPU, and when there are more than
        `inline_bytes_max`; TpyError as Region.read."""
        if self._inline and (self.byte_size > inline_bytes_max or self.gpu is not None):
            raise LongCopy
        return self._region.read(self._offset, self.byte_size).data

    def store(self, tensor: Tensor) -> None:
        """Write the tensor's bytes. Raises Internal when they are more than there is room for; TpyError as Region.write."""
        region, array = self._region, cast(object, tensor.array)
        if isinstance(array, DeviceArray) and isinstance(region, DeviceRegion):
            self._require_room(tensor, array.nbytes)
            region.take(self._offset, array)
        else:
            data = write_binary(tensor.array, tensor.datatype)
            self._require_room(tensor, len(data))
            region.write(self._offset, data)

    def _require_room(self, tensor: Tensor, size: int) -> None:
        if size > self.byte_size:
            raise Internal(
                f"shared memory size specified with the request for output '{echo(tensor.name)}' ({self.byte_size} bytes) "
                f"should be at least {size} bytes to hold the results"
            )


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


def residency_of(inputs: Iterable[Tensor], outputs: Mapping[str, RegionRange]) -> Residency | None:
    """Returns the residency of a request with tensors in regions: inputs that were left in a GPU's memory (`read_region`), and
    outputs that go there."""
    arrays: list[object] = [tensor.array for tensor in inputs]
    left = any(isinstance(array, RegionArray) and array.gpu is not None for array in arrays)
    kept = frozenset(name for name, found in outputs.items() if found.takes_device_arrays)
    return Residency(left, kept) if left or kept else None


NO_REGIONS = TensorResolver({})
"""The resolver of a server without regions."""


def read_region(
    found: RegionRange, datatype: DataType, shape: tuple[int, ...], *, tensor: str, description: ModelDescription, prefix: str
) -> np.ndarray[Any, Any]:
    """The array of `shape` in a copy of `found`; without a copy a large one, where the model's instances make one, and one in the
    memory of a GPU that has instances. Raises as `load`, and as `read_binary`, before anything is copied where the size
    can be told."""
    model = description.name
    if datatype is DataType.BYTES:
        data = found.load(inline_bytes_max=REGION_INLINE_STRING_BYTES_MAX)
    else:
        expected = element_count(shape) * datatype.itemsize
        if found.byte_size != expected:
            raise byte_size_mismatch(expected, found.byte_size, tensor=tensor, model=model, prefix=prefix)
        is_left = (description.copies_inputs and expected > REGION_INLINE_BYTES_MAX) or found.gpu in description.gpus
        if is_left and expected and datatype is not DataType.BOOL:  # whose bytes may be other than 0 and 1
            return found.reference(shape, datatype.numpy).as_array()
        data = found.load()
    return read_binary(data, datatype, shape, tensor=tensor, model=model, prefix=prefix)
