"""CachedResponse: one answer as it is kept, apart from everything that it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from tpy.messages import ParameterValue, Tensor, held_bytes

ENTRY_BYTES: Final = 600
"""Memory of an entry besides its content: its key, its places in the tables, its own objects (430 measured; what
the allocator loses is in the rest)."""

TENSOR_BYTES: Final = 400
"""The same for a tensor: its array object, shape and name (290 measured)."""

PARAMETER_BYTES: Final = 150
"""The same for a response parameter."""


class CachedResponse(msgspec.Struct, frozen=True):
    """Outputs and response parameters of a successful answer. The arrays are the entry's own and read-only, so that they can be
    handed out any number of times."""

    outputs: tuple[Tensor, ...]
    parameters: Mapping[str, ParameterValue]


def entry_bytes(outputs: Sequence[Tensor], parameters: Mapping[str, ParameterValue], enough: int) -> int:
    """The memory that keeping this response takes, in bytes; at least `enough` for one that takes more."""
    size = ENTRY_BYTES + held_bytes(outputs, enough)
    for tensor in outputs:
        size += TENSOR_BYTES + len(tensor.name)
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
