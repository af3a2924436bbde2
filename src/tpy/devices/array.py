"""Arrays that are somewhere else: on a device (DeviceArray), or wherever an ArrayReference says."""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from typing import Any, NoReturn, Self, cast

import numpy as np

from tpy import dlpack
from tpy.devices.device import Bytes, DeviceMemory, Stream
from tpy.messages.places import MemoryType, Place

Array = np.ndarray[Any, Any]


class ArrayReference:
    """A contiguous array at an offset of memory that is not to be touched here. Its parts share the memory. It answers what code
    that only passes tensors on asks an array, in NumPy's words; code that wants the elements has to say so (`to_host`).

    A subclass says which memory it is."""

    __slots__ = ("dtype", "memory", "nbytes", "offset", "shape", "size")

    def __init__(self, memory: Any, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int = 0) -> None:
        self.memory = memory
        self.offset = offset
        self.shape = shape
        self.dtype = dtype
        self.size = math.prod(shape)
        self.nbytes = self.size * dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    @abstractmethod
    def place(self) -> Place: ...

    @abstractmethod
    def to_host(self) -> Array:
        """Returns a copy in host memory. Raises TpyError when the memory is not there any more."""
        ...

    @abstractmethod
    def within_reach(self, takes: frozenset[Place]) -> Array:
        """Returns itself where a model takes it that takes arrays in these places and in host memory, else a copy. Raises as
        `to_host`."""
        ...

    def as_array(self) -> Array:
        """Itself, as the `array` of a `Tensor`."""
        return cast(Array, self)

    def reshape(self, *shape: Any) -> Self:
        """As NumPy's: the same memory. Raises ValueError for a shape that has not as many elements."""
        given = shape[0] if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape
        wanted = tuple(map(operator.index, given))
        known = math.prod(extent for extent in wanted if extent != -1)
        if wanted.count(-1) == 1 and known and self.size % known == 0:
            wanted = tuple(self.size // known if extent == -1 else extent for extent in wanted)
        if min(wanted, default=0) < 0 or math.prod(wanted) != self.size:
            raise ValueError(f"cannot reshape array of size {self.size} into shape {wanted}")
        return type(self)(self.memory, wanted, self.dtype, self.offset)

    def __getitem__(self, key: Any) -> Self:
        """Rows (`array[2:4]`), one row (`array[0]`), or a new first dimension (`array[None]`)."""
        if key is None:
            return type(self)(self.memory, (1, *self.shape), self.dtype, self.offset)
        if not self.shape:
            raise IndexError("an array without dimensions has no rows")
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        if isinstance(key, slice):
            begin, end, step = key.indices(self.shape[0])
            if step == 1:
                return type(self)(self.memory, (max(0, end - begin), *self.shape[1:]), self.dtype, self.offset + begin * row)
        elif isinstance(key, int | np.integer) and -self.shape[0] <= key < self.shape[0]:
            return type(self)(self.memory, self.shape[1:], self.dtype, self.offset + int(key) % self.shape[0] * row)
        raise IndexError(f"an array that is somewhere else has no part {key}")

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"the array is in memory of type {self.place.memory.value}: copy it with to_host()")


class DeviceArray(ArrayReference):
    """An array in a device's memory."""

    __slots__ = ()

    memory: DeviceMemory

    @property
    def address(self) -> int:
        """Of its first element."""
        return self.memory.address + self.offset

    @property
    def place(self) -> Place:
        return Place(MemoryType.GPU, self.memory.device.id)

    def to_host(self, target: Bytes | None = None, stream: Stream | None = None) -> Array:
        """As `ArrayReference.to_host`: in `target`, of `nbytes`, where one is given. With a stream it is not there before that is
        synchronized."""
        raw = np.empty(self.nbytes, np.uint8) if target is None else target
        if self.nbytes:
            self.memory.device.copy_out(raw, self.address, stream)
        return raw.view(self.dtype).reshape(self.shape)

    def within_reach(self, takes: frozenset[Place]) -> Array:
        """As `ArrayReference.within_reach`."""
        return self.as_array() if self.place in takes else self.to_host()

    def __dlpack__(self, *, dl_device: tuple[int, int] | None = None, copy: bool | None = None, **_: Any) -> Any:
        """Raises BufferError for another device, and for a copy, which would have to be allocated on this one."""
        dlpack.require_device(self.__dlpack_device__(), dl_device)
        if copy:
            raise BufferError(f"the array stays on device {self.memory.device.id}, and is not copied there: copy it yourself")
        return dlpack.capsule(self.address, self.shape, self.dtype, self.__dlpack_device__(), self.memory)

    def __dlpack_device__(self) -> tuple[int, int]:
        device = self.memory.device
        return device.dlpack_type, device.id if device.dlpack_type != dlpack.CPU else 0
