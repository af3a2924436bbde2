"""Inference requests as they are sent, and answers as tensors, over HTTP and gRPC.

A request is encoded once; what differs between two of its sendings (the place in a sequence) is filled in as bytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import orjson

from tpy.errors import TpyError
from tpy.frontends.binary_tensor import read_binary, write_binary
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_WORD
from tpy_tools.load.core.answers import AnswerPart, BrokenAnswer
from tpy_tools.load.core.http2 import frame_message

Parameter = str | int | float | bool

_COMPRESSION_LEVEL = 6
_HEADER = "Inference-Header-Content-Length"


class PlannedCall(msgspec.Struct, frozen=True, kw_only=True):
    """An inference request. `outputs` empty: all of them. `binary_inputs`, `binary_outputs`: over HTTP, else JSON.

    `input_regions` and `output_regions`: name, offset and bytes in a registered region of shared memory, for tensors by name.
    """

    model: str
    version: str = ""
    request_id: str = ""
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = {}
    binary_inputs: bool = True
    binary_outputs: bool = True
    input_regions: Mapping[str, Mapping[str, Parameter]] = {}
    output_regions: Mapping[str, Mapping[str, Parameter]] = {}


class SequencePlace(msgspec.Struct, frozen=True):
    """The place of a request in a sequence."""

    sequence: int
    start: bool
    end: bool


class HttpTemplate(msgspec.Struct, frozen=True, kw_only=True, tag="http"):
    """A request over HTTP. `head` lacks the lengths; the parameters go between `before` and `after`."""

    head: bytes
    before: bytes
    after: bytes
    tail: bytes
    announced: bool
    """The length of the JSON part is in a header: binary tensors follow, or are to come back."""

    def fill(self, place: SequencePlace | None = None) -> bytes:
        """The request as it goes over the wire."""
        extra = b""
        if place is not None:
            extra = b'"sequence_id":%d,"sequence_start":%s,"sequence_end":%s' % (
                place.sequence,
                b"true" if place.start else b"false",
                b"true" if place.end else b"false",
            )
            if not self.before.endswith(b"{"):
                extra = b"," + extra
        json_bytes = len(self.before) + len(extra) + len(self.after)
        lengths = b"Content-Length: %d\r\n" % (json_bytes + len(self.tail))
        if self.announced:
            lengths += b"%s: %d\r\n" % (_HEADER.encode(), json_bytes)
        return b"".join((self.head, lengths, b"\r\n", self.before, extra, self.after, self.tail))


class GrpcTemplate(msgspec.Struct, frozen=True, kw_only=True, tag="grpc"):
    """A request over gRPC: a ModelInferRequest. Parameters are appended, as Protocol Buffers allow. `compression`: none, gzip or
    deflate, which the metadata have to say as well."""

    message: bytes
    compression: str = "none"

    def fill(self, place: SequencePlace | None = None) -> bytes:
        """The message as gRPC frames it."""
        if place is None:
            return self._framed(self.message)
        entries = (
            _parameter(b"sequence_id", b"\x10" + _varint(place.sequence)),
            _parameter(b"sequence_start", b"\x08\x01" if place.start else b"\x08\x00"),
            _parameter(b"sequence_end", b"\x08\x01" if place.end else b"\x08\x00"),
        )
        return self._framed(b"".join((self.message, *entries)))

    def _framed(self, message: bytes) -> bytes:
        match self.compression:
            case "gzip":
                return frame_message(gzip.compress(message, _COMPRESSION_LEVEL), compressed=True)
            case "deflate":
                return frame_message(zlib.compress(message, _COMPRESSION_LEVEL), compressed=True)
        return frame_message(message)


class RawTemplate(msgspec.Struct, frozen=True, kw_only=True, tag="raw"):
    """Any request over HTTP, whole."""

    content: bytes

    def fill(self, place: SequencePlace | None = None) -> bytes:
        """The request; it has no place in a sequence."""
        return self.content


Template = HttpTemplate | GrpcTemplate | RawTemplate


def model_path(model: str, version: str = "") -> str:
    """The path of a model."""
    return f"/v2/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def encode_http(call: PlannedCall, host: str, headers: Mapping[str, str] | None = None) -> HttpTemplate:
    """The request over HTTP: JSON with the binary tensor extension."""
    blobs: list[bytes] = []
    inputs: list[dict[str, object]] = []
    for tensor in call.inputs:
        described: dict[str, object] = _described(tensor)
        region = call.input_regions.get(tensor.name)
        if region:
            described["parameters"] = dict(region)
        elif call.binary_inputs:
            blob = bytes(write_binary(tensor.array, tensor.datatype))
            described["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            described["data"] = _json_data(tensor)
        inputs.append(described)
    rest: dict[str, object] = {"inputs": inputs}
    parameters = dict(call.parameters)
    if call.outputs:
        outputs = [(name, call.output_regions.get(name) or {"binary_data": call.binary_outputs}) for name in call.outputs]
        rest["outputs"] = [{"name": name, "parameters": dict(asked)} for name, asked in outputs]
    elif call.binary_outputs:
        parameters["binary_data_output"] = True
    if call.request_id:
        rest["id"] = call.request_id
    lines = [f"POST {model_path(call.model, call.version)}/infer HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if blobs:
        lines.append("Content-Type: application/octet-stream")
    return HttpTemplate(
        head=("\r\n".join(lines) + "\r\n").encode("latin-1"),
        before=b'{"parameters":' + orjson.dumps(parameters)[:-1],
        after=b"}," + orjson.dumps(rest)[1:],
        tail=b"".join(blobs),
        announced=bool(blobs),
    )


def encode_grpc(call: PlannedCall, compression: str = "none") -> GrpcTemplate:
    """The request over gRPC: raw contents."""
    from tpy._proto import message_class

    message: Any = message_class("inference.ModelInferRequest")(
        model_name=call.model, model_version=call.version, id=call.request_id
    )
    for name, value in call.parameters.items():
        _set_parameter(message.parameters[name], value)
    for tensor in call.inputs:
        added = message.inputs.add(name=tensor.name, datatype=tensor.datatype.value, shape=tensor.array.shape)
        region = call.input_regions.get(tensor.name)
        for name, value in (region or {}).items():
            _set_parameter(added.parameters[name], value)
        if not region:
            message.raw_input_contents.append(bytes(write_binary(tensor.array, tensor.datatype)))
    for output in call.outputs:
        asked = message.outputs.add(name=output)
        for name, value in call.output_regions.get(output, {}).items():
            _set_parameter(asked.parameters[name], value)
    return GrpcTemplate(message=message.SerializeToString(), compression=compression)


def read_http(answer: AnswerPart) -> list[Tensor]:
    """The outputs of an answer over HTTP; those in shared memory are left out. Raises BrokenAnswer."""
    length = answer.headers.get(_HEADER.lower())
    cut = int(length) if length is not None and length.isdecimal() else len(answer.body)
    data = memoryview(answer.body)[cut:]
    found: list[Tensor] = []
    try:
        for output in orjson.loads(answer.body[:cut])["outputs"]:
            datatype = BY_WORD[output["datatype"]]
            size = output.get("parameters", {}).get("binary_data_size")
            if size is not None:
                found.append(_tensor(output["name"], datatype, output["shape"], data[:size]))
                data = data[size:]
            elif "data" in output:
                found.append(_json_tensor(output["name"], datatype, output["shape"], output["data"]))
    except (KeyError, TypeError, ValueError, AttributeError, TpyError) as error:
        raise BrokenAnswer(f"an answer that cannot be read ({error}): {answer.body[:200]!r}") from error
    return found


def read_grpc(message: bytes, *, streamed: bool = False) -> list[Tensor]:
    """The outputs of a ModelInferResponse, or of the one in a ModelStreamInferResponse. Raises BrokenAnswer."""
    from google.protobuf.message import DecodeError

    from tpy._proto import message_class

    try:
        response: Any
        if streamed:
            response = message_class("inference.ModelStreamInferResponse").FromString(message).infer_response
        else:
            response = message_class("inference.ModelInferResponse").FromString(message)
        raw = list(response.raw_output_contents)
        described = [output for output in response.outputs if "shared_memory_region" not in output.parameters]
        return [
            _tensor(output.name, BY_WORD[output.datatype], output.shape, memoryview(data))
            for output, data in zip(described, raw, strict=True)
        ]
    except (DecodeError, KeyError, ValueError, TpyError) as error:
        raise BrokenAnswer(f"an answer that cannot be read: {error}") from error


def error_text(answer: AnswerPart) -> str:
    """The error that an answer reports, in one line."""
    return " ".join(reported_error(answer.body).split())[:500]


def reported_error(body: bytes) -> str:
    """The error that the body of an answer reports; the body itself if it is not JSON or reports no error."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    text = document.get("error") if isinstance(document, dict) else None
    if isinstance(text, dict):  # OpenAI's
        text = text.get("message")
    return text if isinstance(text, str) else body.decode(errors="replace")


