"""Comparing answers with the expected ones."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tpy.frontends.binary_tensor import write_binary
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_WORD
from tpy_tools.load.calls import read_grpc, read_http
from tpy_tools.load.core.answers import AnswerPart, BrokenAnswer

_RELATIVE = 1e-5
_ABSOLUTE = 1e-8


class Expected(msgspec.Struct, frozen=True):
    """The outputs that an answer must have, by name: types and values in their binary form."""

    outputs: dict[str, tuple[str, bytes]]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Expected:
        """From tensors."""
        return cls({each.name: (each.datatype.value, bytes(write_binary(each.array, each.datatype))) for each in tensors})


class Checker:
    """Compares answers. One that has been found right is remembered: an equal one after it costs a comparison of bytes."""

    def __init__(self, expected: Sequence[Expected | None], protocol: str) -> None:
        self._expected = expected
        self._protocol = protocol
        self._right: dict[int, bytes] = {}

    def problem(self, call: int, answer: AnswerPart) -> str | None:
        """Returns the difference of an answer from the expected one, None: none."""
        expected = self._expected[call]
        if expected is None or self._right.get(call) == answer.body:
            return None
        try:
            if self._protocol.startswith("grpc"):
                outputs = read_grpc(answer.body, streamed=self._protocol == "grpc-stream")
            else:
                outputs = read_http(answer)
        except BrokenAnswer as error:
            return str(error)
        found = {tensor.name: tensor for tensor in outputs}
        for name, (datatype, content) in expected.outputs.items():
            difference = _difference(found.get(name), datatype, content)
            if difference:
                return f"wrong answer to entry {call}: output {name} {difference}"
        self._right[call] = answer.body
        return None


def _difference(tensor: Tensor | None, datatype: str, content: bytes) -> str:
    if tensor is None:
        return "is missing"
    if tensor.datatype.value != datatype:
        return f"is {tensor.datatype.value}, expected {datatype}"
    got = bytes(write_binary(tensor.array, tensor.datatype))
    if got == content:
        return ""
    if tensor.datatype is DataType.BYTES or len(got) != len(content):
        return "has other values" if len(got) == len(content) else f"has {len(got)} bytes, expected {len(content)}"
    kind = BY_WORD[datatype].numpy
    ours, theirs = (np.frombuffer(each, kind).astype(np.float64) for each in (got, content))
    close = np.isclose(ours, theirs, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
    if kind.kind not in "iub" and close.all():
        return ""
    at = int(np.flatnonzero(~close)[0]) if not close.all() else int(np.flatnonzero(ours != theirs)[0])
    return f"has {ours[at]:g} at {at}, expected {theirs[at]:g}"
