"""The type table inside a model's process, and BYTES elements as they cross the wire.

BYTES wire form: per element, row-major, a little-endian u32 length and the bytes. BF16 has no numpy type without further
packages: its elements are kept as uint16.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

BYTES = 13
BF16 = 14

NUMPY_OF_NUMBER: dict[int, type[Any]] = {
    1: np.bool_,
    2: np.uint8,
    3: np.uint16,
    4: np.uint32,
    5: np.uint64,
    6: np.int8,
    7: np.int16,
    8: np.int32,
    9: np.int64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    13: np.object_,
}
"""TRITONSERVER_DataType -> numpy scalar type; numpy has no BF16."""

NUMBER_OF_NUMPY: dict[np.dtype[Any], int] = {np.dtype(kind): number for number, kind in NUMPY_OF_NUMBER.items()}

STORAGE_OF_NUMBER: dict[int, np.dtype[Any]] = {
    **{number: np.dtype(kind) for number, kind in NUMPY_OF_NUMBER.items() if number != BYTES},
    BF16: np.dtype(np.uint16),
}
"""The memory layout of the elements of types of fixed size."""

STRING_TO_NUMPY: dict[str, type[Any]] = {
    "TYPE_BOOL": bool,
    **{
        f"TYPE_{word}": NUMPY_OF_NUMBER[number]
        for number, word in enumerate(
            ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING"), start=2
        )
    },
}
"""Configuration word -> numpy type, as pb_utils.TRITON_STRING_TO_NUMPY."""

_LENGTH = struct.Struct("<I")


def number_of(dtype: np.dtype[Any]) -> int | None:
    """The type number of an array's dtype; None for a dtype that Triton does not have (complex, dates, str, foreign byte order).

    Object and fixed-width bytes are BYTES; ml_dtypes' bfloat16 is BF16.
    """
    number = NUMBER_OF_NUMPY.get(dtype)
    if number is not None:
        return number
    if dtype.kind == "S":
        return BYTES
    if dtype.name == "bfloat16":
        return BF16
    return None


def encode_element(element: object) -> bytes:
    """One element of an object array: bytes as they are, anything else as its text in UTF-8."""
    if isinstance(element, bytes):
        return element
    if isinstance(element, (bytearray, memoryview, np.bytes_)):
        return bytes(element)
    return str(element).encode("utf-8")


def serialize(array: np.ndarray[Any, Any]) -> bytes:
    """The wire form of a BYTES array (object or fixed-width bytes)."""
    parts = []
    for element in array.ravel().tolist():
        item = element if type(element) is bytes else encode_element(element)
        parts.append(_LENGTH.pack(len(item)))
        parts.append(item)
    return b"".join(parts)


def as_bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy of a BYTES array as an object array of bytes, as it would come out at the other end of the wire."""
    elements = np.empty(array.size, np.object_)
    elements[:] = [encode_element(element) for element in array.ravel().tolist()]
    return elements.reshape(array.shape)


def deserialize(encoded: bytes | memoryview | np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """`count` elements as a flat object array of bytes. Raises ValueError when the wire form does not hold exactly that."""
    raw = encoded.tobytes() if isinstance(encoded, np.ndarray) else bytes(encoded)
    size = len(raw)
    if count * _LENGTH.size > size:
        raise ValueError(f"{count} string elements cannot lie in {size} bytes")
    elements = np.empty(count, np.object_)
    offset = 0
    for index in range(count):
        if offset + 4 > size:
            raise ValueError(f"{count} string elements declared, {index} found")
        (length,) = _LENGTH.unpack_from(raw, offset)
        offset += 4
        if offset + length > size:
            raise ValueError(f"string element {index} is longer than its tensor")
        elements[index] = raw[offset : offset + length]
        offset += length
    if offset != size:
        raise ValueError(f"{size - offset} bytes after the last of {count} string elements")
    return elements


class DeviceBuffer:
    """A contiguous array in a device's memory, which is there as long as `owner` is; nobody touches it here."""

    __slots__ = ("address", "device_id", "nbytes", "owner", "shape")

    def __init__(self, address: int, shape: tuple[int, ...], nbytes: int, device_id: int, owner: object) -> None:
        self.address = address
        self.shape = shape
        self.nbytes = nbytes
        self.device_id = device_id
        self.owner = owner


def size_of(number: int, shape: tuple[int, ...]) -> int:
    """The bytes of a tensor of this type, which is not BYTES."""
    return math.prod(shape) * STORAGE_OF_NUMBER[number].itemsize
