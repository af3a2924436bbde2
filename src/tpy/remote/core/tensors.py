"""Requests and responses to and from messages. Large tensors go into memory that both processes share, small ones into the
message.

The receiver's arrays are read-only views: over the message, or over the shared memory, whose block is taken as long as any of
them lives.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import msgspec
import numpy as np

from tpy.limits import REMOTE_INLINE_BYTES_MAX
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Residency, SequencePosition, Tensor
from tpy.messages.inference import NO_PARAMETERS
from tpy.remote.core.errors import ProtocolError
from tpy.remote.core.messages import Block, Failure, Origin, RegionOffset, Response, Submit, WireTensor

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

Place = Callable[[int], tuple[int, Bytes] | None]
"""Takes a block of so many bytes of one's own shared memory: its offset and its bytes, to be written. None: there is none."""

View = Callable[[int, int], Bytes]
"""The bytes at an offset of the peer's shared memory, and so many, read-only. Raises ProtocolError for what is not within."""

Refer = Callable[[object], RegionOffset]
"""The place in a GPU's memory of an array that is not in host memory."""

Find = Callable[[RegionOffset, tuple[int, ...], np.dtype[Any]], np.ndarray[Any, Any]]
"""The array of this shape at such a place. Raises NotFound when there is no such region, InvalidArgument for what is not
within."""

_ELEMENTS = msgspec.msgpack.Decoder(list[bytes])
_PLAIN_BYTES = {bytes}


def submit_of(
    number: int, copy: int, request: InferenceRequest, place: Place, refer: Refer | None = None, origin: Origin | None = None
) -> Submit:
    """The message for a request to a copy of a version; without `refer` all of its tensors are in host memory. Raises ValueError
    for a tensor that cannot be sent."""
    position = request.sequence
    return Submit(
        number,
        copy,
        request.model_name,
        request.model_version,
        request.id,
        tuple([_pack(tensor, place, refer) for tensor in request.inputs]),
        request.requested_outputs,
        request.parameters,
        None if position is None else (position.correlation_id, position.start, position.end),
        request.priority,
        request.timeout_us,
        request.deadline_ns,
        request.received_ns,
        origin,
    )


def request_of(message: Submit, view: View, find: Find | None = None) -> InferenceRequest:
    """The request in a message. Raises ProtocolError for tensors that are not what they say, and as `find`."""
    position = message.sequence
    return InferenceRequest(
        model_name=message.model_name,
        model_version=message.model_version,
        id=message.id,
        inputs=tuple([_unpack(tensor, view, find) for tensor in message.inputs]),
        requested_outputs=message.requested_outputs,
        parameters=message.parameters or NO_PARAMETERS,
        sequence=None if position is None else SequencePosition(correlation_id=position[0], start=position[1], end=position[2]),
        priority=message.priority,
        timeout_us=message.timeout_us,
        deadline_ns=message.deadline_ns,
        received_ns=message.received_ns,
        residency=Residency(inputs=True) if any(tensor.region is not None for tensor in message.inputs) else None,
    )


def message_of(number: int, response: InferenceResponse, place: Place, *, observed: bool = False) -> Response:
    """The message for a response; `observed`: see Response. Raises ValueError for a tensor that cannot be sent."""
    return Response(
        number,
        response.model_name,
        response.model_version,
        response.id,
        tuple([_pack(tensor, place) for tensor in response.outputs]),
        response.parameters,
        None if response.error is None else Failure.of(response.error),
        response.final,
        response.refused,
        response.described_by,
        observed,
    )


def response_of(message: Response, view: View) -> InferenceResponse:
    """The response in a message. Raises ProtocolError for tensors that are not what they say."""
    return InferenceResponse(
        model_name=message.model_name,
        model_version=message.model_version,
        id=message.id,
        outputs=tuple([_unpack(tensor, view) for tensor in message.outputs]),
        parameters=message.parameters or NO_PARAMETERS,
        error=None if message.error is None else message.error.error(),
        final=message.final,
        refused=message.refused,
        described_by=message.described_by,
    )


