"""Finds the messages that the Trio thread reads and writes itself: they take about 100 us at most, however they are made. All
others are left to a thread (`Connection.later`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tpy.backend import ExecutionBatch
from tpy.errors import TpyError
from tpy.messages import DataType, InferenceResponse, Tensor, content_bytes
from tpy_data.backends.python.worker.wire.core.batch import Descriptor
from tpy_data.backends.python.worker.wire.core.datatypes import BYTES

TENSORS_MAX = 64
"""Tensors of one message: some microseconds each."""

BYTES_MAX = 64 * 1024
"""Of the tensors' elements, of ids and parameters: a copy of so much takes some microseconds."""

TEXTS_MAX = 64
"""Elements of BYTES tensors, which are written one by one."""

HEADER_BYTES_MAX = 16 * 1024
"""Of a message that comes, which is read as JSON: some 100 answers."""

TEXT_BYTES_MAX = 4 * 1024
"""Of BYTES tensors in a message that comes, whose elements are read one by one, and have 4 bytes at least."""


class _Sum:
    """The size of a message to be written."""

    __slots__ = ("size", "tensors", "texts")

    def __init__(self) -> None:
        self.size = self.texts = self.tensors = 0

    def add(self, tensor: Tensor) -> None:
        """Count it; the elements of texts only as long as there are few."""
        self.tensors += 1
        array = tensor.array
        if type(array) is not np.ndarray:  # on a device: the loop must not copy it
            self.size = BYTES_MAX + 1
            return
        if tensor.datatype is not DataType.BYTES:
            self.size += array.nbytes
            return
        self.texts += array.size
        if self.texts <= TEXTS_MAX:
            self.size += content_bytes(array)

    @property
    def is_small(self) -> bool:
        return self.size <= BYTES_MAX and self.texts <= TEXTS_MAX and self.tensors <= TENSORS_MAX


def are_small(batches: Sequence[ExecutionBatch]) -> bool:
    """Returns True if these can be written down at once."""
    total = _Sum()
    for batch in batches:
        for request in batch.requests:
            total.size += len(request.id)
            for tensor in request.inputs.values():
                total.add(tensor)
            if request.parameters:
                total.tensors += len(request.parameters)
                total.size += sum(map(len, request.parameters))
                total.size += sum([len(value) for value in request.parameters.values() if isinstance(value, str)])
    return total.is_small


def is_small_answer(answer: InferenceResponse | TpyError) -> bool:
    """Returns True if the answer to a call can be written down at once."""
    total = _Sum()
    if isinstance(answer, InferenceResponse):
        for tensor in answer.outputs:
            total.add(tensor)
    return total.is_small


def are_small_texts(descriptors: Iterable[Descriptor]) -> bool:
    """Returns True if tensors that have come can be read at once: only BYTES and those on devices are touched."""
    descriptors = tuple(descriptors)
    if any(type(descriptor[3]) is str for descriptor in descriptors):
        return False
    return sum([descriptor[5] for descriptor in descriptors if descriptor[1] == BYTES]) <= TEXT_BYTES_MAX
