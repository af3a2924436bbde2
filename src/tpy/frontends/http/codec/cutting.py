"""Cuts the long arrays and long strings out of a JSON document, by scanning its bytes without parsing them."""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from typing import Any, NamedTuple

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.json_text import broken_text, parse_json
from tpy.frontends.http.codec.pieces import SIZES, ArraySizes, LongArray, LongString, Piece

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_STRINGS = re.compile(_STRING, re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*+")
_SPACES = re.compile(_STRING + rb"|[ \t\r\n]++", re.DOTALL)
_TO_ARRAY = re.compile(rb'(?:[^"\[]++|' + _STRING + rb")*+", re.DOTALL)
_TO_BRACKET = re.compile(rb'(?:[^"{}:\[\]]++|' + _STRING + rb")*+", re.DOTALL)
_WITH_COMMAS = re.compile(rb'(?:(?:[^"{}:,]++|' + _STRING + rb")*+,)*+", re.DOTALL)
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR = re.compile(rb'[^ \t\r\n"{}:,\[\]]++')
_BRACKETS_MAX = 1024
"""One behind the other: more of them no parser here takes."""

_NO_ELEMENT = re.compile(rb"[{}:]")
_QUOTE, _OPEN, _CLOSE, _COMMA = b'"[],'


def load_in_pieces(text: bytes | bytearray | memoryview, sizes: ArraySizes = SIZES) -> object:
    """The JSON value in `text`, with LongArray and LongString in it. Raises InvalidArgument, also when more than
    JSON_OUTLINE_BYTES_MAX is neither."""
    return load_with_outline(text, sizes)[0]


def load_with_outline(text: bytes | bytearray | memoryview, sizes: ArraySizes = SIZES) -> tuple[object, bytes]:
    """The result of load_in_pieces, and the document without the parts that were cut out: it has the names of all members."""
    cutter = _Cutter(memoryview(text).cast("B"), sizes)
    outline = cutter.cut()
    return _put_back(parse_json(outline, cutter.offset_of), cutter.found), outline


def _put_back(document: object, found: dict[str, LongArray | LongString]) -> object:
    """The document with what was cut out where its name stands. What stands nowhere, because a later member has the same name,
    is looked at like everything else: raises InvalidArgument when it is broken."""
    if isinstance(document, str):
        return found.get(document, document)
    pending, missing = [document], dict(found)
    while pending and missing:
        container = pending.pop()
        if type(container) is dict:
            if not found.keys().isdisjoint(container):
                raise InvalidArgument(f"a member of the request JSON has a name of more than {SIZES.string} bytes")
            places: list[tuple[Any, Any]] = list(container.items())
        elif type(container) is list:
            places = list(enumerate(container))
        else:
            continue
        for key, value in places:
            if type(value) is str:
                if value in missing:
                    container[key] = missing.pop(value)
            elif type(value) is dict or type(value) is list:
                pending.append(value)
    for what in missing.values():
        for piece in what.pieces():
            if not isinstance(piece, str):
                piece.parse()
    return document


class _Shift(NamedTuple):
    """From this place of the outline on, places of the document are `by` bytes further."""

    at: int
    by: int


class _Cutter:
    """Goes once through one document. Afterwards `found` is what was cut out, by the string that stands for it in the outline."""

    def __init__(self, text: memoryview, sizes: ArraySizes) -> None:
        self.text = text
        self.sizes = sizes
        self.size = len(text)
        self.found: dict[str, LongArray | LongString] = {}
        self._outline = bytearray()
        self._shifts: list[_Shift] = []
        self._secret = secrets.token_hex(16)
        """A mark that no client can write into a document."""

    def offset_of(self, outline_at: int) -> int:
        """The place in the document of one in the outline."""
        index = bisect_right(self._shifts, outline_at, key=lambda shift: shift.at) - 1
        return outline_at if index < 0 else outline_at + self._shifts[index].by

    def cut(self) -> bytes:
        """The outline: the text with a short string in place of each long array or string."""
        at = 0
        while at < self.size:
            end = _end(_TO_ARRAY, self.text, at, min(at + self.sizes.string, self.size))
            self._keep(at, end)
            if end < self.size and self.text[end] == _OPEN:
                end = self._pass_array(end)
            elif end == at:
                end = self.string_end(at)
                self._put(LongString(self.text, at + 1, end - 1, piece_bytes=self.sizes.piece), end)
            at = end
        return bytes(self._outline)

    def string_end(self, at: int) -> int:
        """Behind the closing quote of the string that begins at `at`. Raises InvalidArgument without a closing quote."""
        at += 1
        while at < self.size:
            end = _end(_INSIDE, self.text, at, min(at + self.sizes.piece, self.size))
            if end < self.size and self.text[end] == _QUOTE:
                return end + 1
            if end == at:
                break  # a backslash is the last byte of all
            at = end
        raise broken_text("Missing a closing quotation mark in string.", self.size)

    def _pass_array(self, at: int) -> int:
        """Cut out the array that begins at `at`; when it is short or holds objects, keep its beginning. Where to go on."""
        scan = _ArrayScan(self, at)
        closed = scan.run()
        if closed and scan.at - at >= self.sizes.array:
            self._put(LongArray(self.text, scan.pieces), scan.at)
        else:
            self._keep(at, scan.at)
        return scan.at

    def _keep(self, start: int, end: int) -> None:
        """Keep a part that begins and ends outside of strings, but for long white space."""
        if end - start > self.sizes.space:
            for found in _SPACES.finditer(self.text, start, end):
                begin, behind = found.span()
                if self.text[begin] != _QUOTE and behind - begin > self.sizes.space:
                    self._append(start, begin)
                    self._outline += b" "
                    self._shifts.append(_Shift(len(self._outline), behind - len(self._outline)))
                    start = behind
        self._append(start, end)

    def _append(self, start: int, end: int) -> None:
        if len(self._outline) + end - start > limits.JSON_OUTLINE_BYTES_MAX:
            raise InvalidArgument(
                f"request JSON has more than {limits.JSON_OUTLINE_BYTES_MAX} bytes besides its arrays of numbers or strings "
                "and its long strings"
            )
        self._outline += self.text[start:end]

    def _put(self, what: LongArray | LongString, end: int) -> None:
        name = f"{self._secret}{len(self.found)}"
        self.found[name] = what
        self._outline += b'"%b"' % name.encode()
        self._shifts.append(_Shift(len(self._outline), end - len(self._outline)))


class _ArrayScan:
    """Finds the pieces of the array that begins at `at`."""

    def __init__(self, cutter: _Cutter, at: int) -> None:
        self.pieces: list[Piece] = []
        self.at = at + 1
        """Behind what was scanned: outside of strings."""
        self._cutter = cutter
        self._text = cutter.text
        self._depth = 1

    def run(self) -> bool:
        """Returns True if it was an array without objects, of which all was scanned."""
        size, sizes = self._cutter.size, self._cutter.sizes
        look = sizes.look
        while True:
            limit = min(self.at + look, size)
            end = self._last_comma(limit)
            depth = self._depth + self._depth_change(self.at, end)
            if end > self.at and depth > 0:
                self.pieces.append(Piece(self.at, end - 1, self._depth, depth))
                self.at, self._depth = end, depth
                look = min(2 * look, sizes.piece)
                continue
            stop, closed = self._closing_bracket(self.at, limit, self._depth)
            if closed:
                self.pieces.append(Piece(self.at, stop, self._depth, 1))
                self.at = stop + 1
                return True
            if stop < limit and self._text[stop] != _QUOTE:
                self.at = stop
                return False
            if limit < size and look < sizes.piece:
                look *= 2
            else:
                closed_behind = self._pass_long_element()
                if closed_behind is not False:
                    return closed_behind is True

    def _last_comma(self, limit: int) -> int:
        """Behind the last comma of the elements before `limit`."""
        window = bytes(self._text[self.at : limit])
        if b'"' in window:
            return _end(_WITH_COMMAS, self._text, self.at, limit)
        stop = _NO_ELEMENT.search(window) if b"{" in window or b"}" in window or b":" in window else None
        return self.at + 1 + window.rfind(b",", 0, len(window) if stop is None else stop.start())

    def _depth_change(self, start: int, end: int) -> int:
        """The number of opening brackets minus closing ones."""
        window = bytes(self._text[start:end])
        if b'"' in window and (b"[" in window or b"]" in window):
            window = _STRINGS.sub(b"", window)
        return window.count(b"[") - window.count(b"]")

    def _closing_bracket(self, at: int, limit: int, depth: int) -> tuple[int, bool]:
        """Returns the end of the array of which `depth` brackets are open at `at`, and True; or the end of the search, and
        False."""
        while True:
            at = _end(_TO_BRACKET, self._text, at, limit)
            if at >= limit:
                return limit, False
            if self._text[at] == _OPEN:
                depth += 1
            elif self._text[at] != _CLOSE:
                return at, False
            else:
                depth -= 1
                if not depth:
                    return at, True
            at += 1

    def _pass_long_element(self) -> bool | None:
        """Pass over an element that is longer than a piece, by white space or as a string, with its brackets and its comma.
        Returns True if the array ended there, None if it holds objects. Raises InvalidArgument for anything else so long."""
        text, size, piece_bytes = self._text, self._cutter.size, self._cutter.sizes.piece
        start = at = self.at
        depth, scalar, string = self._depth, b"", None
        kept: list[bytes] = []
        while at < size:
            behind = _end(_SPACE, text, at, min(at + piece_bytes, size))
            if behind > at:
                at = behind
                continue
            byte = text[at]
            if byte in b"{}:":
                self.at = at
                return None
            if byte == _COMMA or (byte == _CLOSE and depth == 1):
                self.pieces.append(Piece(start, at, self._depth, depth, string, b" ".join(kept)))
                self.at, self._depth = at + 1, depth
                return byte == _CLOSE
            if byte in (_OPEN, _CLOSE):
                depth += 1 if byte == _OPEN else -1
                behind = at + 1
                kept.append(bytes(text[at:behind]))
            elif scalar:
                break
            elif byte == _QUOTE:
                behind = self._cutter.string_end(at)
                if behind - at > piece_bytes:
                    string = LongString(text, at + 1, behind - 1, piece_bytes=piece_bytes)
                scalar = bytes(text[at:behind]) if string is None else b'""'
                kept.append(scalar)
            else:
                behind = _end(_SCALAR, text, at, min(at + piece_bytes, size))
                scalar = bytes(text[at:behind])
                kept.append(scalar)
            if len(kept) > 2 * _BRACKETS_MAX:
                raise broken_text("Arrays are nested too deeply.", at)
            at = behind
        raise broken_text("Missing a comma or ']' after an array element.", at)


def _end(pattern: re.Pattern[bytes], text: memoryview, at: int, limit: int) -> int:
    match = pattern.match(text, at, limit)
    return at if match is None else match.end()
