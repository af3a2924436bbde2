"""DLPack in both directions, on numpy's own support; bfloat16, which numpy does not know, crosses as uint16, relabelled.

Layout from dlpack.h: DLManagedTensor begins with { void* data; { int32 device type; int32 device id }; int32 ndim;
{ uint8 code; uint8 bits; uint16 lanes }; ... }.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ..wire.core import datatypes
from ..wire.core.datatypes import DeviceBuffer
from .failures import TritonModelException

CPU, CUDA, CUDA_HOST = 1, 2, 3
"""Device types."""

_DEVICE_TYPE_AT = ctypes.sizeof(ctypes.c_void_p)
_DEVICE_ID_AT = _DEVICE_TYPE_AT + 4
_DTYPE_AT = _DEVICE_TYPE_AT + 12
_UINT = 1
_BFLOAT = 4

_NUMPY_TELLS = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)
"""True if NumPy makes capsules of DLPack 1.0, which have a flag for memory that may not be written."""

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def require(there: tuple[int, int], wanted: tuple[int, int] | None, stream: Any) -> None:
    """Raises BufferError when a consumer wants the memory on another device than it is on (None: on any), ValueError for a stream
    on a device without streams."""
    if wanted is not None and (int(wanted[0]), int(wanted[1])) != there:
        raise BufferError(f"the tensor is on DLPack device {there}, and cannot be given on {tuple(map(int, wanted))}")
    if there[0] == CPU and stream is not None and stream != -1:
        raise ValueError(f"the tensor is in host memory, which has no stream {stream!r}")


def to_capsule(
    array: np.ndarray[Any, Any], number: int, *, copy: bool | None = None, max_version: tuple[int, int] | None = None
) -> Any:
    """A capsule over the array's memory; over a copy when that is asked for, or when it is read-only and the consumer's version
    of DLPack cannot say so. Raises BufferError for a copy where `copy` is False."""
    if number == datatypes.BYTES:
        raise TritonModelException("DLPack does not have support for string tensors.")
    if copy or not array.flags.writeable:
        if not copy and number != datatypes.BF16 and max_version is not None and max_version[0] >= 1 and _NUMPY_TELLS:
            return array.__dlpack__(max_version=max_version)
        if copy is False:
            raise BufferError("the tensor may not be written, and has to be copied for this consumer")
        array = array.copy()
    capsule = array.__dlpack__()
    if number == datatypes.BF16:
        ctypes.c_uint8.from_address(_get_pointer(capsule, b"dltensor") + _DTYPE_AT).value = _BFLOAT
    return capsule


def device_capsule(buffer: DeviceBuffer, number: int) -> Any:
    """A "dltensor" capsule over memory of a device, which keeps the buffer's owner. It is NumPy's, of an array over addresses
    that nobody looks at here, and relabelled."""
    memory: Any = (ctypes.c_uint8 * buffer.nbytes).from_address(buffer.address)
    memory.owner = buffer.owner
    array = np.ctypeslib.as_array(memory).view(datatypes.STORAGE_OF_NUMBER[number]).reshape(buffer.shape)
    capsule = array.__dlpack__()
    pointer = _get_pointer(capsule, b"dltensor")
    ctypes.c_int32.from_address(pointer + _DEVICE_TYPE_AT).value = CUDA
    ctypes.c_int32.from_address(pointer + _DEVICE_ID_AT).value = buffer.device_id
    if number == datatypes.BF16:
        ctypes.c_uint8.from_address(pointer + _DTYPE_AT).value = _BFLOAT
    return capsule


def from_object(source: Any) -> tuple[np.ndarray[Any, Any] | DeviceBuffer, int]:
    """The memory of a capsule, or of an object with `__dlpack__`, as an array or a DeviceBuffer, and its type number. No copy."""
    if type(source).__name__ == "PyCapsule":
        capsule = source
    elif hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
        on_cuda = _checked(int(source.__dlpack_device__()[0])) == CUDA
        # 1: the legacy default stream, for which the work that makes the tensor is then waited for, as for all other work.
        capsule = source.__dlpack__(stream=1) if on_cuda else source.__dlpack__()
    else:
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule         or have `__dlpack__` and "
            "`__dlpack_device__` attributes"
        )
    number: int | None = None
    pointer = _get_pointer(capsule, b"dltensor")
    code = ctypes.c_uint8.from_address(pointer + _DTYPE_AT)
    if code.value == _BFLOAT:
        code.value = _UINT
        number = datatypes.BF16
    device = ctypes.c_int32.from_address(pointer + _DEVICE_TYPE_AT)
    device_type, device_id = device.value, ctypes.c_int32.from_address(pointer + _DEVICE_ID_AT).value
    _checked(device_type)
    device.value = CPU  # NumPy takes no other; what it makes of addresses on a device is not looked at
    array = np.from_dlpack(_Exporter(capsule, pointer))
    if not array.flags.c_contiguous:
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    if number is None:
        number = datatypes.number_of(array.dtype)
    if number is None:
        raise TritonModelException(f"DLPack dtype {array.dtype} is not supported by the python backend.")
    if device_type == CUDA:
        return DeviceBuffer(array.ctypes.data, array.shape, array.nbytes, device_id, array), number
    return array, number


def _checked(device_type: int) -> int:
    if device_type not in (CPU, CUDA, CUDA_HOST):
        raise TritonModelException(
            f"DLPack tensor lies on device type {device_type}; this server takes tensors in host memory (type {CPU}) and on CUDA "
            f"devices (type {CUDA})"
        )
    return device_type


class _Exporter:
    """Hands a capsule to np.from_dlpack, which wants an object."""

    def __init__(self, capsule: Any, pointer: int) -> None:
        self._capsule = capsule
        self._device = ctypes.c_int32.from_address(pointer + _DEVICE_TYPE_AT).value

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)
