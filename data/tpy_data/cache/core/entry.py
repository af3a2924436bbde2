"""CachedResponse: one answer as it is kept, apart from everything that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from tpy.messages import DataType, ParameterValue, Tensor

ENTRY_BYTES: Final = 600
"""Memory of an entry besides its content: its key, its places in the tables, its own objects (430 measured; what
the allocator loses is in the rest)."""

TENSOR_BYTES: Final = 400
"""The same for a tensor: its array object, shape and name (290 measured)."""

ELEMENT_BYTES: Final = 48
"""The same for an element of a BYTES tensor: a pointer and the head of a bytes object, rounded up as the allocator does."""

PARAMETER_BYTES: Final = 150
"""The same for a response parameter."""


class CachedResponse(msgspec.Struct, frozen=True):
    """Outputs and response parameters of a successful answer. The arrays are the entry's own and read-only, so that they can be
    handed out any number of times."""

    outputs: tuple[Tensor, ...]
    parameters: Mapping[str, ParameterValue]


def data_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of the tensors' elements. For BYTES that takes a look at each of them."""
    return sum(
        sum(map(len, tensor.array.ravel())) if tensor.datatype is DataType.BYTES else tensor.array.nbytes for tensor in tensors
    )


def entry_bytes(outputs: Sequence[Tensor], parameters: Mapping[str, ParameterValue]) -> int:
    """The memory that keeping this response takes, in bytes."""
    size = ENTRY_BYTES + data_bytes(outputs)
    for tensor in outputs:
        size += TENSOR_BYTES + len(tensor.name)
        if tensor.datatype is DataType.BYTES:
            size += ELEMENT_BYTES * tensor.array.size
    for name, value in parameters.items():
        size += PARAMETER_BYTES + len(name) + (len(value) if isinstance(value, str) else 0)
    return size


def keep(outputs: Sequence[Tensor], parameters: Mapping[str, ParameterValue]) -> CachedResponse:
    """A copy of the answer: whoever made its arrays may use their memory again."""
    return CachedResponse(tuple([_copied(tensor) for tensor in outputs]), dict(parameters))


def _copied(tensor: Tensor) -> Tensor:
    array = np.array(tensor.array, copy=True, order="C")  # the elements of BYTES are bytes objects, which nobody can change
    array.flags.writeable = False
    return Tensor(tensor.name, tensor.datatype, array)
