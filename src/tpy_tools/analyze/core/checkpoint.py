"""Measured rows as text, so that an interrupted search goes on: a line of JSON each, behind one that says of what they are."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy_tools.analyze.core.goal import Row
from tpy_tools.analyze.core.space import Point

FORMAT = "tpy-analyze"
VERSION = 1


class CheckpointError(Exception):
    """The text is not a checkpoint, has another version, or is of other measurements. `str()` says which."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line. `measured`: everything that two measurements must share to be comparable."""

    format: str = FORMAT
    version: int = VERSION
    measured: Mapping[str, str] = {}


def header_line(measured: Mapping[str, str]) -> bytes:
    """The first line of a checkpoint."""
    return msgspec.json.encode(Header(measured=measured)) + b"\n"


def row_line(row: Row) -> bytes:
    """A line of it."""
    return msgspec.json.encode(row) + b"\n"


def read_checkpoint(content: bytes, measured: Mapping[str, str]) -> tuple[dict[Point, Row], int]:
    """The rows, and the bytes that are whole: a last line that was cut off is left out. Raises CheckpointError."""
    end = content.rfind(b"\n") + 1
    lines = content[:end].split(b"\n")[:-1]
    if not lines:
        return {}, 0
    try:
        header = msgspec.json.decode(lines[0], type=Header)
    except msgspec.MsgspecError:
        raise CheckpointError("line 1 is not the beginning of a checkpoint") from None
    if header.format != FORMAT or header.version != VERSION:
        raise CheckpointError(f"expected {FORMAT} version {VERSION}, got {header.format} version {header.version}")
    for name in sorted({*measured, *header.measured}):
        had, has = header.measured.get(name), measured.get(name)
        if had != has:
            raise CheckpointError(f"its rows were measured with another {name}: {_difference(had, has)}")
    rows: dict[Point, Row] = {}
    for number, line in enumerate(lines[1:], 2):
        try:
            row = msgspec.json.decode(line, type=Row)
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"line {number}: {error}") from None
        rows[row.point] = row
    return rows, end


def _difference(had: str | None, has: str | None) -> str:
    """Both, without what is the same in lists of JSON objects."""
    try:
        before, now = (msgspec.json.decode(text or "", type=list[dict[str, object]]) for text in (had, has))
    except msgspec.MsgspecError:
        return f"{had}, now {has}"
    if len(before) != len(now):
        return f"{had}, now {has}"
    pairs = [
        f"{name} {old.get(name)!r}, now {new.get(name)!r}"
        for old, new in zip(before, now, strict=True)
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    return "; ".join(pairs)
