"""Inference messages: what a naive writer makes of tensors is read as these; any other bytes are read as protobuf reads them, or
refused in words; answers read back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fuzz.chance import Chance
from fuzz.target import Violation
from fuzz.tensors import description_of, elements, random_tensor, raw, same, spoiled
from tpy._proto import message_class
from tpy.errors import TpyError
from tpy.frontends.grpc.codec.contents import read_contents
from tpy.frontends.grpc.codec.fields import FieldBudget
from tpy.frontends.grpc.codec.parameters import NO_PLAN
from tpy.frontends.grpc.codec.request import decode_request, parse_version
from tpy.frontends.grpc.codec.response import encode_response, encode_stream_response
from tpy.frontends.grpc.codec.wire import (
    REQUEST_CLASS,
    RESPONSE_CLASS,
    STREAM_RESPONSE_CLASS,
    SplitRequest,
    parse_now,
    parse_request,
    split_request,
)
from tpy.messages import DataType, InferenceResponse, ModelDescription, ParameterValue, Tensor
from tpy.messages.datatypes import BY_WORD

REQUESTS = (
    "what a naive writer makes of tensors, typed or raw, is read as these tensors, bit for bit, with its id and parameters; of"
    " any other bytes our scan and protobuf read the same or none, and what comes of them is a request or a refusal in words"
)
RESPONSES = "protobuf finds in an answer, joined or in pieces, every element of every output, with names, types and shapes"
_CONTENTS: Any = message_class("inference.InferTensorContents")
_FIELDS = {
    DataType.BOOL: "bool_contents",
    DataType.INT8: "int_contents",
    DataType.INT16: "int_contents",
    DataType.INT32: "int_contents",
    DataType.INT64: "int64_contents",
    DataType.UINT8: "uint_contents",
    DataType.UINT16: "uint_contents",
    DataType.UINT32: "uint_contents",
    DataType.UINT64: "uint64_contents",
    DataType.FP32: "fp32_contents",
    DataType.FP64: "fp64_contents",
    DataType.BYTES: "bytes_contents",
}
_PARAMETER_OF = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


def write(chance: Chance, tensors: list[Tensor], parameters: dict[str, ParameterValue]) -> bytes:
    """A request message; its raw tensors are sometimes large, so that they are found in its bytes."""
    message: Any = REQUEST_CLASS(model_name="m", model_version="1", id="ä")
    for key, value in parameters.items():
        setattr(message.parameters[key], _PARAMETER_OF[type(value)], value)
    typed = chance.random() < 0.5 and all(tensor.datatype in _FIELDS for tensor in tensors)
    for tensor in tensors:
        item = message.inputs.add(name=tensor.name, datatype=tensor.datatype.value, shape=tensor.array.shape)
        if typed:
            item.contents.SetInParent()
            getattr(item.contents, _FIELDS[tensor.datatype]).extend(elements(tensor.datatype, raw(tensor)))
        else:
            message.raw_input_contents.append(raw(tensor))
    data: bytes = message.SerializeToString()
    return data


def run_requests(chance: Chance) -> int:
    """One request, sound and then spoiled."""
    tensors = [random_tensor(chance, f"IN{index}") for index in range(chance.randint(1, 3))]
    if chance.random() < 0.2:
        tensors.append(Tensor("BIG", DataType.UINT8, np.zeros(5000, np.uint8)))
    values: list[ParameterValue] = [True, -5, 2**40, 0.5, "", "ä"]
    parameters: dict[str, ParameterValue] = {f"p{index}": chance.choice(values) for index in range(chance.randrange(3))}
    data = write(chance, tensors, parameters)
    description = description_of(tensors)
    request, _ = decode_request(
        parse_request(memoryview(data)), description=description, version=1, received_ns=0, deadline_ns=None
    )
    if len(request.inputs) != len(tensors) or not all(map(_same_numbers, request.inputs, tensors)):
        raise Violation(f"{data!r}\n  read as {request.inputs}\n  written {tensors}")
    if dict(request.parameters) != parameters or request.id != "ä":
        raise Violation(f"parameters {request.parameters}, written {parameters}")
    _try(data, description)
    for _ in chance.rounds((2, 4)):
        _try(spoiled(chance, data), description)
    return 5


def _same_numbers(one: Tensor, other: Tensor) -> bool:
    """Bit for bit, but that a NaN which was a number on its way may be another NaN."""
    if same(one, other) or other.datatype not in (DataType.FP32, DataType.FP64):
        return same(one, other)
    return bool(np.array_equal(one.array, other.array, equal_nan=True))


_MODEL = description_of([Tensor("IN0", DataType.INT32, np.zeros(2, np.int32))])


def attack(data: bytes) -> int:
    """Any bytes in place of a message."""
    _try(data, _MODEL)
    return 1


def _try(data: bytes, description: ModelDescription) -> None:
    _check_scan(data)
    try:
        parsed = parse_request(memoryview(data))
        request, _ = decode_request(
            parsed,
            description=description,
            version=parse_version(parsed.head.model_version),
            received_ns=0,
            deadline_ns=None,
        )
    except TpyError as error:
        if not error.message:
            raise Violation(f"refused without a word: {data!r}") from None
        return
    for tensor in request.inputs:
        if tensor.array.size > len(data) or tensor.array.dtype != tensor.datatype.numpy:
            raise Violation(f"{tensor} out of {data!r}")


def _check_scan(data: bytes) -> None:
    """Our scan of large messages, on small ones too, with all typed contents taken out."""
    whole = _parsed(data)
    now = _refused_or(lambda: parse_now(memoryview(data)))
    if (whole is None) is not (now is None):
        raise Violation(f"protobuf takes it {'not' if whole is None else 'alone'}: {data!r}")
    try:
        split = split_request(memoryview(data), FieldBudget(len(data)), 0)
    except TpyError:
        if whole is not None and not any(len(item.shape) > 100 for item in whole.inputs):
            raise Violation(f"protobuf takes it, our scan does not: {data!r}") from None
        return
    rest = _parsed(split.head)
    contents = {index: _refused_or(partial(_CONTENTS.FromString, view)) for index, view in split.contents.items()}
    taken = rest is not None and None not in contents.values()
    if (whole is None) is taken:
        raise Violation(f"protobuf takes {'the rest' if whole is None else 'the whole'} only: {data!r}")
    if whole is None or rest is None:
        return
    if [bytes(each) for each in _raws(split)] != list(whole.raw_input_contents):
        raise Violation(f"other raw tensors than protobuf's: {data!r}")
    del whole.raw_input_contents[:]
    for index, view in split.contents.items():
        item = whole.inputs[index]
        if item.contents != contents[index]:
            raise Violation(f"other contents than protobuf's: {data!r}")
        _check_contents(view, item)
        item.contents.Clear()
        item.contents.SetInParent()
    if rest != whole:
        raise Violation(f"another rest than protobuf's: {data!r}")


def _check_contents(view: memoryview, item: Any) -> None:
    """Typed contents read by us, and by protobuf."""
    datatype = BY_WORD.get(item.datatype, DataType.INVALID)
    shape = tuple(item.shape[:4])

    def read(contents: Any) -> np.ndarray[Any, Any]:
        return read_contents(contents, datatype, shape, tensor=item.name, model="m", prefix="")

    ours, protobufs = _refused_or(lambda: read(view)), _refused_or(lambda: read(item.contents))
    if (ours is None) is not (protobufs is None):
        raise Violation(f"contents refused by {'us' if ours is None else 'protobuf'} only: {bytes(view)!r}")
    if ours is None or protobufs is None:
        return
    alike = ours.tolist() == protobufs.tolist() if ours.dtype == object else ours.tobytes() == protobufs.tobytes()
    if not alike and not np.array_equal(ours, protobufs, equal_nan=True):
        raise Violation(f"contents {ours}, by protobuf {protobufs}: {bytes(view)!r}")


def _refused_or(read: Callable[[], Any]) -> Any:
    """The result of `read`; None if it refuses."""
    try:
        return read()
    except (TpyError, DecodeError):
        return None


def _raws(split: SplitRequest) -> list[memoryview]:
    return list(split.raws or ())


def _parsed(data: bytes | memoryview) -> Any:
    try:
        return REQUEST_CLASS.FromString(data)
    except DecodeError:
        return None


def run_responses(chance: Chance) -> int:
    """One answer, alone and within a stream."""
    tensors = [random_tensor(chance, f"OUT{index}") for index in range(chance.randint(1, 3))]
    if chance.random() < 0.2:
        tensors.append(Tensor("BIG", DataType.UINT8, np.zeros(20_000, np.uint8)))
    parameters: dict[str, ParameterValue] = {"p": chance.choice((True, -5, 2**64 - 1, 0.5, "ä"))}
    response = InferenceResponse(model_name="m", model_version=3, id="ä", outputs=tuple(tensors), parameters=parameters)
    description = description_of(tensors)
    alone = RESPONSE_CLASS.FromString(b"".join(map(bytes, encode_response(response, NO_PLAN, description))))
    stream = STREAM_RESPONSE_CLASS.FromString(b"".join(map(bytes, encode_stream_response(response, NO_PLAN, description))))
    if stream.error_message or not stream.infer_response.parameters["triton_final_response"].bool_param:
        raise Violation("the last message of a stream does not say so")
    for found in (alone, stream.infer_response):
        if (found.model_name, found.model_version, found.id) != ("m", "3", "ä") or "p" not in found.parameters:
            raise Violation(f"{found} says something else")
        for item, data, tensor in zip(found.outputs, found.raw_output_contents, tensors, strict=True):
            said = (item.name, item.datatype, tuple(item.shape))
            if said != (tensor.name, tensor.datatype.value, tensor.array.shape) or data != raw(tensor):
                raise Violation(f"{item} {data!r}, written {tensor}")
    return 2
