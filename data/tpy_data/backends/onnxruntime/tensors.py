"""Between the arrays of requests and those that ONNX Runtime takes and gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpy.messages import DataType

Array = np.ndarray[Any, Any]


def to_runtime(array: Array, datatype: DataType, *, scalar: bool) -> Array:
    """The array to feed ONNX Runtime with: the tensor's own wherever possible.

    Copies an array whose elements are not at addresses of their size (a view into a request's bytes may be so), and one
    of BF16 that is not contiguous: its strides would be ignored. BYTES become str objects. A tensor that is a `scalar` to
    the model is given as the one element it has.
    """
    if datatype is DataType.BYTES:
        array = _decoded(array)
    elif not array.flags.aligned or (datatype is DataType.BF16 and not array.flags.c_contiguous):
        array = array.copy(order="C")
    return array.reshape(()) if scalar else array


def from_runtime(array: Array, datatype: DataType, *, scalar_shape: tuple[int, ...]) -> Array:
    """The tensor for a request: the same memory, except that BYTES are encoded. A scalar gets `scalar_shape` (all ones)."""
    if datatype is DataType.BYTES:
        array = _encoded(array)
    return array if array.ndim else array.reshape(scalar_shape)


def _decoded(array: Array) -> Array:
    """Strings for ONNX Runtime, which would take str() of bytes objects.

    Text goes as str objects, zero bytes included. What is not UTF-8 goes as numpy's fixed-width bytes, one wider than the
    longest because ONNX Runtime reads up to the next zero; so a zero ends a string there, as it does in Triton.
    """
    elements = array.ravel().tolist()
    decoded = np.empty(len(elements), dtype=object)
    try:
        decoded[:] = [element.decode() for element in elements]
    except UnicodeDecodeError:
        width = max(map(len, elements)) + 1
        return np.array(elements, dtype=f"S{width}").reshape(array.shape)
    return decoded.reshape(array.shape)


def _encoded(array: Array) -> Array:
    elements = array.ravel().tolist()
    encoded = np.empty(len(elements), dtype=object)
    encoded[:] = [element.encode() for element in elements]
    return encoded.reshape(array.shape)
