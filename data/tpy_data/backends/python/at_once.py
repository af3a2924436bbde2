"""What of the talk with a worker the Trio thread does itself: what takes at most some 100 us, however it is made. All else is the
instance's thread's."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.backend import ExecutionBatch
from tpy.messages import DataType
from tpy_data.backends.python.answers import Answer
from tpy_data.backends.python.worker.core.frames import Frame
from tpy_data.backends.python.worker.datatypes import BYTES

_TENSORS_MAX = 64
"""Inputs of one message: some microseconds each."""

_BYTES_MAX = 64 * 1024
"""Of the inputs' elements, of ids and parameters: a copy of so much takes some microseconds."""

_TEXTS_MAX = 64
"""Elements of BYTES inputs, which are written one by one."""

_ANSWER_HEADER_BYTES_MAX = 16 * 1024
"""Read as JSON: some 100 answers."""

_ANSWER_TEXT_BYTES_MAX = 4 * 1024
"""Of BYTES outputs, whose elements are read one by one, and have 4 bytes at least. Other outputs are not touched."""


def are_brief(batches: Sequence[ExecutionBatch]) -> bool:
    """Whether these can be written down at once."""
    size = texts = tensors = 0
    for batch in batches:
        for request in batch.requests:
            size += len(request.id)
            for tensor in request.inputs.values():
                tensors += 1
                array = tensor.array
                if tensor.datatype is not DataType.BYTES:
                    size += array.nbytes
                    continue
                texts += array.size
                if texts > _TEXTS_MAX:
                    return False
                size += sum([len(element) for element in array.reshape(-1)])
            if request.parameters:
                tensors += len(request.parameters)
                size += sum([len(value) for value in request.parameters.values() if isinstance(value, str)])
    return size <= _BYTES_MAX and tensors <= _TENSORS_MAX


def is_brief(frame: Frame) -> bool:
    """Whether a worker's message can be parsed at once."""
    return len(frame.header) <= _ANSWER_HEADER_BYTES_MAX


def are_plain(answers: Sequence[Answer | int] | str) -> bool:
    """Whether these answers can be made results of at once. Those that come later are not: a lock is needed for them that others
    hold for long."""
    if isinstance(answers, str):
        return True
    size = 0
    for answer in answers:
        if isinstance(answer, Answer):
            size += sum([output[5] for output in answer.outputs if output[1] == BYTES])
        elif isinstance(answer, int):
            return False
    return size <= _ANSWER_TEXT_BYTES_MAX
