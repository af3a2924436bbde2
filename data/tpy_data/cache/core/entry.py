"""CachedResponse: one answer as it is kept, apart from everything that it was made from. RequestKey: what makes two requests
to a model the same request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from tpy.messages import DataType, InferenceRequest, ParameterValue, Tensor, held_bytes

ENTRY_BYTES: Final = 600
"""Memory of an entry besides its content: its key, its places in the tables, its own objects (430 measured; what
the allocator loses is in the rest)."""

TENSOR_BYTES: Final = 400
"""The same for a tensor: its array object, shape and name (290 measured)."""

PARAMETER_BYTES: Final = 150
"""The same for a response parameter."""


class CachedResponse(msgspec.Struct, frozen=True):
    """Outputs and response parameters of a successful answer. The arrays are the entry's own and read-only, so that they can be
    handed out any number of times."""

    outputs: tuple[Tensor, ...]
    parameters: Mapping[str, ParameterValue]


def entry_bytes(outputs: Sequence[Tensor], parameters: Mapping[str, ParameterValue], enough: int) -> int:
    """The memory that keeping this response takes, in bytes; at least `enough` for one that takes more."""
    size = ENTRY_BYTES + held_bytes(outputs, enough)
    for tensor in outputs:
        size += TENSOR_BYTES + len(tensor.name)
    for name, value in parameters.items():
        size += PARAMETER_BYTES + len(name) + (len(value) if isinstance(value, str) else 0)
    return size


def keep(outputs: Sequence[Tensor], parameters: Mapping[str, ParameterValue]) -> CachedResponse:
    """A copy of the answer: whoever made its arrays may use their memory again."""
    return CachedResponse(tuple([_copied(tensor) for tensor in outputs]), dict(parameters))


def _copied(tensor: Tensor) -> Tensor:
    array = np.array(tensor.array, copy=True, order="C")  # the elements of BYTES are bytes objects, which nobody can change
    array.flags.writeable = False
    return Tensor(tensor.name, tensor.datatype, array)


KEY_BYTES: Final = 32
"""Length of a digest: long enough that nobody finds two requests with the same one."""


class RequestKey:
    """Digests of requests to one copy of a model version.

    Two requests have the same digest when they are to the same copy (`identity`: model, namespace, version, generation or
    content) and have the same inputs (names, datatypes, shapes, bytes; in any order), requested outputs (in any order),
    parameters and place in a sequence. Id, priority and time limits are not in it: they do not change what a model answers.
    """

    __slots__ = ("_begun",)

    def __init__(self, identity: tuple[str | int, ...]) -> None:
        self._begun = hashlib.blake2b(_described(identity), digest_size=KEY_BYTES)

    def digest(self, request: InferenceRequest) -> bytes:
        """The key. Any thread. Takes about 1 ms per MB of inputs, with the interpreter free for others."""
        inputs = request.inputs
        if len(inputs) > 1:
            inputs = tuple(sorted(inputs, key=_name))
        head = (
            [(tensor.name, tensor.datatype.value, tensor.array.shape) for tensor in inputs],
            sorted(request.requested_outputs),
            sorted(request.parameters.items()) if request.parameters else None,
            None if request.sequence is None else (request.sequence.correlation_id, request.sequence.start, request.sequence.end),
        )
        digest = self._begun.copy()
        digest.update(_described(head))
        for tensor in inputs:
            _add(digest, tensor)
        return digest.digest()


def _name(tensor: Tensor) -> str:
    return tensor.name


def _described(value: object) -> bytes:
    """Different bytes for different values, and none the beginning of another's: a repr of tuples, strings and numbers, with
    its length in front."""
    text = repr(value).encode()
    return len(text).to_bytes(8, "little") + text


def _add(digest: hashlib.blake2b, tensor: Tensor) -> None:
    """The bytes of a tensor. Shape and datatype say how many follow; each element of BYTES says so itself."""
    array = tensor.array
    if tensor.datatype is DataType.BYTES:
        elements = array.ravel().tolist()
        digest.update(np.fromiter(map(len, elements), dtype="<u8", count=len(elements)).tobytes())
        digest.update(b"".join(elements))
    elif array.size:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
