"""Writes an inference response and error bodies."""

from __future__ import annotations

import codecs
import json
import math
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import orjson

from tpy.errors import ErrorCode, Internal, InvalidArgument, TpyError
from tpy.frontends.binary_tensor import write_binary
from tpy.frontends.classification import classify
from tpy.frontends.http.codec.parameters import BINARY, JSON, HttpOutputPlan
from tpy.frontends.missing_outputs import missing_outputs
from tpy.hot.codec import write_infer
from tpy.limits import HTTP_INLINE_JSON_ELEMENTS_MAX, INLINE_STRING_OUTPUT_BYTES_MAX
from tpy.messages import DataType, InferenceResponse, ModelDescription, Tensor, content_bytes
from tpy.messages.inference import parameter_problem
from tpy.units import KIB

HTTP_STATUS: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN: 400,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARG: 400,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.ALREADY_EXISTS: 400,
    ErrorCode.CANCELLED: 400,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.RESOURCE_EXHAUSTED: 429,
}
"""ErrorCode to HTTP status; total over ErrorCode (a test checks it).

Triton answers 500 for a request whose JSON has the wrong types or lacks a member, because its JSON reader reports them as
internal errors. They are the caller's fault, so our parser raises InvalidArgument for them and they are 400 here."""

JSON_TYPE = "application/json"
BINARY_TYPE = "application/octet-stream"

_PIECE_ELEMENTS_MAX = 16_384

_COPIED_BYTES_MAX = 16 * KIB
"""Blobs with up to this many bytes together are copied behind the JSON: one piece to send. Others are views over the arrays."""

_PIECE_BYTES = 256 * KIB
"""Of strings, what is written at once, in two milliseconds at worst: control characters become six times as long."""

_AS_LIST_ELEMENTS_MAX = 64
"""Arrays up to this size are written faster as lists."""

_SEARCHED_BYTES_MAX = 2 * KIB
"""A text up to this size is searched faster than its numbers are looked at."""

_UTF8 = codecs.getincrementaldecoder("utf-8")

_NOT_AS_NUMBERS = (DataType.BYTES, DataType.FP16, DataType.BF16)


class EncodedInfer(msgspec.Struct, frozen=True, kw_only=True):
    """A response body in pieces: JSON first, then the blobs in the order of the outputs, views over the output arrays.

    `json_length` is for the header `Inference-Header-Content-Length`; None when the body is JSON only (no such header).
    `content_length` is the sum of the pieces in bytes.
    """

    parts: list[bytes | memoryview]
    json_length: int | None
    content_type: str
    content_length: int


def encode_infer(response: InferenceResponse, plan: HttpOutputPlan, description: ModelDescription) -> EncodedInfer:
    """The body for `response`.

    Raises its `error` when it has one; InvalidArgument for outputs that JSON cannot carry (FP16 and BF16; BYTES that
    are not UTF-8) and for classification of types without an order.
    """
    if response.error is not None:
        raise response.error
    if len(response.outputs) < len(plan.choices) and description.requires_outputs:
        missing = missing_outputs(response, plan.choices)
        if missing is not None:
            raise missing
    written = encode_standard(response, plan)
    if written is not None:
        body, json_length = written
        kind = JSON_TYPE if json_length is None else BINARY_TYPE
        return EncodedInfer(parts=[body], json_length=json_length, content_type=kind, content_length=len(body))
    return encode_in_python(response, plan, description)


def encode_standard(response: InferenceResponse, plan: HttpOutputPlan) -> tuple[bytes, int | None] | None:
    """The body for a response where the native codec writes it, at once and without holding up the loop, and the length of its
    JSON where there are blobs behind that, else None; None instead of both for all other responses."""
    if response.error is not None or response.parameters or len(response.outputs) < len(plan.choices):
        return None
    what = response.id, response.model_name, response.model_version, response.outputs
    return write_infer(*what, plan.choices, plan.default, JSON, BINARY, _PIECE_ELEMENTS_MAX, _COPIED_BYTES_MAX)


