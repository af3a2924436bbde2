"""A named array."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tpy.messages.datatypes import DataType


class Tensor(msgspec.Struct, frozen=True):
    """A named array; the shape is `array.shape`, the batch dimension included.

    `array` may be a read-only view over the bytes that arrived; nobody writes to it. Its dtype is `datatype.numpy`, it
    need be neither contiguous nor aligned. BYTES arrays have dtype object and hold `bytes`.
    """

    name: str
    datatype: DataType
    array: np.ndarray[Any, Any]
