"""RequestKey: what makes two requests to a model the same request."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from tpy.messages import DataType, InferenceRequest, Tensor

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
