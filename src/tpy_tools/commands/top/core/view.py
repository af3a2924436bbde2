"""The part of a table that a person looks at, and what keys do to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tpy_tools.commands.top.core.rows import SORT_KEYS, ModelRow
from tpy_tools.commands.top.core.table import header, line

_UP, _DOWN, _PAGE_UP, _PAGE_DOWN, _BEGIN, _END = "\x1b[A", "\x1b[B", "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F"

_OTHER_LINES: Final = 3
"""Title, header, and the line of keys."""

_ROWS_MIN: Final = 3
KEYS_HELP: Final = "q quit  s sort  r reverse  arrows and page keys scroll"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """`offset` rows are above the screen. `sort` is a key of SORT_KEYS."""

    sort: str = "rate"
    reverse: bool = False
    offset: int = 0


def pressed(view: View, key: str, *, page: int, count: int) -> View | None:
    """The view after a key, where `page` of `count` rows are on the screen; None: quit."""
    if key in ("q", "Q", "\x03", "\x04"):
        return None
    names = list(SORT_KEYS)
    if key == "s":
        return View(sort=names[(names.index(view.sort) + 1) % len(names)], reverse=view.reverse)
    if key == "r":
        return View(sort=view.sort, reverse=not view.reverse)
    moves = {_UP: -1, "k": -1, _DOWN: 1, "j": 1, _PAGE_UP: -page, _PAGE_DOWN: page, " ": page, _BEGIN: -count, _END: count}
    return moved(view, moves.get(key, 0), page=page, count=count)


def moved(view: View, by: int, *, page: int, count: int) -> View:
    """The view `by` rows further down, as far as there are rows."""
    return msgspec.structs.replace(view, offset=max(0, min(view.offset + by, count - page)))


def shown(view: View, rows: Sequence[ModelRow], page: int) -> Sequence[ModelRow]:
    """The rows on a screen that has room for `page`."""
    return rows[view.offset : view.offset + page]


def frame(title: str, above: Sequence[str], rows: Sequence[ModelRow], view: View, *, width: int, height: int) -> list[str]:
    """The lines of a screen, none wider than it; `rows` are all, in order."""
    page = page_of(above, height)
    above = lines_above(above, height)
    last = min(len(rows), view.offset + page)
    place = f"{view.offset + 1} to {last} of {len(rows)}  " if len(rows) > page else ""
    lines = [title, *above, header(width, view.sort), *(line(row, width) for row in shown(view, rows, page))]
    lines = lines[: height - 1] + [""] * (height - 1 - len(lines))
    order = f"by {view.sort}{', reversed' if view.reverse else ''}  "  # its column may be one that did not fit
    return [text[:width] for text in (*lines, place + order + KEYS_HELP)]


def page_of(above: Sequence[str], height: int) -> int:
    """The number of rows that fit below a title, these lines and the header, and above the line of keys."""
    return max(1, height - len(lines_above(above, height)) - _OTHER_LINES)


def lines_above(above: Sequence[str], height: int) -> Sequence[str]:
    """Those of the lines above the table that leave room for some rows of it."""
    return above[: max(int(height > _OTHER_LINES + 1), height - _OTHER_LINES - _ROWS_MIN)]
