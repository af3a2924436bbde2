"""DLPack in both directions, on numpy's own support; bfloat16, which numpy does not know, crosses as uint16, relabelled.

Layout from dlpack.h: DLManagedTensor begins with { void* data; { int32 device type; int32 device id }; int32 ndim;
{ uint8 code; uint8 bits; uint16 lanes }; ... }.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import datatypes
from .failures import TritonModelException

CPU = 1
_DEVICE_TYPE_AT = ctypes.sizeof(ctypes.c_void_p)
_DTYPE_AT = _DEVICE_TYPE_AT + 12
_UINT = 1
_BFLOAT = 4

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def to_capsule(array: np.ndarray[Any, Any], number: int, *, copy: bool = False) -> Any:
    """A "dltensor" capsule over the array's memory (over a copy when it is read-only, which old DLPack cannot say, or when a copy
    is asked for)."""
    if number == datatypes.BYTES:
        raise TritonModelException("DLPack does not have support for string tensors.")
    if copy or not array.flags.writeable:
        array = array.copy()
    capsule = array.__dlpack__()
    if number == datatypes.BF16:
        ctypes.c_uint8.from_address(_get_pointer(capsule, b"dltensor") + _DTYPE_AT).value = _BFLOAT
    return capsule


def from_object(source: Any) -> tuple[np.ndarray[Any, Any], int]:
    """The memory of a capsule, or of an object with `__dlpack__`, as an array, and its type number. No copy."""
    if type(source).__name__ == "PyCapsule":
        capsule = source
    elif hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__"):
        device = source.__dlpack_device__()[0]
        if int(device) != CPU:
            raise TritonModelException(
                f"DLPack tensor lies on device type {int(device)}; this server takes tensors in host memory (type {CPU})"
            )
        capsule = source.__dlpack__()
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
    array = np.from_dlpack(_Exporter(capsule, pointer))
    if not array.flags.c_contiguous:
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    if number is None:
        number = datatypes.number_of(array.dtype)
    if number is None:
        raise TritonModelException(f"DLPack dtype {array.dtype} is not supported by the python backend.")
    return array, number


class _Exporter:
    """Hands a capsule to np.from_dlpack, which wants an object."""

    def __init__(self, capsule: Any, pointer: int) -> None:
        self._capsule = capsule
        self._device = ctypes.c_int32.from_address(pointer + _DEVICE_TYPE_AT).value

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)
