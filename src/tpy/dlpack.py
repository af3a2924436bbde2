"""DLPack: capsules over memory, of any device, and what capsules of others say.

Layout from dlpack.h:

    DLManagedTensor { DLTensor; void* manager; void (*deleter)(DLManagedTensor*) }
    DLTensor { void* data; { int32 type; int32 id } device; int32 ndim; { uint8 code; uint8 bits; uint16 lanes } dtype;
               int64* shape; int64* strides; uint64 byte_offset }
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

CPU, CUDA, CUDA_HOST = 1, 2, 3
"""Device types."""

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_LETTERS = {_INT: "i", _UINT: "u", _FLOAT: "f"}
_BF16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

_NEW, _USED = b"dltensor", b"used_dltensor"


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype = ctypes.c_int
_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Described(NamedTuple):
    """The contents of a capsule: contiguous memory, which is there as long as `owner` is."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: tuple[int, int]
    owner: object


def capsule(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: tuple[int, int], owner: object) -> Any:
    """Returns a capsule over contiguous memory of a device, which keeps `owner`. Raises BufferError for a dtype that DLPack has
    not.

    It is NumPy's, of an array over addresses that nobody looks at here, and relabelled: what gives a capsule back must not be
    Python, as a consumer may let go of it while an exception is under way.
    """
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    memory.owner = owner
    array = np.ctypeslib.as_array(memory).view(np.uint16 if dtype == _BF16 else dtype).reshape(shape)
    made = array.__dlpack__()
    tensor = _Managed.from_address(_pointer(made, _NEW)).tensor
    tensor.device_type, tensor.device_id = device
    if dtype == _BF16:
        tensor.code = _BFLOAT
    return made


def of_array(
    array: np.ndarray[Any, Any],
    *,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
    **_: Any,
) -> Any:
    """Returns a capsule over a NumPy array's memory. One that may not be written, or that is not contiguous, is copied, unless
    the consumer can be told; `copy` True asks for a copy. Raises BufferError for another device, and for a copy where `copy` is
    False."""
    require_device((CPU, 0), dl_device)
    flags = array.flags
    told = max_version is not None and tuple(max_version) >= (1, 0) and array.dtype != _BF16
    if not flags.writeable and told and not copy:
        return array.__dlpack__(max_version=max_version)
    if copy or not (flags.writeable and flags.c_contiguous and flags.aligned):
        if copy is False:
            raise BufferError("the tensor may not be written or is not contiguous, and has to be copied for this consumer")
        array = array.copy(order="C")
    return capsule(array.ctypes.data, array.shape, array.dtype, (CPU, 0), array)


def require_device(there: tuple[int, int], wanted: tuple[int, int] | None) -> None:
    """Raise BufferError when a consumer wants the memory on another device than it is on (None: on any)."""
    if wanted is not None and (int(wanted[0]), int(wanted[1])) != there:
        raise BufferError(f"the tensor is on DLPack device {there}, and cannot be given on {tuple(map(int, wanted))}")


def describe(source: Any) -> Described:
    """Takes over what a capsule, or an object that gives one, holds. No copy; a producer with streams has its work done before it
    gives the capsule. Raises BufferError for what is not a contiguous tensor of a dtype that Triton has."""
    made = source if type(source).__name__ == "PyCapsule" else _ask(source)
    try:
        address = _pointer(made, _NEW)
    except ValueError:
        raise BufferError("the DLPack capsule was consumed before, or is of a version that is not supported") from None
    managed = _Managed.from_address(address)
    tensor = managed.tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    dtype = _dtype(tensor)
    if tensor.strides and not _is_contiguous(shape, tuple(tensor.strides[: tensor.ndim])):
        raise BufferError(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    data = (tensor.data or 0) + tensor.byte_offset
    device = (tensor.device_type, tensor.device_id)
    _set_name(made, _USED)  # from here on it is ours to give back
    return Described(data, shape, dtype, device, _Owner(address, managed.deleter))


class _Owner:
    """Keeps the memory of a consumed capsule."""

    __slots__ = ("__weakref__",)

    def __init__(self, address: int, deleter: int | None) -> None:
        if deleter:
            weakref.finalize(self, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter), address).atexit = False


def _ask(source: Any) -> Any:
    if not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
        raise BufferError("Tensor must be a DLPack capsule or have `__dlpack__` and `__dlpack_device__` attributes")
    # Of a CUDA tensor: legacy default stream, whose work is done when a blocking copy of ours begins.
    return source.__dlpack__(stream=1) if source.__dlpack_device__()[0] == CUDA else source.__dlpack__()


def _dtype(tensor: Any) -> np.dtype[Any]:
    if tensor.lanes == 1 and tensor.bits % 8 == 0:
        if tensor.code == _BFLOAT and tensor.bits == 16:
            return _BF16
        if tensor.code == _BOOL and tensor.bits == 8:
            return np.dtype(np.bool_)
        letter: str | None = _LETTERS.get(tensor.code)
        if letter is not None and tensor.bits in (8, 16, 32, 64) and (letter, tensor.bits) != ("f", 8):
            found: np.dtype[Any] = np.dtype(f"{letter}{tensor.bits // 8}")
            return found
    raise BufferError(f"DLPack dtype (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes) is not supported")


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected and 0 not in shape:
            return False
        expected *= extent
    return True
