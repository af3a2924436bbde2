"""Tensors in their binary form, as HTTP blobs and gRPC raw contents carry them: little-endian, row-major, without a header."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpy.echo import echo, echo_list
from tpy.errors import InvalidArgument
from tpy.frontends.bytes_tensor import BrokenElements, join_elements, object_array, split_elements
from tpy.messages import DataType

BinaryData = bytes | bytearray | memoryview


def read_binary(
    data: BinaryData, datatype: DataType, shape: tuple[int, ...], *, tensor: str, model: str, prefix: str
) -> np.ndarray[Any, Any]:
    """The array of `shape` in `data`: a view over it, except for BYTES (objects) and for BOOL bytes other than 0 and 1.

    `tensor`, `model` and `prefix` (`[request id: ...] `) are for the error texts. Raises InvalidArgument when `data` is not
    exactly as long as `shape` needs; nothing is allocated for a shape that `data` does not fill.
    """
    count = element_count(shape)
    if datatype is DataType.BYTES:
        try:
            return shaped(object_array(split_elements(data, count), (-1,)), shape, tensor)
        except BrokenElements as broken:
            raise InvalidArgument(broken.text(tensor=tensor, model=model, prefix=prefix)) from None
    expected = count * datatype.itemsize
    if len(data) != expected:
        raise byte_size_mismatch(expected, len(data), tensor=tensor, model=model, prefix=prefix)
    array: np.ndarray[Any, Any] = np.frombuffer(data, datatype.numpy)
    if datatype is DataType.BOOL and count:
        octets = array.view(np.uint8)
        if octets.max() > 1:
            array = octets != 0
    return shaped(array, shape, tensor)


def byte_size_mismatch(expected: int, got: int, *, tensor: str, model: str, prefix: str) -> InvalidArgument:
    """The refusal of an input whose data is not as long as its shape needs."""
    return InvalidArgument(
        f"{prefix}input byte size mismatch for input '{echo(tensor)}' for model '{model}'. Expected {expected}, got {got}"
    )


def write_binary(array: np.ndarray[Any, Any], datatype: DataType) -> bytes | memoryview:
    """The bytes of an array: a view over it when it is contiguous and not BYTES."""
    if datatype is DataType.BYTES:
        return join_elements(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def element_count(shape: tuple[int, ...]) -> int:
    """The number of elements of `shape`, 1 for a scalar. Exact for any size: it is compared, never allocated."""
    count = 1
    for size in shape:
        count *= size
    return count


def shaped(array: np.ndarray[Any, Any], shape: tuple[int, ...], tensor: str) -> np.ndarray[Any, Any]:
    """`array`, which has the right number of elements, as `shape`. Raises InvalidArgument for a shape that numpy cannot hold,
    such as [0, 2**62, 4]: no elements, but strides that overflow."""
    if len(shape) == 1:
        return array
    try:
        return array.reshape(shape)
    except ValueError:
        raise InvalidArgument(f"invalid shape for input '{echo(tensor)}': shape [{echo_list(shape)}] is too large") from None
