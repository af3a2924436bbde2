"""Typed contents: the elements of an input in a repeated field of its own type instead of as raw bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.frontends.binary_tensor import element_count, shaped
from tpy.frontends.bytes_tensor import BrokenElements, object_array
from tpy.messages import DataType

_FIELDS: tuple[tuple[str, str, frozenset[DataType]], ...] = (
    ("bool_contents", "BOOL", frozenset({DataType.BOOL})),
    ("int_contents", "INT32", frozenset({DataType.INT8, DataType.INT16, DataType.INT32})),
    ("int64_contents", "INT64", frozenset({DataType.INT64})),
    ("uint_contents", "UINT32", frozenset({DataType.UINT8, DataType.UINT16, DataType.UINT32})),
    ("uint64_contents", "UINT64", frozenset({DataType.UINT64})),
    ("fp32_contents", "FP32", frozenset({DataType.FP32})),
    ("fp64_contents", "FP64", frozenset({DataType.FP64})),
    ("bytes_contents", "BYTES", frozenset({DataType.BYTES})),
)
"""Field of InferTensorContents, what Triton calls its elements, and the datatypes that it is for."""

_WIDE = {
    "BOOL": np.dtype(np.bool_),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
"""The numpy type of what a field holds."""


def read_contents(
    contents: Any, datatype: DataType, shape: tuple[int, ...], *, tensor: str, model: str, prefix: str
) -> np.ndarray[Any, Any]:
    """The array of `shape` in an inference.InferTensorContents. Integers are cut to the width of `datatype`, as Triton does.

    Raises InvalidArgument for elements in another type's field and for another number of them than `shape` needs.
    """
    given: tuple[Any, str] | None = None
    for field, word, datatypes in _FIELDS:
        elements = getattr(contents, field)
        if len(elements):
            if datatype not in datatypes:
                shown = "<invalid>" if datatype is DataType.INVALID else datatype.value
                raise InvalidArgument(
                    f"unexpected explicit tensor data for input tensor '{echo(tensor)}' for model '{model}' of type '{word}', "
                    f"expected datatype '{shown}'"
                )
            given = elements, word
    count = element_count(shape)
    if datatype is DataType.BYTES:
        return _texts(list(given[0]) if given else [], count, shape, tensor=tensor, model=model, prefix=prefix)
    array: np.ndarray[Any, Any]
    if given is None:
        array = np.empty(0, datatype.numpy)
    else:
        array = np.array(given[0], _WIDE[given[1]]).astype(datatype.numpy, copy=False)
    if array.size != count:
        expected, got = count * datatype.itemsize, array.size * datatype.itemsize
        raise InvalidArgument(
            f"{prefix}input byte size mismatch for input '{echo(tensor)}' for model '{model}'. Expected {expected}, got {got}"
        )
    return shaped(array, shape, tensor)


def _texts(
    elements: list[bytes], count: int, shape: tuple[int, ...], *, tensor: str, model: str, prefix: str
) -> np.ndarray[Any, Any]:
    if len(elements) != count:
        if len(elements) < count:
            broken = BrokenElements(f"expected {count} string elements", f"got {len(elements)}")
        else:
            broken = BrokenElements(f"unexpected number of string elements {count + 1}", f"expecting {count}")
        raise InvalidArgument(broken.text(tensor=tensor, model=model, prefix=prefix))
    return shaped(object_array(elements, (-1,)), shape, tensor)
