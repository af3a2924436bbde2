"""A worker's answers to requests, as it sends them."""

from __future__ import annotations

import msgspec

from tpy.backend import ExecutionResult
from tpy_data.backends.python import translation
from tpy_data.backends.python.worker.core.batch import Array, Descriptor, read

RESCHEDULED_CODE = -2


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """One response of a model; `code` -1 for none of its errors, RESCHEDULED_CODE for no response but another iteration."""

    code: int
    error: str
    parameters: str
    outputs: tuple[Descriptor, ...]


def result_of(answer: Answer, data: memoryview, segment: Array | None) -> ExecutionResult:
    """The result that an answer stands for; its arrays are views. Raises ProtocolViolation or msgspec.DecodeError."""
    if answer.code == RESCHEDULED_CODE:
        return ExecutionResult(reschedule=True)
    if answer.code >= 0:
        return ExecutionResult(error=translation.error_of(answer.code, answer.error))
    outputs = [translation.tensor(descriptor[0], descriptor[1], read(descriptor, data, segment)) for descriptor in answer.outputs]
    return translation.result(outputs, translation.parameters_of(answer.parameters))
