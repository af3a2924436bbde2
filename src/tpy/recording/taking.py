"""Requests as they are taken down: their tensors are copied while they are there, and become entries in the thread that writes.

Memory of tensors belongs to others: a client's region, a worker's memory, a buffer that is used again. So elements are copied on
the loop, at once; elements of BYTES are objects that nobody changes, of which references are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from tpy.limits import RECORDING_ENTRY_BYTES_MAX
from tpy.messages import HOST, Contents, DataType, InferenceRequest, InferenceResponse, Tensor, held_bytes
from tpy.recording.core.entries import RecordedRequest, RecordedResponse, RecordedSequence, RecordedTensor

_OBJECT_BYTES = 64
"""The memory of an element of BYTES, or of a tensor, beside its content."""


class HeldTensor(NamedTuple):
    """A tensor with a copy of its elements, None where they are not kept."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: bytes | None = None
    elements: Sequence[bytes] | None = None

    def entry(self, contents: Contents) -> RecordedTensor:
        """The tensor as an entry has it."""
        data = self.data if self.elements is None else _joined(self.elements)
        if data is None or contents is Contents.NONE:
            return RecordedTensor(name=self.name, datatype=self.datatype, shape=self.shape)
        if contents is Contents.HASH:
            digest = hashlib.sha256(data).digest()
            return RecordedTensor(name=self.name, datatype=self.datatype, shape=self.shape, sha256=digest)
        return RecordedTensor(name=self.name, datatype=self.datatype, shape=self.shape, data=data)


class HeldResponse(NamedTuple):
    """A response with copies of its tensors."""

    after_ns: int
    tensors: Sequence[HeldTensor]
    response: InferenceResponse

    def entry(self, contents: Contents) -> RecordedResponse:
        """The response as an entry has it."""
        error = self.response.error
        return RecordedResponse(
            after_ns=self.after_ns,
            outputs=tuple(tensor.entry(contents) for tensor in self.tensors),
            parameters=self.response.parameters,
            error="" if error is None else error.message,
        )


class FinishedRequest(NamedTuple):
    """A request that is over, for the thread that writes."""

    request: InferenceRequest
    inputs: Sequence[HeldTensor]
    responses: Sequence[HeldResponse]
    arrived_ns: int
    """In UTC."""
    latency_ns: int
    protocol: str
    stream: str
    served_version: int | None
    status: str
    error: str
    held_bytes: int

    def entry(self, inputs: Contents, outputs: Contents) -> RecordedRequest:
        """The request as an entry."""
        request, sequence = self.request, self.request.sequence
        return RecordedRequest(
            arrived_ns=self.arrived_ns,
            latency_ns=self.latency_ns,
            protocol=self.protocol,
            model=request.model_name,
            version=request.model_version,
            served_version=self.served_version,
            id=request.id,
            stream=self.stream,
            sequence=None
            if sequence is None
            else RecordedSequence(id=sequence.correlation_id, start=sequence.start, end=sequence.end),
            parameters=request.parameters,
            priority=request.priority,
            timeout_us=request.timeout_us,
            inputs=tuple(tensor.entry(inputs) for tensor in self.inputs),
            requested=request.requested_outputs,
            responses=tuple(response.entry(outputs) for response in self.responses),
            status=self.status or "OK",
            error=self.error,
        )


def byte_size(tensor: Tensor) -> int:
    """The bytes that a copy of the tensor takes."""
    if tensor.place is not HOST:
        return _OBJECT_BYTES
    return _OBJECT_BYTES + held_bytes((tensor,), RECORDING_ENTRY_BYTES_MAX + 1)


def held(tensor: Tensor, contents: Contents) -> HeldTensor:
    """A copy of the tensor. One in the memory of a device is taken without its elements."""
    array, name, datatype = tensor.array, tensor.name, tensor.datatype
    shape = tuple(array.shape)
    if contents is Contents.NONE or tensor.place is not HOST:
        return HeldTensor(name, datatype, shape)
    if datatype is DataType.BYTES:
        return HeldTensor(name, datatype, shape, elements=array.reshape(-1).tolist())
    return HeldTensor(name, datatype, shape, data=array.tobytes())


def _joined(elements: Sequence[bytes]) -> bytes:
    parts: list[bytes] = []
    for element in elements:
        parts.append(len(element).to_bytes(4, "little"))
        parts.append(element)
    return b"".join(parts)
