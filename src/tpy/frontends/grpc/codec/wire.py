"""The protobuf layer of inference messages: Google's parser for what is small, our own scan for what is large.

Protobuf copies `bytes` fields into its message, and once more when they are read. For a large tensor that is most of the work, so
the tensors of a large request are found in the bytes that arrived, and only the rest, whose fields have been counted, is given to
the parser. Responses go the other way: what protobuf wrote, then each raw tensor with its own tag and length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from tpy import limits
from tpy._proto import message_class
from tpy.errors import InvalidArgument
from tpy.frontends.grpc.codec.fields import (
    FieldBudget,
    TooManyFields,
    count_nested_fields,
    each_field,
    length_delimited,
    unparsable,
    varint,
)

REQUEST_CLASS: Final = message_class("inference.ModelInferRequest")
RESPONSE_CLASS: Final = message_class("inference.ModelInferResponse")
STREAM_RESPONSE_CLASS: Final = message_class("inference.ModelStreamInferResponse")

_INPUT_TAG = length_delimited(5)
_RAW_INPUT_TAG = length_delimited(7)
_CONTENTS_TAG = length_delimited(5)
_SHAPE_TAG = length_delimited(3)
"""In an InferInputTensor."""
_INPUT_OCTET = bytes((_INPUT_TAG,))
_NO_CONTENTS = bytes((_CONTENTS_TAG, 0))
_RAW_OUTPUT_TAG = bytes((length_delimited(6),))
_INFER_RESPONSE_TAG = bytes((length_delimited(2),))


class SplitRequest(NamedTuple):
    """The bytes of a request: `raws` are its raw tensors and `contents` the large typed contents of inputs, by their number; both
    are views over it. `head` is all the rest; with `raws` None, `head` is everything."""

    head: bytes | memoryview
    raws: Sequence[memoryview] | None
    contents: Mapping[int, memoryview]


class ParsedRequest(NamedTuple):
    """`head` is an inference.ModelInferRequest of the private pool, `raws` stand for its raw_input_contents. `contents`, by the
    number of their input, stand for the contents of inputs whose own are empty."""

    # Google's message classes are made while the program runs: a type checker cannot know their fields.
    head: Any
    raws: Sequence[bytes | memoryview]
    contents: Mapping[int, memoryview]


_NOTHING: Mapping[int, memoryview] = {}


def parse_now(message: memoryview) -> ParsedRequest | None:
    """A request, if parsing it holds up the loop for a few milliseconds at most, whatever its bytes are; None: do it in a thread.
    Raises as `parse_request`."""
    if len(message) <= limits.GRPC_WHOLE_PARSE_BYTES_MAX:
        return parse_split(SplitRequest(message, None, _NOTHING))
    try:
        split = split_request(message, FieldBudget(limits.GRPC_INLINE_FIELDS_MAX))
    except TooManyFields:
        return None
    return None if len(split.head) > limits.GRPC_INLINE_BYTES_MAX else parse_split(split)


def parse_request(message: memoryview) -> ParsedRequest:
    """A request of any size. Raises Internal, as Triton, for bytes that are not a ModelInferRequest, and InvalidArgument for one
    that has too many or too large fields besides its tensors."""
    if len(message) <= limits.GRPC_WHOLE_PARSE_BYTES_MAX:
        return parse_split(SplitRequest(message, None, _NOTHING))
    try:
        split = split_request(message, FieldBudget(limits.GRPC_REQUEST_FIELDS_MAX))
    except TooManyFields:
        raise InvalidArgument(
            f"the request has more than {limits.GRPC_REQUEST_FIELDS_MAX} fields, at most as many are accepted: inputs, outputs, "
            "parameters and raw tensors together"
        ) from None
    size = len(split.head)
    if size > limits.GRPC_HEAD_BYTES_MAX:
        raise InvalidArgument(
            f"names, shapes and parameters of the request take {size} bytes, at most {limits.GRPC_HEAD_BYTES_MAX} are accepted; "
            "expected the data of tensors in raw_input_contents or contents"
        )
    if size > limits.GRPC_INLINE_BYTES_MAX:
        try:
            budget = FieldBudget(limits.GRPC_NESTED_FIELDS_MAX)
            count_nested_fields(memoryview(split.head), REQUEST_CLASS.DESCRIPTOR, budget)
        except TooManyFields:
            raise InvalidArgument(
                f"the request has more than {limits.GRPC_NESTED_FIELDS_MAX} fields, at most as many are accepted: those within "
                "inputs, outputs and parameters"
            ) from None
    return parse_split(split)


def parse_split(split: SplitRequest) -> ParsedRequest:
    try:
        head = REQUEST_CLASS.FromString(split.head)
    except DecodeError:
        raise unparsable() from None
    return ParsedRequest(head, head.raw_input_contents if split.raws is None else split.raws, split.contents)


def split_request(
    message: memoryview, budget: FieldBudget, whole_contents_bytes_max: int = limits.GRPC_WHOLE_CONTENTS_BYTES_MAX
) -> SplitRequest:
    """Find the raw tensors, and typed contents beyond `whole_contents_bytes_max`, in a request; a view over single bytes.

    Raises Internal for bytes whose fields cannot be told apart, TooManyFields beyond `budget`, InvalidArgument for a shape that
    is far too long; what else is wrong, the parser will say."""
    kept: list[bytes | memoryview] = []
    raws: list[memoryview] = []
    contents: dict[int, memoryview] = {}
    kept_from = input_count = 0
    for tag, start, body, end in each_field(message, budget):
        if tag == _RAW_INPUT_TAG:
            if start > kept_from:
                kept.append(message[kept_from:start])
            kept_from = end
            raws.append(message[body:end])
        elif tag == _INPUT_TAG:
            if end - body > whole_contents_bytes_max:
                rest, found = _without_contents(message[body:end], budget, whole_contents_bytes_max)
                if found is not None:
                    kept += message[kept_from:start], _INPUT_OCTET + varint(len(rest)), rest
                    kept_from = end
                    contents[input_count] = found
            input_count += 1
    kept.append(message[kept_from:])
    return SplitRequest(b"".join(kept), raws, contents)


def _without_contents(message: memoryview, budget: FieldBudget, bytes_max: int) -> tuple[bytes, memoryview | None]:
    """An InferInputTensor whose contents are empty, and its contents; None: it has no more than `bytes_max` of them."""
    kept: list[bytes | memoryview] = []
    found: list[memoryview] = []
    kept_from = size = 0
    for tag, start, body, end in each_field(message, budget):
        if tag == _CONTENTS_TAG:
            kept.append(message[kept_from:start])
            kept_from = end
            found.append(message[body:end])
            size += end - body
        elif tag == _SHAPE_TAG and end - body > limits.GRPC_SHAPE_BYTES_MAX:
            raise InvalidArgument(
                f"an input has a shape of {end - body} bytes, at most {limits.TENSOR_DIMS_MAX} dimensions are supported"
            )
    if size <= bytes_max:
        return b"", None
    kept += message[kept_from:], _NO_CONTENTS
    # A message that comes in several pieces is what they are one behind the other.
    return b"".join(kept), found[0] if len(found) == 1 else memoryview(b"".join(found))


def raw_output(blob: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """One element of raw_output_contents in two pieces, the second being `blob` itself."""
    return _RAW_OUTPUT_TAG + varint(len(blob)), blob


def infer_response(length: int) -> bytes:
    """Returns the prefix of the `length` bytes of a ModelInferResponse in a ModelStreamInferResponse."""
    return _INFER_RESPONSE_TAG + varint(length)
