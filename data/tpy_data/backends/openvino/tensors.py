"""Between the arrays of requests and those that OpenVINO takes and gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino

from tpy.messages import DataType
from tpy_data.backends.named_tensors import Array

_BF16 = DataType.BF16.numpy
_BYTES = DataType.BYTES.numpy
_COPIED_BYTES_MAX = 4096
"""Arrays up to this size are copied, which takes less time than to lend them."""


def to_runtime(array: Array) -> Any:
    """A value for an infer request, over the array's own memory wherever possible."""
    if array.dtype == _BYTES:
        return _strings(array)
    if not (array.ndim and array.flags.c_contiguous and array.flags.aligned):
        array = array.copy(order="C")
    if array.dtype == _BF16:
        return openvino.Tensor(_lent(array.view(np.uint16)), openvino.Shape(array.shape), openvino.Type.bf16)
    return _lent(array) if array.nbytes > _COPIED_BYTES_MAX else array


def from_runtime(array: Array, datatype: DataType) -> Array:
    """A copy of an output: the next run writes over its memory."""
    copied: Array = array.copy()
    return copied.view(_BF16) if datatype is DataType.BF16 else copied  # OpenVINO calls them float16


def from_strings(tensor: Any) -> Array:
    """The BYTES of an output. Each ends at its last byte that is not zero, as in numpy's fixed width, by which OpenVINO gives
    them."""
    fixed = tensor.bytes_data
    elements: list[bytes] = fixed.ravel().tolist()
    if fixed.itemsize == 1:  # where all strings are empty, the one byte that numpy has at least holds anything
        elements = [element if text else b"" for element, text in zip(elements, tensor.str_data.ravel().tolist(), strict=True)]
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(fixed.shape)


def _strings(array: Array) -> Any:
    if not array.size:
        return np.empty(array.shape, "S1")
    tensor = openvino.Tensor(array.ravel().tolist())
    tensor.shape = openvino.Shape(array.shape)
    return tensor


class _Memory:
    """Lends numpy the memory of an array that is read-only, as if it were not, and keeps it alive meanwhile."""

    def __init__(self, array: Array) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _lent(array: Array) -> Array:
    """OpenVINO copies arrays that are not writable. It does not write to inputs."""
    return array if array.flags.writeable else np.asarray(_Memory(array))