def encode_in_python(response: InferenceResponse, plan: HttpOutputPlan, description: ModelDescription) -> EncodedInfer:
    """As `encode_infer`, which it is the specification of, of a response that has the outputs that were asked for."""
    outputs: list[dict[str, object]] = []
    blobs: list[bytes | memoryview] = []
    in_pieces = False
    for tensor in response.outputs:
        choice = plan.choice(tensor.name)
        if choice.classification:
            tensor = _classified(tensor, choice.classification, response.described_by or description)
        entry: dict[str, object] = {
            "name": tensor.name,
            "datatype": tensor.datatype.value,
            "shape": tensor.array.shape,
        }
        if choice.region is not None:
            choice.region.store(tensor)
        elif choice.binary:
            blob = write_binary(tensor.array, tensor.datatype)
            entry["parameters"] = {"binary_data_size": len(blob)}
            if len(blob):
                blobs.append(blob)
        else:
            data = entry["data"] = _json_data(tensor)
            in_pieces = in_pieces or isinstance(data, _LongData)
        outputs.append(entry)
    document: dict[str, object] = {"id": response.id} if response.id else {}
    document["model_name"] = response.model_name
    document["model_version"] = str(response.model_version)
    if response.parameters:
        _require_parameters(response)
        document["parameters"] = response.parameters
    document["outputs"] = outputs
    head: list[bytes | memoryview] = _dump_in_pieces(document) if in_pieces else [dump_json(document)]
    length = len(head[0]) if len(head) == 1 else sum(map(len, head))
    if not blobs:
        return EncodedInfer(parts=head, json_length=None, content_type=JSON_TYPE, content_length=length)
    return EncodedInfer(
        parts=[*head, *blobs],
        json_length=length,
        content_type=BINARY_TYPE,
        content_length=length + sum(map(len, blobs)),
    )


def generate_document(response: InferenceResponse, *, rows: bool = False) -> list[bytes | memoryview]:
    """The JSON object of generate, in pieces: outputs by name, flat, single elements as scalars; parameters beside them. Names
    are sorted, as Triton's. With `rows` outputs are lists in lists, as their shapes say."""
    document: dict[str, object] = {"model_name": response.model_name, "model_version": str(response.model_version)}
    if response.id:
        document["id"] = response.id
    _require_parameters(response)
    document.update(response.parameters)
    in_pieces = False
    for tensor in response.outputs:
        data = _json_data(tensor)
        in_pieces = in_pieces or isinstance(data, _LongData)
        if rows:
            document[tensor.name] = _in_rows(tensor, data)
            continue
        if isinstance(data, _LongData):
            data = _LongData(data.tensor, data.flat, is_scalar=data.flat.size == 1)
        document[tensor.name] = data[0] if isinstance(data, list) and len(data) == 1 else data
    document = dict(sorted(document.items()))
    return _dump_in_pieces(document) if in_pieces else [dump_json(document)]


def is_large(outputs: Sequence[Tensor]) -> bool:
    """Returns True if writing these outputs as JSON could hold up the loop: they have many elements, or long strings."""
    return sum([output.array.size for output in outputs]) > HTTP_INLINE_JSON_ELEMENTS_MAX or any(
        output.datatype is DataType.BYTES and content_bytes(output.array) > INLINE_STRING_OUTPUT_BYTES_MAX for output in outputs
    )


def encode_error(error: TpyError) -> bytes:
    """`{"error": "<message>"}`."""
    return dump_json({"error": error.message})


def _require_parameters(response: InferenceResponse) -> None:
    """Raise Internal for a parameter that gRPC, or a frontend process, could not carry either."""
    for key, value in response.parameters.items():
        if problem := parameter_problem(key, value):
            raise Internal(problem)


def _classified(tensor: Tensor, class_count: int, description: ModelDescription) -> Tensor:
    described = description.output_by_name.get(tensor.name)
    labels = described.labels if described is not None else ()
    return classify(tensor, class_count=class_count, batches=description.batches, labels=labels)


class _LongData(msgspec.Struct, frozen=True):
    """The elements of a large output, which are written in pieces. `flat` has the tensor's shape where it is written in rows."""

    tensor: Tensor
    flat: np.ndarray[Any, Any]
    is_scalar: bool = False
    """The only element, which generate writes without brackets."""


def _in_rows(tensor: Tensor, data: object) -> object:
    """The result of `_json_data`, nested."""
    shape = tensor.array.shape
    match data:
        case _LongData():
            return _LongData(tensor, tensor.array, is_scalar=not shape)
        case np.ndarray():
            return data.reshape(shape)
        case list():
            return nested(data, shape)
        case _:
            return data


def nested(data: list[Any], shape: Sequence[int]) -> object:
    """The flat `data` as nested lists of this shape; a scalar for no shape, [] where there are no elements."""
    if not shape:
        return data[0]
    for length in reversed(shape[1:]):
        data = [data[at : at + length] for at in range(0, len(data), length)] if length else []
    return data


def _json_data(tensor: Tensor) -> object:
    """The elements, flat, as the JSON writer takes them, or _LongData."""
    flat: np.ndarray[Any, Any] = tensor.array.reshape(-1)
    if flat.size > _PIECE_ELEMENTS_MAX or (tensor.datatype is DataType.BYTES and content_bytes(flat) > _PIECE_BYTES):
        return _LongData(tensor, flat)
    return _writable(tensor, flat)


