"""Requests and responses to and from messages. Large tensors go into memory that both processes share, small ones into the
message.

The receiver's arrays are read-only views: over the message, or over the shared memory, whose block is taken as long as any of
them lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import msgspec
import numpy as np

from tpy.limits.remote import REMOTE_INLINE_BYTES_MAX, REMOTE_LOOP_BYTES_MAX, REMOTE_PIECE_BYTES_MIN
from tpy.messages import DataType, InferenceRequest, InferenceResponse, Residency, SequencePosition, Tensor, held_bytes
from tpy.messages.inference import NO_PARAMETERS
from tpy.messages.tensors import ELEMENT_BYTES
from tpy.remote.core.framing import ProtocolError
from tpy.remote.core.messages import Block, Failure, Origin, Response, Submit, WireTensor
from tpy.remote.core.questions import RegionOffset

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

Place = Callable[[int], tuple[int, Bytes] | None]
"""Takes a block of this size from one's own shared memory: its offset and its bytes, to be written. None: no room."""

View = Callable[[int, int], Bytes]
"""The bytes at an offset of the peer's shared memory, of a given length, read-only. Raises ProtocolError for what is not
within."""

Read = Callable[[int, int], bytes]
"""A copy of the same, made without the interpreter's lock."""

Refer = Callable[[object], RegionOffset]
"""The place in a GPU's memory of an array that is not in host memory."""

Find = Callable[[RegionOffset, tuple[int, ...], np.dtype[Any]], np.ndarray[Any, Any]]
"""The array of this shape at such a place. Raises NotFound when there is no such region, InvalidArgument for what is not
within."""

_ELEMENTS = msgspec.msgpack.Decoder(list[bytes])
_PLAIN_BYTES = {bytes}


def is_long(tensors: tuple[Tensor, ...]) -> bool:
    """Returns True for tensors that are not to be written on the loop."""
    return held_bytes(tensors, REMOTE_LOOP_BYTES_MAX) >= REMOTE_LOOP_BYTES_MAX


def long_read(message: msgspec.Struct, view: View, read: Read) -> Callable[[], msgspec.Struct] | None:
    """The job, for a thread, of reading a message's strings; what it returns has them as tensors. None: they may be read on the
    loop. The job raises ProtocolError."""
    match message:
        case Submit():
            return partial(_with_inputs, message, view, read) if _are_long(message.inputs) else None
        case Response():
            return partial(_with_outputs, message, view, read) if _are_long(message.outputs) else None
    return None


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
        request.tenant,
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
        tenant=message.tenant,
        residency=Residency(inputs=True) if any(map(_is_in_region, message.inputs)) else None,
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


def _is_in_region(tensor: WireTensor | Tensor) -> bool:
    return isinstance(tensor, WireTensor) and tensor.region is not None


def _are_long(tensors: Sequence[WireTensor | Tensor]) -> bool:
    """Returns True for strings that are not to be read on the loop: long ones, and many, each of which becomes an object."""
    size = 0
    for tensor in tensors:
        if isinstance(tensor, WireTensor) and tensor.block is not None and tensor.datatype is DataType.BYTES:
            size += tensor.block.size + ELEMENT_BYTES * prod(tensor.shape)
    return size >= REMOTE_LOOP_BYTES_MAX


def _with_inputs(message: Submit, view: View, read: Read) -> Submit:
    return msgspec.structs.replace(message, inputs=tuple([_with_elements(tensor, view, read) for tensor in message.inputs]))


def _with_outputs(message: Response, view: View, read: Read) -> Response:
    return msgspec.structs.replace(message, outputs=tuple([_with_elements(tensor, view, read) for tensor in message.outputs]))


def _with_elements(tensor: WireTensor | Tensor, view: View, read: Read) -> WireTensor | Tensor:
    """The tensor itself where its strings are in a block: an array of a million objects takes the loop 15 ms to fill."""
    if isinstance(tensor, Tensor) or tensor.block is None or tensor.datatype is not DataType.BYTES:
        return tensor
    block = tensor.block
    data = view(block.offset, block.size).data
    elements = _long_elements(data, lambda begin, size: read(block.offset + begin, size))
    if elements is None:
        elements = _elements(tensor, data)
    return _of_elements(tensor, elements)


def _long_elements(data: memoryview, read: Read) -> list[bytes] | None:
    """The elements of `_msgpack_parts`; None for another form."""
    if data.nbytes < 5 or data[0] != 0xDD:
        return None
    elements, at = [], 5
    for _ in range(int.from_bytes(data[1:5])):
        begin = at + 5
        at = begin + int.from_bytes(data[at + 1 : begin])
        if at > len(data) or data[begin - 5] != 0xC6:
            return None
        long = at - begin >= REMOTE_PIECE_BYTES_MIN
        elements.append(read(begin, at - begin) if long else bytes(data[begin:at]))
    return elements if at == len(data) else None


def _elements(tensor: WireTensor, data: memoryview) -> list[bytes]:
    try:
        return _ELEMENTS.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise ProtocolError(f"tensor '{tensor.name}' does not have elements: {error}") from None


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
    content = sum(map(len, elements))
    if content + 5 * len(elements) > REMOTE_INLINE_BYTES_MAX:
        if content > REMOTE_INLINE_BYTES_MAX * len(elements):
            parts = _msgpack_parts(elements)
        else:
            parts = [msgspec.msgpack.encode(elements)]
        size = sum(map(len, parts))
        if (placed := place(size)) is not None:
            offset, target = placed
            _write(parts, target)
            return WireTensor(tensor.name, DataType.BYTES, tensor.array.shape, block=Block(offset, size))
    return WireTensor(tensor.name, DataType.BYTES, tensor.array.shape, elements=elements)


def _msgpack_parts(elements: list[bytes]) -> list[bytes]:
    """A list of long elements as MessagePack, without a copy of all: 60 MB cost the loop 50 ms, most of it new memory."""
    parts = [b"\xdd" + len(elements).to_bytes(4)]
    for element in elements:
        parts += (b"\xc6" + len(element).to_bytes(4), element)
    return parts


def _write(parts: list[bytes], target: Bytes) -> None:
    end = 0
    for part in parts:
        begin, end = end, end + len(part)
        target[begin:end] = np.frombuffer(part, np.uint8)


def _unpack(wire: WireTensor | Tensor, view: View, find: Find | None = None) -> Tensor:
    if isinstance(wire, Tensor):
        return wire  # a thread has read it
    count = prod(wire.shape)
    if any(size < 0 for size in wire.shape):
        raise ProtocolError(f"tensor '{wire.name}' has the shape {wire.shape}")
    if wire.datatype is DataType.BYTES:
        elements = wire.elements if wire.block is None else _elements(wire, view(wire.block.offset, wire.block.size).data)
        return _of_elements(wire, elements)
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


def _of_elements(wire: WireTensor, elements: list[bytes] | None) -> Tensor:
    count = prod(wire.shape)
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
