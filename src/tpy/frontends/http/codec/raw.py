"""The raw binary request: a body that is nothing but the only input's data."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpy.errors import InvalidArgument
from tpy.frontends.binary_tensor import read_binary
from tpy.frontends.bytes_tensor import object_array
from tpy.messages import DataType, ModelDescription, Tensor, TensorDescription

_PREFIX = "[request id: <id_unknown>] "
"""A raw request has no place for an id."""

_NAME = "raw_input"
"""Triton's name of the input when its size is wrong."""


def read_raw_input(body: bytes | bytearray | memoryview, description: ModelDescription) -> Tensor:
    """The model's only input, its shape deduced: batch 1, and one variable dimension from the size of `body`.

    Raises InvalidArgument when the model has several inputs, several variable dimensions, a BYTES input that is not one
    element, or when `body` has another size than the shape needs.
    """
    if len(description.inputs) != 1:
        raise InvalidArgument(
            f"{_PREFIX}Raw request must only have 1 input (found 1) to be deduced but got {len(description.inputs)} inputs in "
            f"'{description.name}' model configuration"
        )
    described = description.inputs[0]
    shape = _deduced_shape(described, len(body), batches=description.batches)
    array: np.ndarray[Any, Any]
    if described.datatype is DataType.BYTES:
        array = object_array([bytes(body)], shape)
    else:
        array = read_binary(body, described.datatype, shape, tensor=_NAME, model=description.name, prefix=_PREFIX)
    return Tensor(described.name, described.datatype, array)


def _deduced_shape(described: TensorDescription, body_bytes: int, *, batches: bool) -> tuple[int, ...]:
    shape = [1, *described.shape[1:]] if batches else list(described.shape)
    variable = [axis for axis, size in enumerate(shape) if size == -1]
    if len(variable) > 1:
        raise InvalidArgument(
            f"{_PREFIX}The shape of the raw input '{described.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    element_count = 1
    for size in shape:
        element_count *= size if size != -1 else 1
    if described.datatype is DataType.BYTES:
        if variable or element_count != 1:
            raise InvalidArgument(f"{_PREFIX}For BYTE datatype raw input '{described.name}', the model must have input shape [1]")
    elif variable:
        shape[variable[0]] = body_bytes // max(1, element_count * described.datatype.itemsize)
    return tuple(shape)
