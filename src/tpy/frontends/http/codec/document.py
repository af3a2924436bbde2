"""Reads a JSON document and the members of its objects, refusing in Triton's words.

Triton reports wrong and missing members as internal errors (500); they are the caller's fault, so here they are
InvalidArgument (400) with the same text.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import NoReturn

import orjson

from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.json_errors import first_error
from tpy.limits import JSON_EXPLAIN_BYTES_MAX

UINT64_MAX = 2**64 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_INTEGER_DIGITS_MAX = len(str(UINT64_MAX))

NON_STRING = "attempt to access JSON non-string as string"
NON_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NON_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NON_SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
NON_NUMBER = "attempt to access JSON non-number as double"
NON_ARRAY = "attempt to access JSON non-array as array"


def load_document(text: bytes | bytearray | memoryview) -> object:
    """The JSON value in `text`; the literals NaN, Infinity and -Infinity are numbers. Raises InvalidArgument with Triton's
    text: `failed to parse the request JSON buffer: <what> at <byte offset>`. A byte order mark in front is passed over."""
    if text[:3] == codecs.BOM_UTF8:
        text = memoryview(text)[3:]
    try:
        document: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return _load_with_literals(bytes(text), error)
    return document


def _load_with_literals(text: bytes, error: orjson.JSONDecodeError) -> object:
    """What orjson refused, read by a slower parser if it only has number literals that orjson does not know."""
    if b"NaN" in text or b"Infinity" in text:
        try:
            document: object = json.loads(text.decode(), parse_int=_integer)
            if _SURROGATE_ESCAPE.search(text):
                orjson.dumps(document)  # raises for half a surrogate pair, which the slow parser lets through
            return document
        except (ValueError, TypeError, RecursionError):
            pass
    found = first_error(text) if len(text) <= JSON_EXPLAIN_BYTES_MAX else None
    what, offset = found if found is not None else (f"{error.msg}.", error.pos)
    raise InvalidArgument(f"failed to parse the request JSON buffer: {what} at {offset}") from None


def _integer(digits: str) -> int | float:
    """Integers of 64 bits stay what they are, larger ones are floats, as in the fast parser."""
    if len(digits) > _INTEGER_DIGITS_MAX:
        return float(digits)
    value = int(digits)
    return value if INT64_MIN <= value <= UINT64_MAX else float(digits)


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
    if type(value) is not str:
        refuse(member, NON_STRING)
    return value


def array_member(item: object, member: str) -> list[object]:
    """The array `member` of the object `item`. Raises InvalidArgument."""
    if type(item) is not dict or member not in item:
        missing(member)
    value = item[member]
    if type(value) is not list:
        refuse(member, NON_ARRAY)
    return value


def is_unsigned(value: object) -> bool:
    """Whether a JSON value is an integer from 0 to 2**64 - 1; true and false are not."""
    return type(value) is int and 0 <= value <= UINT64_MAX