def _dump_in_pieces(document: dict[str, object]) -> list[bytes | memoryview]:
    """The document as JSON, that of large outputs in pieces: no step holds the interpreter for more than some milliseconds."""
    found: list[_LongData] = []
    mark = secrets.token_hex(16)
    entries = document.get("outputs")
    holders: list[object] = [document, *entries] if isinstance(entries, list) else [document]
    for holder in holders:
        if isinstance(holder, dict):
            for key, value in holder.items():
                if isinstance(value, _LongData):
                    found.append(value)
                    holder[key] = mark
    around = dump_json(document).split(b'"%b"' % mark.encode())
    parts: list[bytes | memoryview] = [around[0]]
    for data, behind in zip(found, around[1:], strict=True):
        brackets = (b"", b"") if data.is_scalar else (b"[", b"]")
        parts.append(brackets[0])
        parts += _pieces(data.tensor, data.flat)
        parts.append(brackets[1] + behind)
    return parts


def _pieces(tensor: Tensor, array: np.ndarray[Any, Any]) -> Iterator[bytes]:
    """The elements as JSON with commas between them; those of rows in brackets."""
    is_text = tensor.datatype is DataType.BYTES
    if is_text and array.ndim < 2:
        yield from _string_pieces(tensor, array.reshape(-1))
        return
    rows = max(1, _PIECE_ELEMENTS_MAX // (array.size // len(array)))
    for start in range(0, len(array), rows):
        piece = array[start : start + rows]
        comma = b"," if start else b""
        if not is_text and piece.size <= _PIECE_ELEMENTS_MAX:
            yield comma + dump_json(_writable(tensor, piece))[1:-1]
            continue
        for row in piece:
            yield comma + b"["
            yield from _pieces(tensor, row)
            yield b"]"
            comma = b","


def _string_pieces(tensor: Tensor, flat: np.ndarray[Any, Any]) -> Iterator[bytes]:
    """The elements of BYTES as JSON with commas between them: many short ones at once, a long one in pieces."""
    comma, short, size = b"", list[bytes](), 0
    for element in flat.tolist():
        if len(element) <= _PIECE_BYTES and size + len(element) <= _PIECE_BYTES and len(short) < _PIECE_ELEMENTS_MAX:
            short.append(element)
            size += len(element)
            continue
        if short:
            yield comma + dump_json(_texts(tensor, short))[1:-1]
            comma = b","
        short, size = [], 0
        if len(element) <= _PIECE_BYTES:
            short, size = [element], len(element)
            continue
        yield comma + b'"'
        comma = b","
        decoder = _UTF8()
        for at in range(0, len(element), _PIECE_BYTES):
            try:
                text = decoder.decode(element[at : at + _PIECE_BYTES], final=at + _PIECE_BYTES >= len(element))
            except UnicodeDecodeError:
                raise _no_text(tensor) from None
            yield orjson.dumps(text)[1:-1]
        yield b'"'
    if short:
        yield comma + dump_json(_texts(tensor, short))[1:-1]


def _texts(tensor: Tensor, elements: list[bytes]) -> list[str]:
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError:
        raise _no_text(tensor) from None


def _no_text(tensor: Tensor) -> InvalidArgument:
    return InvalidArgument(
        f"output '{tensor.name}' holds bytes that are not UTF-8 and cannot be sent as JSON. Please use the binary data "
        "format for output"
    )


def _writable(tensor: Tensor, flat: np.ndarray[Any, Any]) -> object:
    """Elements of the tensor as the JSON writer takes them. FP32 values become doubles, whose digits Triton prints."""
    datatype = tensor.datatype
    if flat.size <= _AS_LIST_ELEMENTS_MAX and datatype not in _NOT_AS_NUMBERS:
        return flat.tolist()
    if datatype is DataType.BYTES:
        return _texts(tensor, flat.tolist())
    if datatype in (DataType.FP16, DataType.BF16):
        raise InvalidArgument(
            f"sending {datatype.value} data via JSON is not supported. Please use the binary data format for output"
        )
    if datatype is DataType.FP32:
        with np.errstate(invalid="ignore"):  # a NaN that signals is one that does not, in the other type
            return flat.astype(np.float64, order="C")
    return np.ascontiguousarray(flat)


def dump_json(document: object) -> bytes:
    """The document as JSON. NaN and infinities are written as the literals NaN, Infinity and -Infinity, as Triton does."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        # The fast writer turns NaN and infinities into null, and nothing else here is ever null. Of a long text the numbers are
        # looked at sooner than the letters.
        short = len(text) <= _SEARCHED_BYTES_MAX
        if (short and b"null" not in text) or not _holds_literals(document):
            return text
    except TypeError:  # half a surrogate pair: only model code makes it
        pass
    try:
        return json.dumps(document, default=_as_list, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise Internal(f"the response cannot be written as JSON: {error}") from None


def _holds_literals(value: object) -> bool:
    """Returns True if a NaN or an infinity is somewhere in `value`."""
    match value:
        case float():
            return not math.isfinite(value)
        case np.ndarray():
            return value.dtype.kind == "f" and not bool(np.isfinite(value).all())
        case dict():
            return any(map(_holds_literals, value.values()))
        case list() | tuple():
            return any(map(_holds_literals, value))
        case _:
            return False


def _as_list(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")
