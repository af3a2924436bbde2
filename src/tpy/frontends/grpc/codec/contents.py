"""Typed contents: the elements of an input in a repeated field of the input's type instead of as raw bytes.

Small ones are read by protobuf, which holds the interpreter until it is done. Large ones are given to it in steps; floating-point
numbers are arrays over the bytes that arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from tpy._proto import message_class
from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.frontends.binary_tensor import element_count, shaped
from tpy.frontends.bytes_tensor import BrokenElements, object_array
from tpy.frontends.grpc.codec.fields import (
    MORE,
    VARINT_BYTES_MAX,
    FieldBudget,
    TooManyFields,
    each_field,
    length_delimited,
    unparsable,
    varint,
)
from tpy.limits import GRPC_CONTENTS_FIELDS_MAX, GRPC_CONTENTS_PARSE_BYTES_MAX
from tpy.messages import DataType
from tpy.units import KIB, MIB

_FIELDS: tuple[tuple[str, str, frozenset[DataType]], ...] = (
    ("bool_contents", "BOOL", frozenset({DataType.BOOL})),
    ("int_contents", "INT32", frozenset({DataType.INT8, DataType.INT16, DataType.INT32})),
    ("int64_contents", "INT64", frozenset({DataType.INT64})),
    ("uint_contents", "UINT32", frozenset({DataType.UINT8, DataType.UINT16, DataType.UINT32})),
    ("uint64_contents", "UINT64", frozenset({DataType.UINT64})),
    ("fp32_contents", "FP32", frozenset({DataType.FP32})),
    ("fp64_contents", "FP64", frozenset({DataType.FP64})),
    ("bytes_contents", "BYTES", frozenset({DataType.BYTES})),
)
"""Field of InferTensorContents, what Triton calls its elements, and the datatypes that it is for."""

_PACKED_FIELDS_MAX = 64
"""Packed fields of one input: writers make one, and a few where they join messages."""
_PACKED_TOGETHER_BYTES = MIB
"""Packed numbers of any length that protobuf reads in one step, a few milliseconds."""

_STRINGS_TOGETHER_BYTES = 64 * KIB
"""Bytes of strings that are copied at once."""

_WIDE = {
    "BOOL": np.dtype(np.bool_),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
"""The numpy type of what a field holds."""


_CONTENTS_CLASS: Final = message_class("inference.InferTensorContents")

Elements = Sequence[Any] | np.ndarray[Any, Any]

_FIXED: Final[dict[int, np.dtype[Any]]] = {6: np.dtype("<f4"), 7: np.dtype("<f8")}
"""Numbers of fields whose elements are as on the wire as in memory."""
_PACKED_TAGS: Final = {length_delimited(number): number for number in range(1, 8)}
_BYTES_TAG: Final = length_delimited(8)


def read_contents(
    contents: Any, datatype: DataType, shape: tuple[int, ...], *, tensor: str, model: str, prefix: str
) -> np.ndarray[Any, Any]:
    """The array of `shape` in an inference.InferTensorContents, or in the bytes of one. Integers are cut to the width of
    `datatype`, as Triton does.

    Raises InvalidArgument for elements in another type's field, for another number of them than `shape` needs and for more than
    is read; Internal for bytes that are not contents.
    """
    count = element_count(shape)
    found = _large_elements(contents, tensor, count) if isinstance(contents, memoryview) else _elements(contents)
    given: tuple[Elements, str] | None = None
    for number, elements in found:
        _, word, datatypes = _FIELDS[number - 1]
        if datatype not in datatypes:
            shown = "<invalid>" if datatype is DataType.INVALID else datatype.value
            raise InvalidArgument(
                f"unexpected explicit tensor data for input tensor '{echo(tensor)}' for model '{model}' of type '{word}', "
                f"expected datatype '{shown}'"
            )
        given = elements, word
    if datatype is DataType.BYTES:
        return _texts(given[0] if given else (), count, shape, tensor=tensor, model=model, prefix=prefix)
    array: np.ndarray[Any, Any]
    if given is None:
        array = np.empty(0, datatype.numpy)
    else:
        array = np.asarray(given[0], _WIDE[given[1]]).astype(datatype.numpy, copy=False)
    if array.size != count:
        expected, got = count * datatype.itemsize, array.size * datatype.itemsize
        raise InvalidArgument(
            f"{prefix}input byte size mismatch for input '{echo(tensor)}' for model '{model}'. Expected {expected}, got {got}"
        )
    return shaped(array, shape, tensor)


def _elements(contents: Any) -> list[tuple[int, Elements]]:
    """The fields that have elements: their numbers, in order, and the elements."""
    fields = ((number, getattr(contents, field)) for number, (field, _, _) in enumerate(_FIELDS, 1))
    return [(number, elements) for number, elements in fields if len(elements)]


def _large_elements(data: memoryview, tensor: str, count: int) -> list[tuple[int, Elements]]:
    """The same out of bytes. Of strings no more are read than show that there are more than `count`."""
    try:
        fields = list(each_field(data, FieldBudget(_PACKED_FIELDS_MAX)))
    except TooManyFields:
        fields = []
    if not fields or not all(tag in _PACKED_TAGS for tag, _, _, _ in fields):
        if len(data) <= GRPC_CONTENTS_PARSE_BYTES_MAX:
            return _elements(_parsed(data))
        return [(8, read_strings(data, tensor, count))]
    arrays: dict[int, list[np.ndarray[Any, Any]]] = {}
    for tag, _, body, end in fields:
        number = _PACKED_TAGS[tag]
        read = _fixed(data[body:end], _FIXED[number]) if number in _FIXED else read_varints(data[body:end], tag)
        arrays.setdefault(number, []).extend(read)
    joined = (
        (number, parts[0] if len(parts) == 1 else np.concatenate(parts)) for number, parts in sorted(arrays.items()) if parts
    )
    return [(number, array) for number, array in joined if array.size]


def _fixed(packed: memoryview, dtype: np.dtype[Any]) -> list[np.ndarray[Any, Any]]:
    if len(packed) % dtype.itemsize:
        raise unparsable()
    return [np.frombuffer(packed, dtype)]


def read_varints(packed: memoryview, tag: int) -> list[np.ndarray[Any, Any]]:
    """Packed numbers of any length, some at a time: other threads have their turn in between. `tag` is that of a field of
    InferTensorContents, which says what they are. Raises Internal for bytes that are not such numbers."""
    field, word, _ = _FIELDS[_PACKED_TAGS[tag] - 1]
    arrays: list[np.ndarray[Any, Any]] = []
    at = 0
    while at < len(packed):
        end = min(len(packed), at + _PACKED_TOGETHER_BYTES)
        first = max(at, end - VARINT_BYTES_MAX)
        while end > first and packed[end - 1] >= MORE:
            end -= 1
        if end <= first:
            raise unparsable()
        piece = packed[at:end]
        arrays.append(np.array(getattr(_parsed(b"".join((bytes((tag,)), varint(len(piece)), piece))), field), _WIDE[word]))
        at = end
    return arrays


def read_strings(data: memoryview, tensor: str, count: int) -> list[bytes]:
    """The strings of field 8, of which `data` consists, one by one: other threads have their turn in between. Stops when there
    are more than `count`. Raises InvalidArgument for other fields and too many strings, Internal for a broken message."""
    strings: list[bytes] = []
    at, size = 0, len(data)
    while at < size and len(strings) <= count:
        at += _append_short(bytes(data[at : at + _STRINGS_TOGETHER_BYTES]), strings)
        if at < size:  # a long one, or the last
            try:
                tag, _, body, end = next(each_field(data[at:], FieldBudget(1)), (0, 0, 0, 0))
            except TooManyFields:  # a group
                tag = body = end = 0
            if tag != _BYTES_TAG:
                raise InvalidArgument(
                    f"contents of input tensor '{echo(tensor)}' are of several kinds, or not packed, which is accepted up to "
                    f"{GRPC_CONTENTS_PARSE_BYTES_MAX} bytes only; expected packed numbers, or raw_input_contents"
                )
            strings.append(bytes(data[at + body : at + end]))
            at += end
        if len(strings) > GRPC_CONTENTS_FIELDS_MAX:
            raise InvalidArgument(
                f"contents of input tensor '{echo(tensor)}' have more than {GRPC_CONTENTS_FIELDS_MAX} strings, at most as many "
                "are accepted there; expected raw_input_contents"
            )
    return strings


def _append_short(text: bytes, strings: list[bytes]) -> int:
    """Append the strings of the fields that `text` begins with, and whose length is one or two bytes. Where they end. Nearly all
    are such, and this takes a third of the time of `each_field`."""
    at, size = 0, len(text)
    append = strings.append
    while at + 2 < size and text[at] == _BYTES_TAG:
        length = text[at + 1]
        if length < MORE:
            body = at + 2
        else:
            body = at + 3
            length += (text[at + 2] - 1) * MORE
        end = body + length
        if end > size or length >= MORE * MORE:
            break
        append(text[body:end])
        at = end
    return at


def _parsed(data: bytes | memoryview) -> Any:
    try:
        return _CONTENTS_CLASS.FromString(data)
    except DecodeError:
        raise unparsable() from None


def _texts(
    elements: Elements, count: int, shape: tuple[int, ...], *, tensor: str, model: str, prefix: str
) -> np.ndarray[Any, Any]:
    if len(elements) != count:
        if len(elements) < count:
            broken = BrokenElements(f"expected {count} string elements", f"got {len(elements)}")
        else:
            broken = BrokenElements(f"unexpected number of string elements {count + 1}", f"expecting {count}")
        raise InvalidArgument(broken.text(tensor=tensor, model=model, prefix=prefix))
    return shaped(object_array(elements if type(elements) is list else list(elements), (-1,)), shape, tensor)
