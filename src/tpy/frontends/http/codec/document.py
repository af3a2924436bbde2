"""Reads a JSON document and the members of its objects, refusing in Triton's words.

Triton reports wrong and missing members as internal errors (500); they are the caller's fault, so here they are
InvalidArgument (400) with the same text.
"""

from __future__ import annotations

import codecs
from typing import Any, NoReturn

from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.cutting import load_in_pieces, load_with_outline
from tpy.frontends.http.codec.json_text import INT64_MAX, INT64_MIN, UINT64_MAX, parse_json
from tpy.frontends.http.codec.pieces import LongArray, LongString
from tpy.limits import (
    HTTP_INLINE_JSON_BYTES_MAX,
    HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX,
    HTTP_INLINE_JSON_VALUES_MAX,
    JSON_EXPLAIN_BYTES_MAX,
    JSON_WHOLE_BYTES_MAX,
)

__all__ = ["INT64_MAX", "INT64_MIN", "UINT64_MAX"]

NON_STRING = "attempt to access JSON non-string as string"
NON_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NON_SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
NON_NUMBER = "attempt to access JSON non-number as double"
NON_ARRAY = "attempt to access JSON non-array as array"


def is_heavy(text: bytes | bytearray | memoryview) -> bool:
    """Returns True if reading the document could hold up the loop: it is long, or has many values."""
    size = len(text)
    if size > HTTP_INLINE_JSON_BYTES_MAX:
        return True
    if size <= HTTP_INLINE_JSON_UNCOUNTED_BYTES_MAX:
        return False
    plain = bytes(text)
    return plain.count(b",") + plain.count(b"[") > HTTP_INLINE_JSON_VALUES_MAX


def load_document(text: bytes | bytearray | memoryview) -> object:
    """The JSON value in `text`; the literals NaN, Infinity and -Infinity are numbers. Raises InvalidArgument with Triton's
    text: `failed to parse the request JSON buffer: <what> at <byte offset>`. A byte order mark in front is passed over.
    Long arrays and strings of a large document are LongArray and LongString."""
    text = _without_mark(text)
    return parse_json(text) if len(text) <= JSON_WHOLE_BYTES_MAX else load_in_pieces(text)


def load_with_names(text: bytes | bytearray | memoryview) -> tuple[object, bytes]:
    """The JSON value in `text`, and a JSON text with the names of all its members, also those that are there twice: what is left
    of the document without its long arrays and strings. Raises as load_document."""
    text = _without_mark(text)
    return (parse_json(text), bytes(text)) if len(text) <= JSON_EXPLAIN_BYTES_MAX else load_with_outline(text)


def _without_mark(text: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    return memoryview(text)[3:] if text[:3] == codecs.BOM_UTF8 else text


def refuse(member: str, problem: str) -> NoReturn:
    """Raise InvalidArgument: what is wrong with the value of `member`."""
    raise InvalidArgument(f"Unable to parse '{member}': {problem}")


def missing(member: str) -> NoReturn:
    """Raise InvalidArgument: the object has no `member`."""
    refuse(member, f"attempt to access non-existing object member '{member}'")


def string_member(item: object, member: str) -> str:
    """The string `member` of the object `item`. Raises InvalidArgument."""
    if type(item) is not dict or member not in item:
        missing(member)
    value = item[member]
    if type(value) is LongString:
        return value.decode()
    if type(value) is not str:
        refuse(member, NON_STRING)
    return value


def array_member(item: object, member: str) -> list[object]:
    """The array `member` of the object `item`; of a long one, which it is nowhere but in `data`, the beginning. Raises
    InvalidArgument."""
    if type(item) is dict:
        value = item.get(member)
        if type(value) is list:
            return value
    value = data_member(item, member)
    return value.head() if isinstance(value, LongArray) else value


def data_member(item: object, member: str) -> list[Any] | LongArray:
    """The array `member` of the object `item`. Raises InvalidArgument."""
    if type(item) is not dict or member not in item:
        missing(member)
    value: object = item[member]
    if type(value) is LongArray:
        return value
    if type(value) is not list:
        refuse(member, NON_ARRAY)
    return value


def is_unsigned(value: object) -> bool:
    """Returns True if a JSON value is an integer from 0 to 2**64 - 1; true and false are not."""
    return type(value) is int and 0 <= value <= UINT64_MAX
