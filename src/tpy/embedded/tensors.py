"""Values of a program to tensors, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tpy.errors import InvalidArgument
from tpy.messages import DataType, ModelDescription, Tensor
from tpy.messages.datatypes import from_numpy

Array = np.ndarray[Any, Any]


def to_tensors(inputs: Mapping[str, object], describe: Callable[[], ModelDescription]) -> tuple[Tensor, ...]:
    """The tensors of `inputs`: arrays and what offers DLPack without a copy, where they are in host memory; strings, numbers and
    lists of them as the model's data type, which `describe` is asked for. Raises InvalidArgument for anything else."""
    if type(inputs) is not dict and not isinstance(inputs, Mapping):
        raise InvalidArgument(_UNNAMED)
    return tuple([_to_tensor(name, value, describe) for name, value in inputs.items()])


_UNNAMED = "expected inputs by their names"


def _to_tensor(name: str, value: object, describe: Callable[[], ModelDescription]) -> Tensor:
    if not isinstance(name, str):
        raise InvalidArgument(_UNNAMED)
    array = _as_array(name, value)
    if array is None:
        array = _of_values(name, value, describe())
    datatype = from_numpy(array.dtype)
    if datatype is DataType.INVALID:
        raise InvalidArgument(f"input '{name}': no data type of the protocol has elements of the NumPy type {array.dtype}")
    if datatype is DataType.BYTES:
        array = _as_bytes(name, array)
    elif array.dtype != datatype.numpy:
        array = array.astype(datatype.numpy)  # of the other byte order
    return Tensor(name, datatype, array)


def _as_array(name: str, value: object) -> Array | None:
    """The array that `value` is or shares its memory with; None for values that are to be fitted to the model's data type."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError) as error:
            raise InvalidArgument(f"input '{name}': its memory cannot be shared with the server: {error}") from None
    return None


def _of_values(name: str, value: object, model: ModelDescription) -> Array:
    described = model.input_by_name.get(name)
    if described is None:
        known = ", ".join(f"'{each}'" for each in model.input_by_name)
        raise InvalidArgument(f"unexpected inference input '{name}' for model '{model.name}'; its inputs are {known}")
    try:
        return np.asarray(value, dtype=described.datatype.numpy)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgument(f"input '{name}': expected {described.datatype.value} values: {error}") from None


def _as_bytes(name: str, array: Array) -> Array:
    """Strings as their bytes in UTF-8."""
    if array.dtype == object and all(type(element) is bytes for element in array.flat):
        return array
    found = np.empty(array.shape, dtype=object)
    found.ravel()[:] = list(_encoded(name, array.ravel().tolist()))
    return found


def _encoded(name: str, values: Iterable[object]) -> Iterator[bytes]:
    for value in values:
        if isinstance(value, str):
            try:
                yield value.encode()
            except UnicodeEncodeError:
                raise InvalidArgument(
                    f"input '{name}': expected text, got half of a surrogate pair, which UTF-8 does not have: {value!r}"
                ) from None
        elif isinstance(value, bytes):
            yield value
        else:
            raise InvalidArgument(f"input '{name}': expected str or bytes, got {type(value).__name__}")
