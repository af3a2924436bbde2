"""The comparison of what a request was answered in the recording with what it is answered now."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tpy.errors import TpyError
from tpy.frontends.binary_tensor import read_binary, write_binary
from tpy.messages import DataType, Tensor
from tpy.recording.core.entries import RecordedRequest, RecordedTensor

_SHOWN_CHARACTERS = 80

Tolerances = Mapping[str, float]
"""By the name of an output, "" for all others: two elements a and b are equal when |a - b| <= tolerance * max(1, |a|)."""


class Answered(msgspec.Struct, frozen=True):
    """One response of a replay: tensors, or the text of an error."""

    outputs: tuple[Tensor, ...] = ()
    error: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A difference in the answer to the request `number` (from 0, in the order of arrival). `element` is the first that differs,
    by its place in each dimension; `different` of `elements` do, by at most `deviation`."""

    number: int
    model: str
    id: str = ""
    response: int = 0
    output: str = ""
    what: str
    recorded: str = ""
    replayed: str = ""
    element: tuple[int, ...] | None = None
    different: int = 0
    elements: int = 0
    deviation: float | None = None

    def __str__(self) -> str:
        where = f"request {self.number}" + (f" (id {self.id})" if self.id else "") + f" of {self.model}"
        if self.response:
            where += f", response {self.response}"
        if self.output:
            where += f", output {self.output}"
        text = f"{where}: {self.what}"
        if self.element is not None:
            text += f" at {list(self.element)}"
        text += f": recorded {self.recorded}, replayed {self.replayed}"
        if self.elements:
            text += f"; {self.different} of {self.elements} elements differ"
            text += "" if self.deviation is None else f", by at most {self.deviation:g}"
        return text


def has_all_contents(request: RecordedRequest) -> bool:
    """Returns False for a request whose answers have tensors of which only name, datatype and shape were recorded."""
    outputs = (tensor for response in request.responses for tensor in response.outputs)
    return all(tensor.data is not None or tensor.sha256 is not None for tensor in outputs)


def compare(number: int, request: RecordedRequest, answers: Sequence[Answered], tolerances: Tolerances) -> Difference | None:
    """The first difference, None for an equal answer. Errors are compared by presence only: servers word them differently."""

    def difference(what: str, recorded: object, replayed: object, **more: Any) -> Difference:
        return Difference(
            number=number,
            model=request.model,
            id=request.id,
            what=what,
            recorded=_shown(recorded),
            replayed=_shown(replayed),
            **more,
        )

    failure = next((answer.error for answer in answers if answer.error), "")
    if request.status != "OK":
        return None if failure else difference("an answer in place of an error", request.error or request.status, "an answer")
    if failure:
        return difference("an error in place of an answer", "an answer", failure)
    if len(answers) != len(request.responses):
        return difference("number of responses", len(request.responses), len(answers))
    for place, (recorded, answer) in enumerate(zip(request.responses, answers, strict=True)):
        found = {tensor.name: tensor for tensor in answer.outputs}
        names = {tensor.name for tensor in recorded.outputs}
        if names != found.keys():
            return difference("names of outputs", ", ".join(sorted(names)), ", ".join(sorted(found)), response=place)
        for tensor in recorded.outputs:
            tolerance = tolerances.get(tensor.name, tolerances.get("", 0.0))
            differs = _compare_tensor(tensor, found[tensor.name], tolerance)
            if differs is not None:
                what, before, now, more = differs
                return difference(what, before, now, response=place, output=tensor.name, **more)
    return None


_Differs = tuple[str, object, object, dict[str, Any]]


def _compare_tensor(recorded: RecordedTensor, replayed: Tensor, tolerance: float) -> _Differs | None:
    if recorded.datatype is not replayed.datatype:
        return "datatype", recorded.datatype.value, replayed.datatype.value, {}
    shape = tuple(replayed.array.shape)
    if recorded.shape != shape:
        return "shape", list(recorded.shape), list(shape), {}
    if recorded.data is None and recorded.sha256 is None:
        return None
    data = bytes(write_binary(replayed.array, replayed.datatype))
    if recorded.data is None:
        digest = hashlib.sha256(data).digest()
        return None if digest == recorded.sha256 else ("SHA-256", (recorded.sha256 or b"").hex(), digest.hex(), {})
    if data == recorded.data:
        return None
    try:
        before = read_binary(recorded.data, recorded.datatype, shape, tensor=recorded.name, model="", prefix="")
    except TpyError as error:
        return "the recording", error.message, "not compared", {}
    return _compare_elements(before, replayed.array, replayed.datatype, tolerance)


def _compare_elements(
    before: np.ndarray[Any, Any], now: np.ndarray[Any, Any], datatype: DataType, tolerance: float
) -> _Differs | None:
    deviation: float | None = None
    if datatype is DataType.BYTES:
        differs = np.array([one != other for one, other in zip(before.reshape(-1), now.reshape(-1), strict=True)], bool)
    else:
        differs, deviation = _numbers_that_differ(before.reshape(-1), now.reshape(-1), tolerance)
    places = np.flatnonzero(differs)
    if not len(places):
        return None
    first = int(places[0])
    more = {
        "element": tuple(int(each) for each in np.unravel_index(first, before.shape)) if before.ndim else (),
        "different": len(places),
        "elements": before.size,
        "deviation": deviation,
    }
    return "element", before.reshape(-1)[first], now.reshape(-1)[first], more


def _numbers_that_differ(
    before: np.ndarray[Any, Any], now: np.ndarray[Any, Any], tolerance: float
) -> tuple[np.ndarray[Any, Any], float | None]:
    """The elements that differ by more than the tolerance, and the largest deviation of finite ones. NaN equals NaN; infinities
    equal themselves."""
    if before.dtype.kind in "bui":
        equal = before == now
        exact = before.astype(object) if before.dtype.itemsize == np.dtype(np.uint64).itemsize else before.astype(np.int64)
        other = now.astype(object) if before.dtype.itemsize == np.dtype(np.uint64).itemsize else now.astype(np.int64)
        distance = np.abs(exact - other).astype(np.float64)
        scale = np.abs(exact).astype(np.float64)
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            one, two = before.astype(np.float64), now.astype(np.float64)
            equal = (one == two) | (np.isnan(one) & np.isnan(two))
            distance = np.abs(one - two)
            scale = np.abs(one)
    with np.errstate(invalid="ignore"):
        near = np.isfinite(distance) & (distance <= tolerance * np.maximum(1.0, scale))
    finite = distance[np.isfinite(distance) & ~equal]
    return ~(equal | near), float(finite.max()) if finite.size else None


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, bytes) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
