"""Scalar and enum values as text format writes them: what is allowed, and what was meant by what is not."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

from google.protobuf import text_encoding

from tpy.config.schema import INTEGER_RANGE, EnumSchema, Scalar
from tpy.config.tokens import Token, TokenKind

_INTEGER: Final = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_INTEGER_CHARACTERS_MAX: Final = 1000
"""Python refuses to convert much longer ones, as that would take long. An octal literal may begin with many zeros."""
_FLOAT: Final = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?|-?(?:inf|infinity|nan)f?", re.IGNORECASE)
_STRING: Final = re.compile(
    r"""(?:[^\\]|\\(?:[abfnrtv\\'"]|[0-3]?[0-7]{1,2}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}))*"""
)
"""The characters between quotes. protobuf's Python parser takes more escapes than its C++ one, with a warning; we do not."""
_BOOLEANS: Final = frozenset({"true", "True", "t", "1", "false", "False", "f", "0"})
_DATA_TYPE_ALIASES: Final = {"TYPE_BYTES": "TYPE_STRING", "TYPE_FLOAT": "TYPE_FP32", "TYPE_DOUBLE": "TYPE_FP64"}

EXPECTED: Final = {
    Scalar.INT32: "an integer",
    Scalar.INT64: "an integer",
    Scalar.UINT32: "an integer >= 0",
    Scalar.UINT64: "an integer >= 0",
    Scalar.FLOAT: "a number",
    Scalar.DOUBLE: "a number",
    Scalar.BOOL: "true or false",
    Scalar.STRING: "a string in quotes",
}
"""The pattern of a value of each type."""


def integer_of(text: str) -> int | None:
    """The value of a decimal, hexadecimal or octal literal; None for anything else. Of one that is absurdly long the value is
    cut, and still far outside of any range."""
    if _INTEGER.fullmatch(text) is None:
        return None
    digits = text.removeprefix("-")[:_INTEGER_CHARACTERS_MAX]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    return -int(digits, base) if text.startswith("-") else int(digits, base)


def string_of(token: Token) -> str | None:
    """The text of a string literal; None when an escape in it is wrong or it is not UTF-8."""
    if _STRING.fullmatch(token.text, 1, len(token.text) - 1) is None:
        return None
    try:
        unescaped: bytes = text_encoding.CUnescape(token.text[1:-1])
        return unescaped.decode("utf-8")
    except ValueError:
        return None


def scalar_fault(token: Token, kind: Scalar) -> str:
    """The error of `token` as a value of `kind`; "" if it is valid."""
    if kind is Scalar.STRING:
        if token.kind is not TokenKind.STRING:
            return f"{token.describe()} is not a string"
        return "" if string_of(token) is not None else f"{token.describe()} has an escape that is not known or is not UTF-8"
    if kind.is_integer:
        return _integer_fault(token, kind)
    if kind is Scalar.BOOL:
        return "" if token.text in _BOOLEANS else f"{token.describe()} is neither true nor false"
    return "" if _FLOAT.fullmatch(token.text) else f"{token.describe()} is not a number"


def _integer_fault(token: Token, kind: Scalar) -> str:
    value = integer_of(token.text) if token.kind is TokenKind.NUMBER else None
    if value is None:
        return f"{token.describe()} is not an integer"
    smallest, largest = INTEGER_RANGE[kind]
    return "" if smallest <= value <= largest else f"{token.short} is outside the range of {kind.value}, {smallest} to {largest}"


def enum_fault(token: Token, kind: EnumSchema) -> str:
    """The error of `token` as a value of the enum; "" if it is valid."""
    if token.kind is TokenKind.NUMBER:
        number = integer_of(token.text)
        known = number in kind.by_number
    else:
        known = token.kind is TokenKind.NAME and token.text in kind.by_name
    if known:
        return ""
    return f"{token.describe()} is not a value of {kind.name}{did_you_mean(token.short, kind.by_name)}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean '<known>'?` for the most similar known word, or ""."""
    names = list(known)
    bare = word.strip("\"'").upper()
    for candidate in (bare, f"TYPE_{bare}", f"KIND_{bare}"):
        candidate = _DATA_TYPE_ALIASES.get(candidate, candidate)
        if candidate in names:
            return f"; did you mean '{candidate}'?"
    close = difflib.get_close_matches(word.lower(), [name.lower() for name in names], n=1, cutoff=0.6)
    if not close:
        return ""
    return f"; did you mean '{next(name for name in names if name.lower() == close[0])}'?"
