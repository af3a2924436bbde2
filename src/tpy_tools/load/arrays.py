"""Values of JSON as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from tpy.messages import DataType


def array_of(value: object, datatype: DataType) -> np.ndarray[Any, Any]:
    """The elements of a value (a number, a text, or nested lists of them), in order, without a shape. Raises ValueError."""
    flat: list[object] = []
    _flatten(value, flat)
    if datatype is DataType.BYTES:
        array = np.empty(len(flat), dtype=object)
        array[:] = [
            each if isinstance(each, bytes) else each.encode() if isinstance(each, str) else str(each).encode() for each in flat
        ]
        return array
    if not all(isinstance(each, int | float) for each in flat):  # bool is an int
        odd = next(each for each in flat if not isinstance(each, int | float))
        raise ValueError(f"expected numbers for {datatype.value}, got {str(odd)[:60]!r}")
    try:
        return np.array(flat).astype(datatype.numpy)
    except (OverflowError, ValueError, TypeError) as error:
        raise ValueError(f"not all values are {datatype.value}: {error}") from None


def _flatten(value: object, flat: list[object]) -> None:
    if isinstance(value, list):
        for each in value:
            _flatten(each, flat)
    else:
        flat.append(value)
