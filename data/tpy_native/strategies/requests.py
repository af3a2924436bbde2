"""Requests on their way to the process of a strategy: all but the elements of their inputs, which it fetches when the strategy
looks at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import msgspec
import numpy as np

from tpy.backend import ExecutionRequest
from tpy.errors import Internal, NotFound
from tpy.messages import DataType, ParameterValue, SequencePosition, Tensor

FETCH = b"?"
"""Before the name of an input, whose elements are asked for."""

_LENGTH_BYTES = 4
"""Before each element of BYTES, as Triton lays them out."""


class _Input(msgspec.Struct, frozen=True, array_like=True):
    name: str
    datatype: DataType
    shape: tuple[int, ...]
    size: int


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is to be included or not, after what was `said`: batches begun and ended."""

    said: Sequence[str]
    id: str
    inputs: Sequence[_Input]
    requested_outputs: tuple[str, ...]
    parameters: Mapping[str, ParameterValue]
    timeout_us: int


class ShownInput:
    """An input as the C library takes one whose elements are elsewhere."""

    def __init__(self, given: _Input, ask: Callable[[bytes], bytes]) -> None:
        self.datatype = given.datatype
        self.shape = given.shape
        self.size = given.size
        self._name = given.name
        self._ask = ask

    def fetch(self) -> bytes:
        """The elements."""
        return self._ask(FETCH + self._name.encode())


class ShownRequest:
    """An ExecutionRequest, as far as a strategy may ask."""

    sequence: SequencePosition | None = None

    def __init__(self, question: Question, ask: Callable[[bytes], bytes]) -> None:
        self.id = question.id
        self.inputs = {each.name: ShownInput(each, ask) for each in question.inputs}
        self.requested_outputs = question.requested_outputs
        self.parameters = question.parameters
        self.timeout_us = question.timeout_us

    def is_cancelled(self) -> bool:
        """The process does not know."""
        return False


_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Question).decode


def describe(said: Sequence[str], ticket: object) -> bytes:
    """A question about a ticket that is an ExecutionRequest. Raises Internal for an input that is not in host memory."""
    request = cast(ExecutionRequest, ticket)
    return _encode(
        Question(
            said=said,
            id=request.id,
            inputs=[_Input(each.name, each.datatype, each.array.shape, _size(each)) for each in request.inputs.values()],
            requested_outputs=request.requested_outputs,
            parameters=request.parameters,
            timeout_us=request.timeout_us,
        )
    )


def read(message: bytes) -> Question:
    """Returns the question that `describe` made a message of."""
    return _decode(message)


def elements(ticket: object, name: str) -> bytes | memoryview:
    """The elements of an input of the ticket: a contiguous array's are not copied. Raises NotFound if it has no input of this
    name."""
    tensor = cast(ExecutionRequest, ticket).inputs.get(name)
    if tensor is None:
        raise NotFound(f"the request has no input '{name}'")
    if tensor.datatype is DataType.BYTES:
        return b"".join(
            part for each in tensor.array.ravel().tolist() for part in (len(each).to_bytes(_LENGTH_BYTES, "little"), each)
        )
    return np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).data if tensor.array.size else b""


def _size(tensor: Tensor) -> int:
    if not isinstance(cast(object, tensor.array), np.ndarray):
        raise Internal(f"input '{tensor.name}' is not in host memory")
    if tensor.datatype is DataType.BYTES:
        return sum([_LENGTH_BYTES + len(element) for element in tensor.array.ravel().tolist()])
    return tensor.array.size * tensor.datatype.itemsize
