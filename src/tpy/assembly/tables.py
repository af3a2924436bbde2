"""Tables as Triton's log has them: a box of `+`, `-` and `|`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A boxed table as plain text. A cell has as many lines as its text; control characters are shown as spaces."""
    cells = [[_lines(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(line) for row in cells for line in row[column]) for column in range(len(columns))]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    head, *body = (_shown(row, widths) for row in cells)
    return "\n".join([rule, head, rule, *body, rule])


def _lines(cell: str) -> list[str]:
    return ["".join(c if c.isprintable() else " " for c in line) for line in cell.splitlines()] or [""]


def _shown(row: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    padded = (
        [f" {line:<{width}} " for line in (*lines, *[""] * (max(map(len, row)) - len(lines)))]
        for lines, width in zip(row, widths, strict=True)
    )
    return "\n".join(f"|{'|'.join(line)}|" for line in zip(*padded, strict=True))
