"""Inference bodies of HTTP: a naive codec writes requests and reads answers; spoiled ones are refused in words or read."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from fuzz.chance import Chance
from fuzz.target import Violation
from fuzz.tensors import description_of, elements, random_tensor, raw, same, spoiled
from tpy.errors import TpyError
from tpy.frontends.http.codec import BINARY_PLAN, JSON_PLAN, encode_error, encode_infer, parse_header_length, parse_infer
from tpy.messages import DataType, InferenceResponse, ModelDescription, ParameterValue, Tensor

REQUESTS = (
    "what a naive writer makes of tensors, as JSON or as blobs, flat or nested, is read as these tensors, bit for bit, with its"
    " id and parameters; anything else is read or refused in words, and what was read has no more bytes than were sent"
)
RESPONSES = "a naive reader finds in an answer, as JSON or as blobs, every element of every output, with names, types and shapes"
_NOT_IN_JSON = (DataType.FP16, DataType.BF16)


def write(chance: Chance, tensors: list[Tensor], parameters: dict[str, object]) -> tuple[bytes, int | None]:
    """A request body, and the length of its JSON part if there are blobs behind it."""
    inputs: list[dict[str, object]] = []
    blobs = b""
    for tensor in tensors:
        shown: dict[str, object] = {"name": tensor.name, "datatype": tensor.datatype.value, "shape": list(tensor.array.shape)}
        if tensor.datatype in _NOT_IN_JSON or chance.random() < 0.4:
            data = raw(tensor)
            shown["parameters"] = {"binary_data_size": len(data)}
            blobs += data
        else:
            values = [each.decode() if isinstance(each, bytes) else each for each in elements(tensor.datatype, raw(tensor))]
            shown["data"] = values if chance.random() < 0.5 else _nested(values, tensor.array.shape)
        inputs.append(dict(chance.sample(list(shown.items()), len(shown))))
    document: dict[str, object] = {"inputs": inputs, "id": chance.choice(("", "1", "ä"))}
    if parameters:
        document["parameters"] = parameters
    text = json.dumps(document, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, 1))).encode()
    return text + blobs, len(text) if blobs or chance.random() < 0.3 else None


def _nested(values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    for size in reversed(shape[1:]):
        if size == 0:
            return []
        values = [values[at : at + size] for at in range(0, len(values), size)]
    return values


def _read(body: bytes, header_length: int | None, description: ModelDescription) -> Any:
    checked = parse_header_length(None if header_length is None else b"%d" % header_length, len(body))
    return parse_infer(body, header_length=checked, description=description, version=None, received_ns=0)


def run_requests(chance: Chance) -> int:
    """One request, sound and then spoiled."""
    tensors = [random_tensor(chance, f"IN{index}", text=True) for index in range(chance.randint(1, 3))]
    tensors = [tensor for tensor in tensors if _finite(tensor)] or [Tensor("IN", DataType.INT8, np.zeros(1, np.int8))]
    values: list[ParameterValue] = [True, 0, -5, 2**40, 0.5, "", "ä"]
    parameters: dict[str, object] = {f"p{index}": chance.choice(values) for index in range(chance.randrange(3))}
    body, header_length = write(chance, tensors, parameters)
    description = description_of(tensors)
    request, _ = _read(body, header_length, description)
    if len(request.inputs) != len(tensors) or not all(map(same, request.inputs, tensors)):
        raise Violation(f"{body!r}\n  read as {request.inputs}\n  written {tensors}")
    if dict(request.parameters) != parameters:
        raise Violation(f"parameters {request.parameters}, written {parameters}")
    for _ in chance.rounds((2, 4)):
        wrong = spoiled(chance, body)
        length = chance.choice((header_length, header_length, None, 0, len(wrong), chance.randrange(len(wrong) + 2)))
        try_body(wrong, length, description)
    return 5


def try_body(body: bytes, header_length: int | None, description: ModelDescription) -> None:
    """Any bytes: read, or refused in words."""
    try:
        request, _ = _read(body, header_length, description)
    except TpyError as error:
        if not error.message:
            raise Violation(f"refused without a word: {body!r}") from None
        encode_error(error)
        return
    for tensor in request.inputs:
        size = tensor.array.size
        if size > 8 * len(body) + 1 or tensor.array.dtype != tensor.datatype.numpy:
            raise Violation(f"{tensor} out of {body!r}")


_MODEL = description_of(
    [Tensor("IN0", DataType.INT32, np.zeros(2, np.int32)), Tensor("IN1", DataType.BYTES, np.array([b""], object))]
)


def attack(data: bytes) -> int:
    """Any body: as JSON, and with its first byte as the length of the JSON part."""
    try_body(data, None, _MODEL)
    if data:
        try_body(data[1:], min(data[0], len(data) - 1), _MODEL)
    return 2


def _finite(tensor: Tensor) -> bool:
    """NaNs have many bit patterns, and JSON one word."""
    values = elements(tensor.datatype, raw(tensor))
    return not any(isinstance(value, float) and math.isnan(value) for value in values) or tensor.datatype in _NOT_IN_JSON


def run_responses(chance: Chance) -> int:
    """One answer, as JSON and as blobs."""
    tensors = [random_tensor(chance, f"OUT{index}", text=True) for index in range(chance.randint(1, 3))]
    response = InferenceResponse(model_name="m", model_version=3, id="ä", outputs=tuple(tensors), parameters={"p": 1})
    description = description_of(tensors)
    _check_answer(response, encode_infer(response, BINARY_PLAN, description), tensors)
    plain = [tensor for tensor in tensors if tensor.datatype not in _NOT_IN_JSON]
    response = InferenceResponse(model_name="m", model_version=3, id="ä", outputs=tuple(plain), parameters={"p": 1})
    _check_answer(response, encode_infer(response, JSON_PLAN, description), plain)
    return 2


def _check_answer(response: InferenceResponse, encoded: Any, tensors: list[Tensor]) -> None:
    body = b"".join(map(bytes, encoded.parts))
    at = len(body) if encoded.json_length is None else encoded.json_length
    document = json.loads(body[:at])
    if len(body) != encoded.content_length or document["id"] != response.id or document["model_version"] != "3":
        raise Violation(f"{body!r} is not as it says")
    for shown, tensor in zip(document["outputs"], tensors, strict=True):
        expected = elements(tensor.datatype, raw(tensor))
        if "data" in shown:
            found = [each.encode() if isinstance(each, str) else each for each in shown["data"]]
        else:
            size = shown["parameters"]["binary_data_size"]
            found = elements(tensor.datatype, body[at : at + size])
            at += size
        if not _alike(found, expected) or (shown["name"], shown["datatype"], shown["shape"]) != (
            tensor.name,
            tensor.datatype.value,
            list(tensor.array.shape),
        ):
            raise Violation(f"{shown} read as {found}, written {tensor}")
    if at != len(body):
        raise Violation(f"{len(body) - at} bytes belong to no output")


def _alike(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(
        one == other or (one != one and other != other)  # NaN
        for one, other in zip(found, expected, strict=True)
    )
