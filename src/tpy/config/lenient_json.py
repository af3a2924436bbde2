"""JSON as protobuf's parser reads it: beyond the standard it takes single quotes, names without quotes, a comma behind the last
member, a number that ends in its point, any escape and control characters in strings (asked of Triton 2.51)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<mark>[{}\[\],:])
      | (?P<string>"(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*')
      | (?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)
      | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)""",
    re.VERBOSE | re.DOTALL,
)

_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))|([\"\x00-\x1f])", re.DOTALL)
"""An escape, or what has to become one between double quotes."""

_COLON: Final = re.compile(r"[ \t\r\n]*:")
_KEPT_ESCAPES: Final = frozenset('"\\/bfnrt')
_OPENING: Final = frozenset("{[,:")
_VALUES: Final = frozenset({"true", "false", "null"})


def loads(text: str) -> Any:
    """As `json.loads`, but without NaN and infinities. Raises ValueError, about the text as standard JSON, and
    RecursionError."""
    try:
        return json.loads(text, parse_constant=_no_constant, strict=False)
    except ValueError as error:
        try:
            return json.loads("".join(_standard(text)), parse_constant=_no_constant, strict=False)
        except ValueError:
            raise error from None


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON value")


def _standard(text: str) -> Iterator[str]:
    """The text's tokens as standard JSON; whether they are in order is for `json` to say. Raises ValueError for anything else."""
    comma = False  # one that stands behind what may be the last member
    opening = True  # the last token was one that no comma may follow
    at = 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"no JSON at character {at}")
        at = match.end()
        token, kind = match[0], match.lastgroup
        if kind == "space":
            continue
        if comma and token not in ("}", "]"):
            yield ","
        comma = token == "," and not opening
        opening = token in _OPENING
        if comma:
            continue
        if kind == "string":
            yield '"' + _ESCAPE.sub(_escaped, token[1:-1]) + '"'
        elif kind == "word" and token not in _VALUES:
            if _COLON.match(text, at) is None:
                raise ValueError(f"{token} is not a JSON value")
            yield f'"{token}"'
        else:
            yield token.replace(".e", ".0e").replace(".E", ".0E") + ("0" if token.endswith(".") else "")
    if comma:
        yield ","


def _escaped(match: re.Match[str]) -> str:
    code, escaped, bare = match.groups()
    if code is not None:
        return match[0]
    if bare is not None:
        return json.dumps(bare)[1:-1]
    if escaped == "u":
        raise ValueError("\\u needs four hexadecimal digits")
    return match[0] if escaped in _KEPT_ESCAPES else json.dumps(escaped)[1:-1]
