"""The callables that the C library makes values of the engine with, and sends responses through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tpy.backend import AnswerLater, ExecutionResult, ResponseSender
from tpy.errors import Internal
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_NUMBER
from tpy_data.backends.python.protocol.late_answer import LateAnswer
from tpy_native.surroundings import error_of

_UINT16: Final = np.dtype(np.uint16)


def callables() -> tuple[object, ...]:
    """In the order of `tpy_start_batches`."""
    numbers = range(max(BY_NUMBER) + 1)
    return (
        ExecutionResult,
        _failure,
        Tensor,
        _bytes_array,
        [BY_NUMBER[number] for number in numbers],
        [BY_NUMBER[number].numpy for number in numbers],
        _prepare,
        _send,
        _later,
        ExecutionResult(),
        ExecutionResult(reschedule=True),
    )


def _failure(code: int, text: str) -> ExecutionResult:
    return ExecutionResult(error=error_of(code, text))


def _bytes_array(shape: tuple[int, ...], elements: Sequence[bytes]) -> np.ndarray[Any, Any]:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def _prepare(tensor: Tensor) -> tuple[object, tuple[int, ...]]:
    """A buffer of the elements of an array that does not expose one, and its shape. Raises Internal for one on a device."""
    array = tensor.array
    if tensor.datatype is DataType.BYTES:
        parts: list[bytes] = []
        for element in array.ravel():
            data = element if isinstance(element, bytes) else str(element).encode()
            parts += (len(data).to_bytes(4, "little"), data)
        return b"".join(parts), array.shape
    if not isinstance(array, np.ndarray):
        raise Internal(f"input '{tensor.name}' is not in host memory")
    if tensor.datatype is DataType.BF16:
        array = np.ascontiguousarray(array).view(_UINT16)
    return np.ascontiguousarray(array), tensor.array.shape


def _send(sender: ResponseSender | LateAnswer, result: ExecutionResult | None, final: bool) -> None:
    sender.send(result, final=final, wait=True)


def _later() -> tuple[LateAnswer, AnswerLater]:
    late = LateAnswer()
    return late, AnswerLater(begin=late.begin)
