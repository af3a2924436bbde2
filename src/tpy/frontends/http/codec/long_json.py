"""JSON of documents with long strings, written in pieces: no step holds the interpreter for more than some
milliseconds."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tpy.units import KIB

_PIECE_CHARACTERS = 256 * KIB
"""Of a string, what is written at once: two milliseconds at worst."""


def write_long(document: object) -> str:
    """The document as JSON. Raises RecursionError for one that is nested too deeply."""
    return "".join(pieces_of(document)) if _has_long_string(document) else json.dumps(document)


def _has_long_string(document: object) -> bool:
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            if len(value) > _PIECE_CHARACTERS:
                return True
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return False


def pieces_of(value: object) -> Iterator[str]:
    """The JSON in pieces."""
    if isinstance(value, str) and len(value) > _PIECE_CHARACTERS:
        yield '"'
        for at in range(0, len(value), _PIECE_CHARACTERS):
            yield json.dumps(value[at : at + _PIECE_CHARACTERS])[1:-1]
        yield '"'
    elif isinstance(value, dict):
        before = "{"
        for name, member in value.items():
            yield f"{before}{json.dumps(name)}: "
            yield from pieces_of(member)
            before = ", "
        yield "}" if value else "{}"
    elif isinstance(value, list):
        before = "["
        for element in value:
            yield before
            yield from pieces_of(element)
            before = ", "
        yield "]" if value else "[]"
    else:
        yield json.dumps(value)
