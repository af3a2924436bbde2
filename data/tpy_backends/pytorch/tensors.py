"""Between the arrays of requests and the values that a program takes and gives."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy_backends.pytorch.signature import ModuleInput, ValueKind

Array = np.ndarray[Any, Any]

TORCH_OF: dict[DataType, torch.dtype] = {
    DataType.BOOL: torch.bool,
    DataType.UINT8: torch.uint8,
    DataType.UINT16: torch.uint16,
    DataType.UINT32: torch.uint32,
    DataType.UINT64: torch.uint64,
    DataType.INT8: torch.int8,
    DataType.INT16: torch.int16,
    DataType.INT32: torch.int32,
    DataType.INT64: torch.int64,
    DataType.FP16: torch.float16,
    DataType.FP32: torch.float32,
    DataType.FP64: torch.float64,
    DataType.BF16: torch.bfloat16,
}
"""Triton's backend has no UINT16, UINT32, UINT64 and BF16."""

DATATYPE_OF: dict[torch.dtype, DataType] = {torch_type: datatype for datatype, torch_type in TORCH_OF.items()}


def _warn_of_read_only_arrays_now() -> None:
    """PyTorch warns, once in a process, of the first tensor over an array that is not writable. Requests' arrays never are, and
    programs that write their inputs get copies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(np.frombuffer(b"\0", dtype=np.uint8))


_warn_of_read_only_arrays_now()


def to_tensor(array: Array, *, may_be_written: bool) -> torch.Tensor:
    """A tensor over the array's memory where that is possible: contiguous, aligned, and ours if the program may write it."""
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned) or (may_be_written and not flags.writeable):
        array = array.copy(order="C")
    if array.dtype == DataType.BF16.numpy:
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_array(tensor: torch.Tensor) -> Array:
    """An array over the memory of a tensor on the host, contiguous. Raises what `torch` raises for a tensor that has no such
    form."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        raw: Array = tensor.view(torch.uint16).numpy()
        return raw.view(DataType.BF16.numpy)
    array: Array = tensor.numpy()
    return array


def to_strings(name: str, array: Array) -> list[bytes]:
    """A list for an argument of type List[str]. Raises InvalidArgument for more than one dimension."""
    if array.ndim > 1:
        raise InvalidArgument(f"input '{name}' has {array.ndim} dimensions, a list of strings has one")
    elements: list[bytes] = array.ravel().tolist()
    return elements


def from_strings(elements: list[str]) -> Array:
    """The BYTES of a list of strings."""
    array = np.empty(len(elements), dtype=object)
    array[:] = [element.encode() for element in elements]
    return array


def to_scalar(name: str, array: Array, argument: ModuleInput) -> int | float | bool:
    """The one value of an array, for an argument that is a number. Raises InvalidArgument where its elements differ: an execution
    has one value for all requests of its batch."""
    first = array.flat[0] if array.size else None
    if first is None or (array.size > 1 and not (array == first).all()):
        raise InvalidArgument(
            f"input '{name}' must have one value, as argument '{argument.name}' of the model is {argument.kind.value}"
        )
    if argument.kind is ValueKind.BOOLEAN:
        return bool(first)
    return float(first) if argument.kind is ValueKind.FLOAT else int(first)
