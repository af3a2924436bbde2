"""Tensors over memory that others own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.ctypeslib  # with the module, not with the first tensor that is given out

from tpy import dlpack, messages
from tpy.frontends.bytes_tensor import BrokenElements, join_elements, object_array, split_elements
from tpy.messages.datatypes import from_numpy
from tpy.tritonserver.enums import FROM_MESSAGES, TO_MESSAGES, DataType, DLDeviceType, MemoryType
from tpy.tritonserver.errors import InvalidArgumentError, UnsupportedError

Array = np.ndarray[Any, Any]
DeviceOrMemoryType = tuple[MemoryType, int] | MemoryType | tuple[DLDeviceType, int] | str

_MEMORY_OF_DEVICE = {
    DLDeviceType.kDLCPU: MemoryType.CPU,
    DLDeviceType.kDLCUDA: MemoryType.GPU,
    DLDeviceType.kDLCUDAHost: MemoryType.CPU_PINNED,
}


def parse_device(device: DeviceOrMemoryType) -> tuple[MemoryType, int]:
    """The memory type and its number that `device` means: "cpu", "gpu:0", a memory type, or one with a number."""
    found: tuple[Any, Any] | None = None
    if isinstance(device, str):
        word, _, number = device.partition(":")
        if word.upper() not in MemoryType.__members__:
            raise InvalidArgumentError(
                f"Unsupported Memory Type String. Can't convert {word.upper()} to Triton server memory type"
            )
        found = (MemoryType[word.upper()], int(number or 0)) if (number or "0").isdecimal() else None
    elif isinstance(device, MemoryType):
        found = (device, 0)
    elif isinstance(device, tuple) and len(device) == 2 and isinstance(device[1], int):
        if isinstance(device[0], MemoryType):
            found = (device[0], device[1])
        elif isinstance(device[0], DLDeviceType) and device[0] in _MEMORY_OF_DEVICE:
            found = (_MEMORY_OF_DEVICE[device[0]], device[1])
    if found is None:
        raise InvalidArgumentError(f"Invalid memory type {device!r}")
    return found


@dataclass
class MemoryBuffer:
    """Memory of a tensor. It is there as long as `owner` is."""

    data_ptr: int
    memory_type: MemoryType
    memory_type_id: int
    size: int
    owner: Any

    @staticmethod
    def from_dlpack(owner: Any) -> MemoryBuffer:
        """The memory of an object that offers DLPack."""
        return _described(owner)[2]


def _described(owner: Any) -> tuple[DataType, list[int], MemoryBuffer]:
    """The data type, shape and memory of an object that offers DLPack."""
    if not hasattr(owner, "__dlpack__"):
        raise InvalidArgumentError("Object does not support DLpack protocol")
    try:
        found = dlpack.describe(owner)
    except Exception as error:  # whatever a producer raises
        raise InvalidArgumentError(f"Object does not support DLPack protocol: {error}") from None
    device, number = found.device
    if device not in _MEMORY_OF_DEVICE:
        raise InvalidArgumentError(f"Unsupported DLPack device type. Can't convert {device} to Triton server memory type")
    size = found.dtype.itemsize
    for extent in found.shape:
        size *= extent
    buffer = MemoryBuffer(found.address, _MEMORY_OF_DEVICE[DLDeviceType(device)], number, size, owner)
    return FROM_MESSAGES[from_numpy(found.dtype)], list(found.shape), buffer


@dataclass
class Tensor:
    """A tensor: elements of this type and shape in a buffer. Strings are serialised as in Triton, each behind its length."""

    data_type: DataType
    shape: Sequence[int]
    memory_buffer: MemoryBuffer

    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        """The kind of memory."""
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """The number of the device."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.memory_buffer.size

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule over the memory, without a copy."""
        if self.memory_type is not MemoryType.GPU and stream not in (None, 0):
            raise UnsupportedError(
                f"DLPack stream synchronization on memory type {self.memory_type!r} and stream {stream} not supported"
            )
        if self.data_type is DataType.BYTES:
            raise InvalidArgumentError(
                f"Unsupported Triton server data type. Can't convert {self.data_type!r} to DLPack data type"
            )
        device = self.__dlpack_device__()
        dlpack.require_device((int(device[0]), device[1]), dl_device)
        if copy:
            raise BufferError("a tensor is given out without a copy")
        dtype = np.dtype(TO_MESSAGES[self.data_type].numpy)
        return dlpack.capsule(self.data_ptr, _shape_of(self), dtype, (int(device[0]), device[1]), self)

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        """The device of the memory, in DLPack's numbers."""
        return (DLDeviceType.kDLCUDA if self.memory_type is MemoryType.GPU else DLDeviceType.kDLCPU, self.memory_type_id)

    @staticmethod
    def from_dlpack(obj: Any) -> Tensor:
        """A tensor over the memory of an object that offers DLPack."""
        return Tensor(*_described(obj))

    @staticmethod
    def from_string_array(string_array: list[str] | Array) -> Tensor:
        """A tensor of strings."""
        return Tensor.from_bytes_array(string_array)

    @staticmethod
    def from_bytes_array(bytes_array: list[str] | list[bytes] | Array) -> Tensor:
        """A tensor of strings."""
        result = to_tensor(bytes_array)
        if result.data_type is not DataType.BYTES:
            raise InvalidArgumentError(
                f"Unsupported conversion from {bytes_array!r} to Triton BYTES Tensor. Got {result.data_type!r}"
            )
        return result

    def to_bytes_array(self) -> Array:
        """The strings of a tensor of BYTES, as `bytes`."""
        if self.data_type is not DataType.BYTES:
            raise InvalidArgumentError(f"Tensor has data type {self.data_type!r} not {DataType.BYTES!r}")
        return array_of(self)

    def to_string_array(self) -> Array:
        """The strings of a tensor of BYTES."""
        return self.to_bytes_array().astype(str)

    def to_host(self) -> Tensor:
        """The tensor in host memory."""
        return self.to_device(MemoryType.CPU)

    def to_device(self, device: DeviceOrMemoryType) -> Tensor:
        """The tensor itself, if it is there; tensors are not moved between devices here."""
        wanted = parse_device(device)
        here = (self.memory_type, self.memory_type_id)
        if here == wanted or (self.memory_type is MemoryType.CPU_PINNED and wanted[0] is MemoryType.CPU):
            return self
        raise UnsupportedError(f"Conversion from {here} to {wanted} not supported.")


