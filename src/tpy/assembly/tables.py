"""Tables as Triton's log has them: a box of `+`, `-` and `|`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

_WRAPPED_CHARACTERS_MIN = 20


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, characters_max: int | None = None) -> str:
    """A boxed table as plain text. A cell has as many lines as its text; control characters are shown as spaces. With
    `characters_max`, the last column is wrapped where its lines would be longer."""
    cells = [[_lines(cell) for cell in row] for row in (columns, *rows)]
    widths = _widths(cells)
    if characters_max is not None:
        room = characters_max - (sum(widths[:-1]) + 3 * len(widths) + 1)
        for row in cells:
            row[-1] = _wrapped(row[-1], max(room, _WRAPPED_CHARACTERS_MIN))
        widths = _widths(cells)
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    head, *body = (_shown(row, widths) for row in cells)
    return "\n".join([rule, head, rule, *body, rule])


def _widths(cells: Sequence[Sequence[Sequence[str]]]) -> list[int]:
    return [max(len(line) for row in cells for line in row[column]) for column in range(len(cells[0]))]


def _wrapped(lines: Sequence[str], characters_max: int) -> list[str]:
    return [
        piece
        for line in lines
        for piece in textwrap.wrap(line, characters_max, break_on_hyphens=False, drop_whitespace=True) or [""]
    ]


def _lines(cell: str) -> list[str]:
    return ["".join(c if c.isprintable() else " " for c in line) for line in cell.splitlines()] or [""]


def _shown(row: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    padded = (
        [f" {line:<{width}} " for line in (*lines, *[""] * (max(map(len, row)) - len(lines)))]
        for lines, width in zip(row, widths, strict=True)
    )
    return "\n".join(f"|{'|'.join(line)}|" for line in zip(*padded, strict=True))
