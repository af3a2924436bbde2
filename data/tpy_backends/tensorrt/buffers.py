"""Device memory of an instance, and the copies to and from it, in the instance's stream."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpy.devices import Array, Bytes, Device, DeviceArray, DeviceMemory, Devices, Stream
from tpy.errors import Internal, InvalidArgument
from tpy_backends.tensorrt.library import Library
from tpy_backends.tensorrt.profiles import Shapes
from tpy_backends.tensorrt.signature import Shape


class Gathered(NamedTuple):
    """An input of a batch: its parts, which follow one another in memory, and the shape of the whole. Parts are arrays in host
    memory, or DeviceArrays."""

    parts: Sequence[Any]
    shape: Shape


def gathered(name: str, parts: Sequence[Any]) -> Gathered:
    """The parts joined along their first dimension. Raises InvalidArgument when they differ in the others."""
    first = parts[0].shape
    if len(parts) == 1:
        return Gathered(parts, first)
    if any(part.shape[1:] != first[1:] for part in parts):
        raise InvalidArgument(f"the requests of a batch differ in the shape of input '{name}'")
    return Gathered(parts, (sum(part.shape[0] for part in parts), *first[1:]))


class InputBuffers:
    """One buffer on the device for each input, large enough for everything that the instance takes. They stay where they are,
    because captured graphs read there."""

    def __init__(self, devices: Devices, device: Device, sizes: Mapping[str, int]) -> None:
        """Raises Unavailable when the device has no room."""
        self._devices = devices
        self._device = device
        self._memory = {name: device.allocate(size) for name, size in sizes.items()}

    def address(self, name: str) -> int:
        return self._memory[name].address

    def fill(self, name: str, given: Gathered, dtype: np.dtype[Any], stream: Stream) -> list[Bytes]:
        """Queue copies of all parts. Returns the staging memory, which must stay until the stream is synchronized.

        Raises Internal for more than the buffer holds.
        """
        memory = self._memory[name]
        size = math.prod(given.shape) * dtype.itemsize
        if size > memory.size:
            raise Internal(f"unexpected size for input '{name}', byte-size {memory.size} is less than {size}")
        staged: list[Bytes] = []
        offset, waiting = 0, list[Array]()
        for part in given.parts:
            if isinstance(part, DeviceArray):
                offset = self._copy_in(memory.address, offset, waiting, dtype, stream, staged)
                self._device.copy_within(memory.address + offset, part.address, part.nbytes, stream)
                offset += part.nbytes
            else:
                waiting.append(part)
        self._copy_in(memory.address, offset, waiting, dtype, stream, staged)
        return staged

    def _copy_in(
        self, address: int, offset: int, waiting: list[Array], dtype: np.dtype[Any], stream: Stream, staged: list[Bytes]
    ) -> int:
        """Copy the arrays that wait, in one go through pinned memory. Returns the offset behind them."""
        size = sum(array.size for array in waiting) * dtype.itemsize
        if size:
            staging = self._devices.pinned.allocate(size)
            elements, begin = staging.view(dtype), 0
            for array in waiting:
                elements[begin : begin + array.size].reshape(array.shape)[...] = array
                begin += array.size
            self._device.copy_in(address + offset, staging, stream)
            staged.append(staging)
        waiting.clear()
        return offset + size


class OutputBuffer:
    """The place where an output is written: memory of the largest size that it may have."""

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory


class GrowingBuffer:
    """The place of an output whose shape depends on the values of inputs: it is made larger when TensorRT asks for more, and told
    the shape (`trt.IOutputAllocator`)."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kept: list[DeviceMemory] = []
        self.memory: DeviceMemory | None = None
        self.shape: Shape = ()
        self.failure: Exception | None = None

    def reallocate(self, size: int) -> int:
        """Returns the address of at least `size` bytes, 0 when there is no room. What was there before stays until `settle`: work
        that is queued may still write it."""
        if self.memory is None or self.memory.size < size:
            try:
                memory = self._device.allocate(max(1, size))
            except Exception as error:  # into TensorRT none may go
                self.failure = error
                return 0
            if self.memory is not None:
                self._kept.append(self.memory)
            self.memory = memory
        return self.memory.address

    def settle(self) -> None:
        """The stream was synchronized."""
        self._kept.clear()

    def allocator(self, library: Library) -> Any:
        """Returns the object that TensorRT calls."""
        buffer = self

        class Allocator(library.IOutputAllocator):  # type: ignore[misc]  # a class of the package
            def __init__(self) -> None:
                library.IOutputAllocator.__init__(self)

            def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
                return buffer.reallocate(size)

            def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
                return buffer.reallocate(size)

            def notify_shape(self, tensor_name: str, shape: Any) -> None:
                buffer.shape = tuple(int(size) for size in shape)

        return Allocator()


class HostValues:
    """The values of shape tensors, in host memory that stays where it is: TensorRT reads and writes them there."""

    def __init__(self, counts: Mapping[str, int], dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self._arrays = {name: np.zeros(max(1, count), dtypes[name]) for name, count in counts.items()}

    def address(self, name: str) -> int:
        return int(self._arrays[name].ctypes.data)

    def set(self, values: Shapes) -> None:
        """Write the values of inputs."""
        for name, each in values.items():
            self._arrays[name][: len(each)] = each

    def get(self, name: str, count: int) -> Array:
        """Returns a copy of the values of an output."""
        return self._arrays[name][:count].copy()