def _described(tensor: Tensor) -> dict[str, object]:
    return {"name": tensor.name, "datatype": tensor.datatype.value, "shape": list(tensor.array.shape)}


def _json_data(tensor: Tensor) -> list[object]:
    flat = tensor.array.reshape(-1)
    if tensor.datatype is DataType.BYTES:
        return [element.decode(errors="replace") for element in flat]
    values: list[object] = flat.tolist()
    return values


def _tensor(name: str, datatype: DataType, shape: Sequence[int], data: memoryview) -> Tensor:
    array = read_binary(data, datatype, tuple(shape), tensor=name, model="", prefix="")
    return Tensor(name, datatype, array)


def _json_tensor(name: str, datatype: DataType, shape: Sequence[int], data: object) -> Tensor:
    from tpy_tools.load.arrays import array_of

    return Tensor(name, datatype, array_of(data, datatype).reshape(tuple(shape)))


def _set_parameter(field: Any, value: Parameter) -> None:
    match value:
        case bool():
            field.bool_param = value
        case int():
            field.int64_param = value
        case float():
            field.double_param = value
        case str():
            field.string_param = value


def _parameter(name: bytes, value: bytes) -> bytes:
    """An entry of ModelInferRequest.parameters, field 4."""
    entry = b"\x0a" + _varint(len(name)) + name + b"\x12" + _varint(len(value)) + value
    return b"\x22" + _varint(len(entry)) + entry


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
