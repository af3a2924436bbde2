"""The type table: API word, configuration word and number, numpy dtype, bytes per element.

Source: KServe v2 protocol, "Tensor Data Types"; Triton's model_config.proto, enum DataType.
"""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np


class DataType(enum.Enum):
    """A tensor's element type. The value is the API word (`BYTES`, not `TYPE_STRING`).

    Attributes: `number` (in ModelConfig), `config_name`, `numpy` (dtype; object for BYTES), `itemsize` (bytes; 0 for
    BYTES, whose elements vary). BYTES arrays hold `bytes` objects.
    """

    number: int
    config_name: str
    numpy: np.dtype[Any]
    itemsize: int

    INVALID = ("INVALID", 0, "TYPE_INVALID", np.dtype(np.void), 0)
    BOOL = ("BOOL", 1, "TYPE_BOOL", np.dtype(np.bool_), 1)
    UINT8 = ("UINT8", 2, "TYPE_UINT8", np.dtype(np.uint8), 1)
    UINT16 = ("UINT16", 3, "TYPE_UINT16", np.dtype(np.uint16), 2)
    UINT32 = ("UINT32", 4, "TYPE_UINT32", np.dtype(np.uint32), 4)
    UINT64 = ("UINT64", 5, "TYPE_UINT64", np.dtype(np.uint64), 8)
    INT8 = ("INT8", 6, "TYPE_INT8", np.dtype(np.int8), 1)
    INT16 = ("INT16", 7, "TYPE_INT16", np.dtype(np.int16), 2)
    INT32 = ("INT32", 8, "TYPE_INT32", np.dtype(np.int32), 4)
    INT64 = ("INT64", 9, "TYPE_INT64", np.dtype(np.int64), 8)
    FP16 = ("FP16", 10, "TYPE_FP16", np.dtype(np.float16), 2)
    FP32 = ("FP32", 11, "TYPE_FP32", np.dtype(np.float32), 4)
    FP64 = ("FP64", 12, "TYPE_FP64", np.dtype(np.float64), 8)
    BYTES = ("BYTES", 13, "TYPE_STRING", np.dtype(object), 0)
    BF16 = ("BF16", 14, "TYPE_BF16", np.dtype(ml_dtypes.bfloat16), 2)

    def __new__(cls, word: str, number: int, config_name: str, dtype: np.dtype[Any], itemsize: int) -> DataType:
        member = object.__new__(cls)
        member._value_ = word
        member.number = number
        member.config_name = config_name
        member.numpy = dtype
        member.itemsize = itemsize
        return member

    # Identity hashing: enum's default hashes the name string through a Python-level call, which the hot path feels.
    __hash__ = object.__hash__


BY_WORD: dict[str, DataType] = {kind.value: kind for kind in DataType if kind is not DataType.INVALID}
"""API word -> type; a word that is missing here is not a datatype."""

BY_NUMBER: dict[int, DataType] = {kind.number: kind for kind in DataType}


def from_numpy(dtype: np.dtype[Any]) -> DataType:
    """The type of a numpy array: object, bytes and str dtypes are BYTES; an unknown dtype is INVALID."""
    known = _BY_NUMPY.get(dtype)
    if known is not None:  # nearly always, and a type of another byte order is dear to make
        return known
    if dtype.kind in "OSU":
        return DataType.BYTES
    return _BY_NUMPY.get(dtype.newbyteorder("="), DataType.INVALID)


_BY_NUMPY: dict[np.dtype[Any], DataType] = {
    kind.numpy: kind for kind in DataType if kind not in (DataType.INVALID, DataType.BYTES)
}
