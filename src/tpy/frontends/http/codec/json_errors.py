"""Says what is wrong with a broken JSON document in the words and with the offset of Triton's parser (RapidJSON).

Only ever run on documents that a fast parser refused. It follows the order in which RapidJSON reads: the first thing that
cannot be right where it stands is the error.
"""

from __future__ import annotations

import re
from typing import Final

_EMPTY: Final = "The document is empty."
_NOT_SINGULAR: Final = "The document root must not be followed by other values."
_VALUE: Final = "Invalid value."
_NO_NAME: Final = "Missing a name for object member."
_NO_COLON: Final = "Missing a colon after a name of object member."
_NO_COMMA_IN_OBJECT: Final = "Missing a comma or '}' after an object member."
_NO_COMMA_IN_ARRAY: Final = "Missing a comma or ']' after an array element."
_NO_QUOTE: Final = "Missing a closing quotation mark in string."
_BAD_HEX: Final = "Incorrect hex digit after \\u escape in string."
_BAD_SURROGATE: Final = "The surrogate pair in string is invalid."
_BAD_ESCAPE: Final = "Invalid escape character in string."
_TOO_BIG: Final = "Number too big to be stored in double."
_NO_FRACTION: Final = "Miss fraction part in number."
_NO_EXPONENT: Final = "Miss exponent in number."

_SPACE = re.compile(rb"[ \t\n\r]*+")
_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*+)")
_FRACTION = re.compile(rb"[0-9]*+")
_EXPONENT = re.compile(rb"[+-]?[0-9]*+")
_SPECIAL = re.compile(rb"-?(?:NaN|Inf(?:inity)?)")
_PLAIN = re.compile(rb'[^"\\\x00-\x1f]*+')
_WORDS: Final = (b"null", b"true", b"false")


class _Found(Exception):
    """The first error. `args` are its text and its offset in bytes."""


def first_error(document: bytes) -> tuple[str, int] | None:
    """Text and byte offset of the first error, None when RapidJSON would have found none."""
    try:
        _read_document(document)
    except _Found as found:
        text, offset = found.args
        return text, offset
    return None


def _read_document(text: bytes) -> None:
    at = _skip(text, 0)
    if _peek(text, at) == b"":
        raise _Found(_EMPTY, at)
    open_containers: list[bytes] = []
    at = _read_values(text, at, open_containers)
    at = _skip(text, at)
    if _peek(text, at) != b"":
        raise _Found(_NOT_SINGULAR, at)


def _read_values(text: bytes, at: int, open_containers: list[bytes]) -> int:
    """Read the value at `at` with everything in it; returns where it ends. No recursion: documents nest as they like."""
    while True:
        start = _peek(text, at)
        if start in (b"[", b"{"):
            open_containers.append(start)
            at = _skip(text, at + 1)
            if _peek(text, at) == (b"]" if start == b"[" else b"}"):
                open_containers.pop()
                at += 1
            elif start == b"[":
                if _peek(text, at) in (b"", b",", b":", b"}"):
                    raise _Found(_VALUE, at)
                continue
            else:
                at = _read_name(text, at)
                continue
        else:
            at = _read_scalar(text, at)
        while open_containers:
            at = _skip(text, at)
            after = _peek(text, at)
            in_array = open_containers[-1] == b"["
            if after == b",":
                at = _skip(text, at + 1)
                if not in_array:
                    at = _read_name(text, at)
                break
            if after != (b"]" if in_array else b"}"):
                raise _Found(_NO_COMMA_IN_ARRAY if in_array else _NO_COMMA_IN_OBJECT, at)
            open_containers.pop()
            at += 1
        else:
            return at


def _read_name(text: bytes, at: int) -> int:
    """A member's name and its colon; returns where the value starts."""
    if _peek(text, at) != b'"':
        raise _Found(_NO_NAME, at)
    at = _skip(text, _read_string(text, at))
    if _peek(text, at) != b":":
        raise _Found(_NO_COLON, at)
    return _skip(text, at + 1)


def _read_scalar(text: bytes, at: int) -> int:
    start = _peek(text, at)
    if start == b'"':
        return _read_string(text, at)
    for word in _WORDS:
        if start == word[:1]:
            matched = 0
            while matched < len(word) and text[at + matched : at + matched + 1] == word[matched : matched + 1]:
                matched += 1
            if matched < len(word):
                raise _Found(_VALUE, at + matched)
            return at + matched
    return _read_number(text, at)


def _read_number(text: bytes, at: int) -> int:
    special = _SPECIAL.match(text, at)
    if special:
        return special.end()
    integer = _INTEGER.match(text, at)
    if not integer:
        raise _Found(_VALUE, at + (_peek(text, at) == b"-"))
    end = integer.end()
    if _peek(text, end) == b".":
        after = end + 1
        end = _end(_FRACTION, text, after)
        if end == after:
            raise _Found(_NO_FRACTION, end)
    if _peek(text, end) in (b"e", b"E"):
        after = end + 1
        end = _end(_EXPONENT, text, after)
        if not text[after:end].strip(b"+-"):
            raise _Found(_NO_EXPONENT, end)
    if float(text[at:end]) in (float("inf"), float("-inf")):
        raise _Found(_TOO_BIG, at)
    return end


def _read_string(text: bytes, at: int) -> int:
    at += 1
    while True:
        at = _end(_PLAIN, text, at)
        stop = _peek(text, at)
        if stop == b'"':
            return at + 1
        if stop == b"":
            raise _Found(_NO_QUOTE, at)
        if stop != b"\\":
            raise _Found(_BAD_ESCAPE, at)
        at = _read_escape(text, at)


def _read_escape(text: bytes, at: int) -> int:
    kind = text[at + 1 : at + 2]
    if kind != b"u":
        if not kind or kind not in b'"\\/bfnrt':
            raise _Found(_BAD_ESCAPE, at)
        return at + 2
    code = _read_hex(text, at)
    if not 0xD800 <= code <= 0xDFFF:
        return at + 6
    if code > 0xDBFF or text[at + 6 : at + 8] != b"\\u" or not 0xDC00 <= _read_hex(text, at + 6, reported_at=at) <= 0xDFFF:
        raise _Found(_BAD_SURROGATE, at)
    return at + 12


def _read_hex(text: bytes, at: int, *, reported_at: int | None = None) -> int:
    digits = text[at + 2 : at + 6]
    if not re.fullmatch(rb"[0-9a-fA-F]{4}", digits):
        raise _Found(_BAD_HEX, at if reported_at is None else reported_at)
    return int(digits, 16)


def _skip(text: bytes, at: int) -> int:
    return _end(_SPACE, text, at)


def _end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _peek(text: bytes, at: int) -> bytes:
    """The byte at `at`; nothing at the end, which a NUL byte is as well, as in the parser that this follows."""
    byte = text[at : at + 1]
    return b"" if byte == b"\x00" else byte