def _pack(tensor: Tensor, place: Place, refer: Refer | None = None) -> WireTensor:
    name, datatype, array = tensor.name, tensor.datatype, tensor.array
    if refer is not None and type(array) is not np.ndarray:
        return WireTensor(name, datatype, array.shape, region=refer(array))
    if datatype is DataType.BYTES:
        return _pack_elements(tensor, place)
    size = array.nbytes
    if size > REMOTE_INLINE_BYTES_MAX and (placed := place(size)) is not None:
        offset, target = placed
        target.view(array.dtype).reshape(array.shape)[...] = array
        return WireTensor(name, datatype, array.shape, block=Block(offset, size))
    return WireTensor(name, datatype, array.shape, array.tobytes())


def _pack_elements(tensor: Tensor, place: Place) -> WireTensor:
    elements: list[Any] = tensor.array.ravel().tolist()
    kinds = set(map(type, elements))
    if kinds - _PLAIN_BYTES:
        other = next(kind for kind in kinds if kind is not bytes)
        if not all(issubclass(kind, bytes) for kind in kinds):
            raise ValueError(f"tensor '{tensor.name}' holds a {other.__name__}, expected bytes")
        elements = [bytes(element) for element in elements]
    if sum(map(len, elements)) + 5 * len(elements) > REMOTE_INLINE_BYTES_MAX:
        packed = msgspec.msgpack.encode(elements)
        if (placed := place(len(packed))) is not None:
            offset, target = placed
            target[:] = np.frombuffer(packed, np.uint8)
            return WireTensor(tensor.name, DataType.BYTES, tensor.array.shape, block=Block(offset, len(packed)))
    return WireTensor(tensor.name, DataType.BYTES, tensor.array.shape, elements=elements)


def _unpack(wire: WireTensor, view: View, find: Find | None = None) -> Tensor:
    count = prod(wire.shape)
    if any(size < 0 for size in wire.shape):
        raise ProtocolError(f"tensor '{wire.name}' has the shape {wire.shape}")
    if wire.datatype is DataType.BYTES:
        return _unpack_elements(wire, count, view)
    if not wire.datatype.itemsize:
        raise ProtocolError(f"tensor '{wire.name}' has the datatype {wire.datatype.value}")
    size = count * wire.datatype.itemsize
    if wire.region is not None and find is not None:
        return Tensor(wire.name, wire.datatype, find(wire.region, wire.shape, wire.datatype.numpy))
    if wire.block is not None:
        if wire.block.size != size:
            raise ProtocolError(f"tensor '{wire.name}' has a block of {wire.block.size} bytes, expected {size}")
        flat: np.ndarray[Any, Any] = view(wire.block.offset, size)
    elif wire.inline is not None and len(wire.inline) == size:
        flat = np.frombuffer(wire.inline, np.uint8)
    else:
        raise ProtocolError(f"tensor '{wire.name}' does not have its {size} bytes")
    return Tensor(wire.name, wire.datatype, _shaped(flat.view(wire.datatype.numpy), wire))


def _unpack_elements(wire: WireTensor, count: int, view: View) -> Tensor:
    elements = wire.elements
    if wire.block is not None:
        try:
            elements = _ELEMENTS.decode(view(wire.block.offset, wire.block.size).data)
        except (msgspec.DecodeError, ValueError) as error:
            raise ProtocolError(f"tensor '{wire.name}' does not have elements: {error}") from None
    if elements is None or len(elements) != count:
        raise ProtocolError(f"tensor '{wire.name}' does not have its {count} elements")
    array = np.empty(count, object)
    array[:] = elements
    return Tensor(wire.name, DataType.BYTES, _shaped(array, wire))


def _shaped(flat: np.ndarray[Any, Any], wire: WireTensor) -> np.ndarray[Any, Any]:
    if len(wire.shape) == 1:
        return flat
    try:
        return flat.reshape(wire.shape)
    except ValueError as error:
        raise ProtocolError(f"tensor '{wire.name}' has the shape {wire.shape}: {error}") from None
