"""Requests and responses as model code has them, from and to the messages' JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..pb_utils.failures import ErrorCode, ModelFailure, unsendable
from ..pb_utils.request import NOT_TRACED, InferenceRequest, InferenceTrace, received
from ..pb_utils.response import InferenceResponse
from ..pb_utils.tensor import storage_of, wrap
from ..wire.core.batch import Layout, Segment

Read = Callable[[Any, memoryview, Any], Any]
"""As `Connection.read`."""

RESCHEDULED = [-2, "", "", []]
"""In place of an answer: the request is to be executed again."""


def failed_answer(text: str, code: int = int(ErrorCode.INTERNAL)) -> list[Any]:
    """The answer of a request that failed."""
    return [code, sendable(text), "", []]


def failed_batch(failure: ModelFailure) -> str | dict[str, Any]:
    """In place of the answers of a batch that failed as a whole: the text, and the code if that is another than INTERNAL."""
    text = sendable(str(failure))
    return text if failure.code == ErrorCode.INTERNAL else {"code": int(failure.code), "text": text}


def no_memory(text: str) -> dict[str, Any]:
    """In place of the answers of a batch that could not be mapped for want of memory."""
    return {"code": int(ErrorCode.UNAVAILABLE), "text": text}


def sendable(text: str) -> str:
    """Text that JSON can carry: half characters, as undecodable file names have them, become question marks."""
    return text.encode("utf-8", "replace").decode()


def requests_of(
    entries: Sequence[Any], data: memoryview, segment: Segment | None, outputs: frozenset[str], read: Read
) -> list[InferenceRequest]:
    """The requests of an EXECUTE. `outputs` are the model's, for requests that name none. Raises as `read`."""
    requests = []
    for identifier, correlation, flags, timeout_us, parameters, wanted, inputs, _, traced in entries:
        tensors = [wrap(entry[0], entry[1], read(entry, data, segment)) for entry in inputs]
        trace = NOT_TRACED if traced is None else InferenceTrace(traced[1], traced[0])
        names = outputs if wanted is None else frozenset(wanted)
        requests.append(received(identifier, correlation, flags, timeout_us, parameters or "{}", names, tensors, trace))
    return requests


def answer_of(response: InferenceResponse, wanted: Sequence[str] | None, layout: Layout) -> list[Any]:
    """`[error code or -1, error text or "", parameters, output descriptors]`; outputs nobody asked for stay here."""
    error = response.error()
    if error is not None:
        return failed_answer(error.message(), int(error.code()))
    try:
        outputs = [
            layout.add(name, number, array)
            for name, number, array in map(storage_of, response.output_tensors())
            if wanted is None or name in wanted
        ]
    except Exception as unsent:
        return failed_answer(unsendable(unsent))
    parameters = response.parameters()
    return [-1, "", "" if parameters == "{}" else sendable(parameters), outputs]
