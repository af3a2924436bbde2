"""Parses JSON text as a whole, refusing in Triton's words, with a pause for Python's garbage collector while a piece is parsed.

Nested arrays are lists that are all alive, and making them starts collection after collection, each of which walks all that are
there already, with the interpreter locked. Nothing there is garbage, so nothing is lost. The pause is as long as one piece takes:
while large requests come one after another, what others left behind is still collected between the pieces.
"""

from __future__ import annotations

import gc
import json
import math
import re
import threading
from collections.abc import Callable
from types import TracebackType

import orjson

from tpy.errors import InvalidArgument
from tpy.limits import JSON_EXPLAIN_BYTES_MAX
from tpy.messages.allowed import with_hint
from tpy.units import KIB


class CollectorPause:
    """A context manager for any number of threads at a time: the collector runs again when the last of them has left, if it ran
    before the first came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._ran = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._ran = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._ran:
                gc.enable()


UINT64_MAX = 2**64 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_PAUSE = CollectorPause()
_QUICK_BYTES_MAX = 16 * KIB
"""Of larger texts the lists and objects would start several collections."""

_SHOWN_BYTES = 24
"""Of a broken text, before and after the place."""

_INTEGER_DIGITS_MAX = len(str(UINT64_MAX))


def parse_json(text: bytes | bytearray | memoryview, offset_of: Callable[[int], int] | None = None) -> object:
    """The JSON value in `text`; the literals NaN, Infinity and -Infinity are numbers. Raises InvalidArgument with Triton's text.
    `offset_of` gives the place in the whole document for one in `text`."""
    try:
        document: object = orjson.loads(text) if len(text) <= _QUICK_BYTES_MAX else _load(text)
    except orjson.JSONDecodeError as error:
        message, position = error.msg, error.pos
    else:
        return document
    return _parse_with_literals(bytes(text), message, position, offset_of)


def _load(text: bytes | bytearray | memoryview) -> object:
    with _PAUSE:
        return orjson.loads(text)


def _parse_with_literals(text: bytes, message: str, position: int, offset_of: Callable[[int], int] | None) -> object:
    """Returns a document that orjson refused, read by a slower parser if it only has number literals that orjson does not
    know."""
    if b"NaN" in text or b"Infinity" in text:
        try:
            document: object = json.loads(text.decode(), parse_int=_integer, parse_float=_finite)
            if _SURROGATE_ESCAPE.search(text):
                orjson.dumps(document)  # raises for half a surrogate pair, which the slow parser lets through
            return document
        except (ValueError, TypeError, RecursionError):
            pass
    from tpy.frontends.http.codec.json_errors import first_error  # most clients send JSON

    found = first_error(text) if len(text) <= JSON_EXPLAIN_BYTES_MAX else None
    what, at = found if found is not None else (f"{message}.", position)
    if offset_of is None:
        raise broken_text(what, at, hint=f"expected JSON, got {_around(text, at)}")
    raise broken_text(what, offset_of(at))


def broken_text(problem: str, at: int, *, hint: str = "") -> InvalidArgument:
    """The refusal that says what is wrong with the text at byte `at` of the document."""
    return InvalidArgument(with_hint(f"failed to parse the request JSON buffer: {problem} at {at}", hint))


def _around(text: bytes, at: int) -> str:
    """The text about a place, for people; the place is marked."""
    if not text:
        return "no body"
    before, after = (
        "".join(c if c.isprintable() else " " for c in part.decode("utf-8", "replace"))
        for part in (text[max(0, at - _SHOWN_BYTES) : at], text[at : at + _SHOWN_BYTES])
    )
    return f"{'...' * (at > _SHOWN_BYTES)}{before} >>> {after}{'...' * (at + _SHOWN_BYTES < len(text))}"


def _integer(digits: str) -> int | float:
    """Integers of 64 bits stay what they are, larger ones are floats, as in the fast parser."""
    if len(digits) > _INTEGER_DIGITS_MAX:
        return _finite(digits)
    value = int(digits)
    return value if INT64_MIN <= value <= UINT64_MAX else float(digits)


def _finite(digits: str) -> float:
    """Raises ValueError for a number that no double holds, as the fast parser; infinities are written as literals only."""
    value = float(digits)
    if math.isinf(value):
        raise ValueError("number too big to be stored in double")
    return value