def to_tensor(value: Any) -> Tensor:
    """The tensor that `value` is, or that an array, a list, a number or an object with DLPack holds."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, list | np.ndarray | np.generic | bool | int | float | str | bytes):
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise InvalidArgumentError(f"Conversion from {value!r} to tensor not supported.") from error
        return of_array(array)
    if hasattr(value, "__dlpack__"):
        return Tensor.from_dlpack(value)
    raise InvalidArgumentError(
        f"Input type {type(value)} not supported. Must be a list, a number, a string, a NumPy array, or the type must support "
        "__dlpack__"
    )


def of_array(array: Array) -> Tensor:
    """A tensor over this array, which is copied if it is not contiguous or holds strings."""
    datatype = from_numpy(array.dtype)
    if datatype is messages.DataType.INVALID:
        raise InvalidArgumentError(f"Unsupported Numpy data type. Can't convert {array.dtype} to Triton server data type")
    shape = list(array.shape)
    if datatype is messages.DataType.BYTES:
        data = join_elements(_as_bytes(array))
        array = np.frombuffer(data, np.uint8)
    else:
        array = np.ascontiguousarray(array, dtype=datatype.numpy)
    buffer = MemoryBuffer(array.__array_interface__["data"][0], MemoryType.CPU, 0, array.nbytes, array)
    return Tensor(FROM_MESSAGES[datatype], shape, buffer)


def _as_bytes(array: Array) -> Array:
    try:
        elements = [each if isinstance(each, bytes) else str(each).encode() for each in array.ravel().tolist()]
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"a string of the tensor has no form in UTF-8: {error}") from None
    return object_array(elements, array.shape)


def _shape_of(tensor: Tensor) -> tuple[int, ...]:
    # By way of a list: a tuple made of an iterator is cut to its size, and Python keeps the memory of 2,000 that were.
    return tuple([int(extent) for extent in tensor.shape])


def array_of(tensor: Tensor) -> Array:
    """The elements of a tensor in host memory, without a copy but for strings."""
    if tensor.memory_type is MemoryType.GPU:
        raise UnsupportedError(f"Conversion from {tensor.memory_type!r} to numpy array not supported.")
    shape = _shape_of(tensor)
    memory: Any = (ctypes.c_uint8 * tensor.size).from_address(tensor.data_ptr) if tensor.size else bytearray()
    if tensor.size:
        memory.owner = tensor.memory_buffer.owner
    if tensor.data_type is DataType.BYTES:
        count = 1
        for extent in shape:
            count *= extent
        try:
            return object_array(split_elements(bytes(memory), count), shape)
        except BrokenElements as error:
            raise InvalidArgumentError(f"{error.found}, {error.expected}") from None
    dtype = np.dtype(TO_MESSAGES[tensor.data_type].numpy)
    try:
        return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)
    except ValueError:
        raise InvalidArgumentError(
            f"a tensor of {tensor.data_type.name} and shape {list(shape)} does not fit into {tensor.size} bytes"
        ) from None
