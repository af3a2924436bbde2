"""A named array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np

from tpy import dlpack
from tpy.messages.datatypes import DataType
from tpy.messages.places import HOST, Place

ELEMENT_BYTES: Final = 48
"""Memory of an element of BYTES besides its content: a pointer and the head of a bytes object, rounded up as the allocator
does."""


class Tensor(msgspec.Struct, frozen=True):
    """A named array; the shape is `array.shape`, the batch dimension included.

    `array` may be a read-only view over the bytes that arrived; nobody writes to it. Its dtype is `datatype.numpy`, it
    need be neither contiguous nor aligned. BYTES arrays have dtype object and hold `bytes`.

    `array` is a NumPy array, in host memory, but for tensors that stay on the device where they were made: then it is a
    `tpy.devices.DeviceArray`, which has a shape and a dtype, can be reshaped and cut into rows, and refuses all else. Only
    those see such a tensor who said that they take it (`InferenceRequest.residency`, `tpy.backend.DeviceInstance`).
    """

    name: str
    datatype: DataType
    array: np.ndarray[Any, Any]

    @property
    def place(self) -> Place:
        """The place of its elements. Pinned memory counts as the host's here: whoever has it need not care."""
        array: object = self.array
        return HOST if isinstance(array, np.ndarray) else cast(Place, getattr(array, "place"))  # noqa: B009

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule over the elements: no copy, but of host memory that may not be written when the consumer does not
        know such memory. Nothing has to be waited for, whatever the consumer's `stream` is. Raises BufferError for BYTES."""
        if self.datatype is DataType.BYTES:
            raise BufferError("DLPack does not have support for string tensors.")
        array: Any = self.array
        return dlpack.of_array(array, **options) if isinstance(array, np.ndarray) else array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        array: Any = self.array
        return (dlpack.CPU, 0) if isinstance(array, np.ndarray) else array.__dlpack_device__()


def held_bytes(tensors: Sequence[Tensor], enough: int) -> int:
    """The memory that the elements of tensors take, in bytes. BYTES elements are looked at one by one, as an array of objects
    knows its pointers only; no further than it takes to know that the sum is `enough` or more."""
    size = 0
    for tensor in tensors:
        array = tensor.array
        if tensor.datatype is not DataType.BYTES:
            size += array.nbytes
            continue
        size += ELEMENT_BYTES * array.size
        if size < enough:
            size += content_bytes(array)
    return size


def content_bytes(array: np.ndarray[Any, Any]) -> int:
    """The bytes of a BYTES array's elements together: some 20 ms for a million of them."""
    return sum(map(len, array.flat))
