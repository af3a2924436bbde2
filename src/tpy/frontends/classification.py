"""The classification extension: an output as its best classes instead of its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpy.errors import InvalidArgument
from tpy.frontends.bytes_tensor import object_array
from tpy.limits import CLASSES_MAX, CLASSIFICATION_ELEMENTS_MAX
from tpy.messages import DataType, Tensor

_INTEGERS = frozenset(
    {
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
        DataType.UINT64,
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.INT64,
    }
)
_FLOATS = frozenset({DataType.FP32, DataType.FP64})
_WHOLE_SORT_MAX = 2048
"""Rows up to this size are sorted whole; longer ones are cut down to the candidates first."""

_AT_ONCE = 16_384
"""Elements that become Python objects without giving other threads a turn."""


def classify(tensor: Tensor, *, class_count: int, batches: bool, labels: Sequence[str]) -> Tensor:
    """The `class_count` largest values of each row as BYTES `<value>:<index>[:<label>]`, largest first, equal ones by index.

    A row is everything behind the batch dimension, flattened; without a batch (`batches` False, or a batch of 0) the whole
    output. The result has shape [batch?, min(class_count, elements of a row)]. Raises InvalidArgument for other types than
    integers, FP32 and FP64, and for rows of more than CLASSIFICATION_ELEMENTS_MAX elements,
    or more than CLASSES_MAX classes.
    """
    if tensor.datatype not in _INTEGERS and tensor.datatype not in _FLOATS:
        raise InvalidArgument(f"class result not available for output due to unsupported type '{tensor.datatype.value}'")
    array = tensor.array
    batch_size = array.shape[0] if batches and array.ndim else 0
    rows = array.reshape(batch_size, -1) if batch_size else array.reshape(1, -1)
    if rows.shape[1] > CLASSIFICATION_ELEMENTS_MAX:
        raise InvalidArgument("classification output tensor too large")
    chosen = min(class_count, rows.shape[1])
    if chosen * rows.shape[0] > CLASSES_MAX:
        raise InvalidArgument("classification output tensor too large")
    value_format = "%f" if tensor.datatype in _FLOATS else "%d"
    classes = [text for row in rows for text in _row_classes(row, chosen, value_format, labels)]
    return Tensor(tensor.name, DataType.BYTES, object_array(classes, (batch_size, chosen) if batch_size else (chosen,)))


def _row_classes(row: np.ndarray[Any, Any], count: int, value_format: str, labels: Sequence[str]) -> list[bytes]:
    indices = _largest(row, count)
    values = row[indices]
    classes = []
    for start in range(0, len(indices), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        for index, value in zip(indices[some].tolist(), values[some].tolist(), strict=True):
            label = labels[index] if index < len(labels) else ""
            text = f"{value_format % value}:{index}:{label}" if label else f"{value_format % value}:{index}"
            classes.append(text.encode())
    return classes


def _largest(row: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Indices of the `count` largest values, largest first, equal values by rising index; NaN counts as largest."""
    if count == 0:
        return np.empty(0, np.intp)
    candidates = np.arange(row.size)
    if row.size > _WHOLE_SORT_MAX:
        least = np.partition(row, row.size - count)[row.size - count]
        if least == least:  # not NaN: then nothing below it can be among the largest
            candidates = np.flatnonzero(~(row < least))
    # A stable rising sort of the reversed row, read backwards, falls and keeps equal values in their order.
    order = np.argsort(row[candidates][::-1], kind="stable")[::-1]
    best: np.ndarray[Any, Any] = candidates[candidates.size - 1 - order[:count]]
    return best
