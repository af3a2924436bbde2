"""Reads a JSON document and the members of its objects, refusing in Triton's words.

Triton reports wrong and missing members as internal errors (500); they are the caller's fault, so here they are
InvalidArgument (400) with the same text.
"""

from __future__ import annotations

import codecs
import json
from typing import NoReturn

import numpy as np

from tpy.echo import echo, echo_list
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.cutting import load_in_pieces, load_with_outline
from tpy.frontends.http.codec.json_text import INT64_MAX, INT64_MIN, UINT64_MAX, parse_json
from tpy.frontends.http.codec.pieces import JsonArray, LongArray, LongString
from tpy.frontends.shared_memory import RegionRange, TensorResolver
from tpy.limits import (
    HTTP_INLINE_JSON_BYTES_MAX,
    HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX,
    HTTP_INLINE_JSON_VALUES_MAX,
    JSON_EXPLAIN_BYTES_MAX,
    JSON_WHOLE_BYTES_MAX,
)
from tpy.messages.allowed import with_hint


def region_of(parameters: dict[str, object], tensors: TensorResolver) -> RegionRange:
    """Returns the range that `shared_memory_region` and its fellows name. Raises InvalidArgument for a wrong type, and as
    TensorResolver."""
    name = parameters["shared_memory_region"]
    if type(name) is LongString:
        name = name.decode()
    if type(name) is not str:
        refuse_type("shared_memory_region", NON_STRING, name)
    return tensors.resolve(name, _unsigned(parameters, "shared_memory_offset"), _unsigned(parameters, "shared_memory_byte_size"))


def _unsigned(parameters: dict[str, object], member: str) -> int:
    value = parameters.get(member, 0)
    if type(value) is not int or not is_unsigned(value):
        refuse_type(member, NON_UNSIGNED, value)
    return value


__all__ = ["INT64_MAX", "INT64_MIN", "UINT64_MAX"]

NON_STRING = "attempt to access JSON non-string as string"
NON_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NON_SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
NON_NUMBER = "attempt to access JSON non-number as double"
NON_ARRAY = "attempt to access JSON non-array as array"


_COMMA, _OPEN = b",["


def is_heavy(text: bytes | bytearray | memoryview) -> bool:
    """Returns True if reading the document could hold up the loop: it is long, or has many values."""
    size = len(text)
    if size > HTTP_INLINE_JSON_BYTES_MAX:
        return True
    if size <= HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX:
        return False
    characters = np.frombuffer(text, np.uint8)
    values = np.count_nonzero(characters == _COMMA) + np.count_nonzero(characters == _OPEN)
    return bool(values > HTTP_INLINE_JSON_VALUES_MAX)


def load_document(text: bytes | bytearray | memoryview) -> object:
    """The JSON value in `text`; the literals NaN, Infinity and -Infinity are numbers. Raises InvalidArgument with Triton's
    text: `failed to parse the request JSON buffer: <what> at <byte offset>`. A byte order mark in front is passed over.
    Long arrays and strings of a large document are LongArray and LongString."""
    text = _without_mark(text)
    return parse_json(text) if len(text) <= JSON_WHOLE_BYTES_MAX else load_in_pieces(text)


def load_with_names(text: bytes | bytearray | memoryview) -> tuple[object, bytes]:
    """The JSON value in `text`, and a JSON text with the names of all its members, including repeated ones: the document without
    its long arrays and strings. Raises as load_document."""
    text = _without_mark(text)
    return (parse_json(text), bytes(text)) if len(text) <= JSON_EXPLAIN_BYTES_MAX else load_with_outline(text)


def _without_mark(text: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    return memoryview(text)[3:] if text[:3] == codecs.BOM_UTF8 else text


_EXPECTED = {
    NON_STRING: "a text in quotes",
    NON_BOOLEAN: "true or false",
    NON_UNSIGNED: "a whole number of at least 0",
    NON_SIGNED: "a whole number",
    NON_NUMBER: "a number",
    NON_ARRAY: "an array",
}
_SHOWN_CHARACTERS_MAX = 40


def expected_text(problem: str, got: object, *, place: str = "", into: str = "") -> str:
    """A hint for a value of a wrong type: what was expected, `into` what it goes, what was there instead, and its `place`."""
    return f"expected {_EXPECTED[problem]}{into}, got {shown(got)}{place}"


def shown(value: object) -> str:
    """A JSON value in a sentence, cut where it is long."""
    if value is None:
        return "null"
    if isinstance(value, list | LongArray):
        return "an array" if value else "an empty array"
    if isinstance(value, dict):
        return "an object"
    if type(value) is LongString:
        return "a long text"
    if isinstance(value, str) and len(value) > _SHOWN_CHARACTERS_MAX:
        beginning = json.dumps(value[:_SHOWN_CHARACTERS_MAX], ensure_ascii=False)[:-1]
        return f"{beginning}... ({len(value) - _SHOWN_CHARACTERS_MAX} more characters)"
    return echo(json.dumps(value, ensure_ascii=False), _SHOWN_CHARACTERS_MAX)


def members_text(item: object) -> str:
    """The names of the members of a JSON object in a sentence; what it is, if not an object."""
    if type(item) is not dict:
        return shown(item)
    return f"an object with {echo_list(item, ', ')}" if item else "an empty object"


def refuse(member: str, problem: str, hint: str = "") -> NoReturn:
    """Raise InvalidArgument: what is wrong with the value of `member`, and the `hint` what to write there."""
    raise InvalidArgument(with_hint(f"Unable to parse '{member}': {problem}", hint))


def refuse_type(member: str, problem: str, got: object, *, place: str = "") -> NoReturn:
    """Raise InvalidArgument: the value of `member` has a wrong type."""
    refuse(member, problem, expected_text(problem, got, place=place))


def missing(member: str, item: object, hint: str = "") -> NoReturn:
    """Raise InvalidArgument: `item` has no `member`; `hint` says where that would stand, if the name is not enough."""
    hint = hint or f"expected a member '{member}'"
    refuse(member, f"attempt to access non-existing object member '{member}'", f"{hint}, got {members_text(item)}")


def string_member(item: object, member: str) -> str:
    """The string `member` of the object `item`. Raises InvalidArgument."""
    if type(item) is not dict or member not in item:
        missing(member, item)
    value = item[member]
    if type(value) is LongString:
        return value.decode()
    if type(value) is not str:
        refuse_type(member, NON_STRING, value)
    return value


def array_member(item: object, member: str) -> list[object]:
    """The array `member` of the object `item`; of a long one, which it is nowhere but in `data`, the beginning. Raises
    InvalidArgument."""
    if type(item) is dict:
        value = item.get(member)
        if type(value) is list:
            return value
    value = data_member(item, member)
    if isinstance(value, LongArray):
        return value.head()
    return value if isinstance(value, list) else value.tolist()


def data_member(item: object, member: str) -> JsonArray:
    """The array `member` of the object `item`. Raises InvalidArgument."""
    if type(item) is not dict or member not in item:
        missing(member, item)
    value: object = item[member]
    if type(value) is LongArray or type(value) is np.ndarray:
        return value
    if type(value) is not list:
        refuse_type(member, NON_ARRAY, value)
    return value


def is_unsigned(value: object) -> bool:
    """Returns True if a JSON value is an integer from 0 to 2**64 - 1; true and false are not."""
    return type(value) is int and 0 <= value <= UINT64_MAX
