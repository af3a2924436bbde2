"""JSON of documents with much text, written in pieces: no step holds the interpreter for more than some milliseconds."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tpy.units import KIB

_PIECE_CHARACTERS = 256 * KIB
"""Of text, what is written at once: two milliseconds at worst."""


def write_long(document: object, *, ascii_only: bool = True, indent: int | None = None) -> str:
    """The document as JSON, as json.dumps writes it; one with much text is never `ascii_only`, which would make it
    up to six times as long. Raises RecursionError for one that is nested too deeply."""
    if not _has_much_text(document):
        return json.dumps(document, ensure_ascii=ascii_only, indent=indent)
    return "".join(pieces_of(document, ascii_only=False, indent=indent))


def _has_much_text(document: object) -> bool:
    pending, room = [document], _PIECE_CHARACTERS
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            room -= len(value)
            if room < 0:
                return True
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
    return False


def pieces_of(value: object, *, ascii_only: bool = True, indent: int | None = None, _depth: int = 1) -> Iterator[str]:
    """The JSON in pieces."""
    line = "" if indent is None else "\n" + " " * indent * _depth
    end = line[: -indent or None] if indent else line
    if isinstance(value, str):
        yield '"'
        for at in range(0, len(value), _PIECE_CHARACTERS):
            yield json.dumps(value[at : at + _PIECE_CHARACTERS], ensure_ascii=ascii_only)[1:-1]
        yield '"'
    elif isinstance(value, dict) and value:
        before = "{" + line
        for name, member in value.items():
            key = name if isinstance(name, str) else json.dumps(name)
            yield f"{before}{json.dumps(key, ensure_ascii=ascii_only)}: "
            yield from pieces_of(member, ascii_only=ascii_only, indent=indent, _depth=_depth + 1)
            before = ", " if indent is None else "," + line
        yield end + "}"
    elif isinstance(value, list | tuple) and value:
        before = "[" + line
        for element in value:
            yield before
            yield from pieces_of(element, ascii_only=ascii_only, indent=indent, _depth=_depth + 1)
            before = ", " if indent is None else "," + line
        yield end + "]"
    else:
        yield json.dumps(value)
