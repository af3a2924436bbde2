"""The protobuf layer of inference messages: Google's parser for what is small, our own scan for what is large.

Protobuf copies `bytes` fields into its message, and once more when they are read. For a large tensor that is most of the work, so
the raw tensors of a large request are found in the bytes that arrived, and only the rest is given to the parser. Responses go the
other way: what protobuf wrote, then each raw tensor with its own tag and length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from tpy._proto import message_class
from tpy.errors import Internal
from tpy.limits import GRPC_WHOLE_PARSE_BYTES_MAX

REQUEST_CLASS: Final = message_class("inference.ModelInferRequest")
RESPONSE_CLASS: Final = message_class("inference.ModelInferResponse")
STREAM_RESPONSE_CLASS: Final = message_class("inference.ModelStreamInferResponse")

_LENGTH_DELIMITED = 2
_RAW_INPUT_TAG = 7 << 3 | _LENGTH_DELIMITED
_RAW_OUTPUT_TAG = bytes((6 << 3 | _LENGTH_DELIMITED,))
_INFER_RESPONSE_TAG = bytes((2 << 3 | _LENGTH_DELIMITED,))
_WIRE_TYPE_MASK = 7
_MORE = 0x80
"""The bit of a byte that says that a number goes on in the next one."""
_NUMBER_BYTES_MAX = 5
"""Of a length: 2**31 needs no more. Longer encodings are legal, rare, and left to protobuf."""


class SplitRequest(NamedTuple):
    """The bytes of a request: `raws` are its raw tensors, views over it, and `head` is all the rest; with `raws` None, `head` is
    everything."""

    head: bytes | memoryview
    raws: Sequence[memoryview] | None


class ParsedRequest(NamedTuple):
    """`head` is an inference.ModelInferRequest of the private pool, made from `head_bytes` bytes; `raws` stand for its
    raw_input_contents."""

    # Google's message classes are made while the program runs: a type checker cannot know their fields.
    head: Any
    head_bytes: int
    raws: Sequence[bytes | memoryview]


def split_request(message: memoryview) -> SplitRequest:
    """Find the raw tensors in a large request; a view over single bytes. Raises nothing: what is wrong, the parser will say."""
    if len(message) <= GRPC_WHOLE_PARSE_BYTES_MAX:
        return SplitRequest(message, None)
    found = _find_raw_inputs(message)
    return SplitRequest(message, None) if found is None else found


def parse_request(split: SplitRequest) -> ParsedRequest:
    """Raises Internal, as Triton, for bytes that are not a ModelInferRequest."""
    try:
        head = REQUEST_CLASS.FromString(split.head)
    except DecodeError:
        raise Internal("Unable to parse request") from None
    return ParsedRequest(head, len(split.head), head.raw_input_contents if split.raws is None else split.raws)


def raw_output(blob: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """One element of raw_output_contents in two pieces, the second being `blob` itself."""
    return _RAW_OUTPUT_TAG + _number(len(blob)), blob


def infer_response(length: int) -> bytes:
    """What stands before the `length` bytes of a ModelInferResponse in a ModelStreamInferResponse."""
    return _INFER_RESPONSE_TAG + _number(length)


def _find_raw_inputs(message: memoryview) -> SplitRequest | None:
    """None for anything that a usual writer would not write: other wire types, numbers in more bytes than they need."""
    end = len(message)
    kept: list[memoryview] = []
    raws: list[memoryview] = []
    at = kept_from = 0
    while at < end:
        start = at
        tag = message[at]
        if tag >= _MORE or tag & _WIRE_TYPE_MASK != _LENGTH_DELIMITED:
            return None
        at += 1
        length = shift = 0
        while True:
            if at == end or at - start > _NUMBER_BYTES_MAX:
                return None
            byte = message[at]
            at += 1
            length |= (byte & ~_MORE) << shift
            if byte < _MORE:
                break
            shift += 7
        if length > end - at:
            return None
        if tag == _RAW_INPUT_TAG:
            kept.append(message[kept_from:start])
            raws.append(message[at : at + length])
            kept_from = at + length
        at += length
    kept.append(message[kept_from:])
    return SplitRequest(b"".join(kept), raws)


def _number(value: int) -> bytes:
    """A length as protobuf writes it: seven bits to a byte, lowest first."""
    if value < _MORE:
        return bytes((value,))
    octets = bytearray()
    while value >= _MORE:
        octets.append(value & ~_MORE & 0xFF | _MORE)
        value >>= 7
    octets.append(value)
    return bytes(octets)
