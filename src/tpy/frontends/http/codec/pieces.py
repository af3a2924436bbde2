"""The long arrays and long strings of a large JSON document, which are parsed piece by piece where they are used.

No step holds the interpreter for more than a millisecond or two, and the elements of a tensor never exist as Python objects all
at once: objects and lists take up to sixty times the memory of their text.

Pieces are cut at commas between elements. `[[1,2],[3,4]]` cut behind 3 is `[1,2],[3` and `4]`; with the brackets that are open
before and behind it each piece is a complete document, evenly nested when the array is, and valid exactly when the array is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.json_text import broken_text, parse_json
from tpy.units import KIB


class ArraySizes(NamedTuple):
    """The size of a long array, in bytes."""

    piece: int = 128 * KIB
    """The bytes that are parsed at once, or scanned: half a millisecond."""

    look: int = KIB
    """The bytes of an array that are looked at first: most are short, or hold objects."""

    string: int = 16 * KIB
    """Strings longer than this are cut out."""

    array: int = 512
    """Arrays shorter than this are not."""

    space: int = KIB
    """White space between members that is longer than this is left out."""


SIZES = ArraySizes()

_WHOLE_CHARACTERS = re.compile(
    rb"(?:[^\\\x80-\xff]++|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*+",
    re.DOTALL,
)
"""As far as a piece of a string has no character or escape that is cut in two."""

_CUT_BYTES_MAX = 12
"""Of an escape, at most."""

_SPACE = b" \t\r\n"
_OPEN, _CLOSE = b"[]"


class LongString:
    """The bytes of `text` from `start` to `end`, between quotes."""

    __slots__ = ("_piece_bytes", "end", "start", "text")

    def __init__(self, text: memoryview, start: int, end: int, *, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self.text = text
        self.start = start
        self.end = end

    def decode(self) -> str:
        """The whole string. Raises InvalidArgument when it is malformed."""
        return "".join(self.pieces())

    def encode(self) -> bytes:
        """The whole string as UTF-8. Raises InvalidArgument when it is malformed."""
        return b"".join([piece.encode() for piece in self.pieces()])

    def pieces(self) -> Iterator[str]:
        """The string in pieces. Raises InvalidArgument at a malformed piece."""
        at = self.start
        while at < self.end:
            limit = min(at + self._piece_bytes, self.end)
            end = limit
            if limit < self.end:
                match = _WHOLE_CHARACTERS.match(self.text, at, limit)
                if match is not None and limit - match.end() < _CUT_BYTES_MAX:
                    end = match.end()
            piece = parse_json(b'"' + self.text[at:end] + b'"', _shift(at - 1))
            if type(piece) is not str:
                raise broken_text("Invalid value.", at)
            yield piece
            at = end


class Piece(NamedTuple):
    """Elements between two commas; `depth` brackets are open before them and `depth_after` behind them. For one element that is
    longer than a piece, `text` is what is left of it without white space, and without the string if that is as long:
    `long_string`."""

    start: int
    end: int
    depth: int
    depth_after: int
    long_string: LongString | None = None
    text: bytes | None = None


class ArrayPiece(NamedTuple):
    """A piece of an array with the brackets that are open before and behind it: a complete document."""

    text: bytes
    """Without its long string."""
    piece: Piece

    @property
    def holds_long_string(self) -> bool:
        """True if its only element is a string that is not in `text`."""
        return self.piece.long_string is not None

    def parse(self) -> list[Any]:
        """The elements in lists, each as deeply nested as in the array. Raises InvalidArgument for a piece that is broken."""
        piece = self.piece
        elements = parse_json(self.text, _shift(piece.start - piece.depth))
        if type(elements) is not list:
            raise broken_text("Invalid value.", piece.start)
        if piece.long_string is not None:
            _replace_innermost(elements, piece.long_string.decode())
        return elements


class LongArray:
    """An array of numbers, literals and strings, nested or not."""

    __slots__ = ("_pieces", "_text")

    def __init__(self, text: memoryview, pieces: list[Piece]) -> None:
        self._text = text
        self._pieces = pieces

    def pieces(self) -> Iterator[ArrayPiece]:
        """Its pieces. Raises InvalidArgument at one that is cut wrongly."""
        last = len(self._pieces) - 1
        for index, piece in enumerate(self._pieces):
            text = self._piece_text(piece)
            if index and (not text or text[0] == _CLOSE):
                raise broken_text("Invalid value.", piece.start)
            if index < last and (not text or text[-1] == _OPEN):
                raise broken_text("Invalid value.", piece.end)
            yield ArrayPiece(b"[" * piece.depth + text + b"]" * piece.depth_after, piece)

    def elements(self, most: int) -> tuple[list[Any], int] | None:
        """All elements, and how many at most: nested ones are counted by their bytes. None for more than `most`, raises
        InvalidArgument for what is broken."""
        if any(piece.depth != 1 or piece.depth_after != 1 for piece in self._pieces):
            texts: list[bytes] = []
            count = 0
            for piece in self._pieces:
                texts.append(self._piece_text(piece))
                count += (len(texts[-1]) + 1) // 2
                if count > most or piece.long_string:
                    return None
            whole = parse_json(b"[" + b",".join(texts) + b"]", _shift(self._pieces[0].start - 1))
            return (whole, count) if isinstance(whole, list) else None
        found: list[Any] = []
        for each in self.pieces():
            found += each.parse()
            if len(found) > most:
                return None
        return found, len(found)

    def head(self) -> list[Any]:
        """The first elements: enough for callers that refuse a long array in this place anyway."""
        return next(self.pieces()).parse()

    def _piece_text(self, piece: Piece) -> bytes:
        if piece.depth > limits.JSON_DEPTH_MAX or piece.depth_after > limits.JSON_DEPTH_MAX:
            problem = f"JSON nesting depth exceeds maximum allowed limit ({limits.JSON_DEPTH_MAX})"
            raise InvalidArgument(f"Unable to parse 'data': {problem}")
        if piece.text is not None:
            return piece.text
        return bytes(self._text[piece.start : piece.end]).strip(_SPACE)


JsonArray = list[Any] | LongArray | np.ndarray[Any, Any]
"""The elements of a tensor: as lists, as text that is parsed in pieces, or as an array that is flat and has the tensor's type."""


def _shift(offset: int) -> Any:
    return lambda at: at + offset


def _replace_innermost(elements: list[Any], value: str) -> None:
    """Put `value` in place of the only scalar of nested lists."""
    while elements and type(elements[-1]) is list:
        elements = elements[-1]
    elements[-1:] = [value]
