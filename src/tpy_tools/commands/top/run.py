"""The two ways of `tpy top`: live on a terminal, and as text for scripts."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Final

import msgspec

from tpy_tools.commands.client import ClientError
from tpy_tools.commands.top.core.rows import ModelRow, ServerSnapshot, in_order, latencies_of, rows_between
from tpy_tools.commands.top.core.table import header, line, summary
from tpy_tools.commands.top.core.view import View, frame, lines_above, moved, page_of, pressed, shown
from tpy_tools.commands.top.screen import Screen
from tpy_tools.commands.top.source import ServerSource

FIRST_INTERVAL_S: Final = 0.5
"""Until a live table has its first rates."""
EXPLAINED_MAX: Final = 100
"""Rows of a table for scripts whose engines are asked."""
TEXT_WIDTH: Final = 160
"""Columns of a table that goes into a file."""


def once(source: ServerSource, *, sort: str, interval_s: float, as_json: bool = False) -> list[str]:
    """The table of one interval, or one line of JSON. Raises ClientError."""
    before = source.snapshot()
    time.sleep(interval_s)
    after = source.snapshot()
    if not as_json:
        return _text(source, before, after, sort)
    rows = in_order(rows_between(before, after), sort)
    document = {"seconds": after.at_s - before.at_s, "models": source.explain(rows)}
    return [msgspec.json.encode(document).decode()]


def follow(source: ServerSource, *, sort: str, interval_s: float) -> None:
    """Print a table for each interval, where output is not a terminal, until interrupted; a server that is away costs a line."""
    before: ServerSnapshot | None = None
    while True:
        try:
            after = source.snapshot()
            if before is not None:
                print("\n".join(_text(source, before, after, sort)), "", sep="\n", flush=True)
            before = after
        except ClientError as error:
            print(error, flush=True)
        time.sleep(interval_s)


def live(source: ServerSource, url: str, *, sort: str, interval_s: float) -> None:
    """Show the table until q or Ctrl-C."""
    with Screen() as screen:
        _Live(source, screen, url, View(sort=sort), interval_s).run()


class _Live:
    def __init__(self, source: ServerSource, screen: Screen, url: str, view: View, interval_s: float) -> None:
        self._source = source
        self._screen = screen
        self._url = url
        self._view: View | None = view
        self._interval_s = interval_s
        self._before: ServerSnapshot | None = None
        self._rows: list[ModelRow] = []
        self._above: list[str] = ["asking..."]

    def run(self, first_s: float = FIRST_INTERVAL_S) -> None:
        """Until q; the second table is there after `first_s`."""
        wait_s = first_s
        while self._view is not None:
            self._refresh()
            until_s = time.monotonic() + wait_s
            wait_s = self._interval_s
            while self._view is not None:
                self._draw(self._view)
                key = self._screen.key(until_s - time.monotonic())
                if not key:
                    break
                self._press(key)

    def _refresh(self) -> None:
        try:
            after = self._source.snapshot()
        except ClientError as error:
            self._rows, self._above = [], [f"{error}", "trying again"]
            return
        self._rows = rows_between(self._before, after)
        self._above = summary(self._rows, latencies_of(after), after.metrics, after.trouble)
        self._before = after
        self._sort_and_explain()

    def _sort_and_explain(self) -> None:
        """Put the rows in order, and ask the engines of those on the screen."""
        view = self._view
        if view is None:
            return
        self._rows = in_order(self._rows, view.sort, reverse=view.reverse)
        page = page_of(self._above, self._screen.size[1])
        view = self._view = moved(view, 0, page=page, count=len(self._rows))
        try:
            asked = self._source.explain(shown(view, self._rows, page))
        except ClientError:
            return  # it has gone since the snapshot, and the next one will say so
        self._rows[view.offset : view.offset + page] = asked

    def _press(self, key: str) -> None:
        page = page_of(self._above, self._screen.size[1])
        before, self._view = self._view, pressed(self._view or View(), key, page=page, count=len(self._rows))
        if self._view is not None and self._view != before:
            self._sort_and_explain()

    def _draw(self, view: View) -> None:
        width, height = self._screen.size
        title = f"tpy top  {self._url}  {time.strftime('%H:%M:%S')}  every {self._interval_s:g} s"
        lines = frame(title, self._above, self._rows, view, width=width, height=height)
        self._screen.draw(lines, bold=1 + len(lines_above(self._above, height)))


def _text(source: ServerSource, before: ServerSnapshot, after: ServerSnapshot, sort: str) -> list[str]:
    width = max(shutil.get_terminal_size().columns, 80) if sys.stdout.isatty() else TEXT_WIDTH
    rows = in_order(rows_between(before, after), sort)
    above = summary(rows, latencies_of(after), after.metrics, after.trouble)
    rows[:EXPLAINED_MAX] = source.explain(rows[:EXPLAINED_MAX])
    interval = f"over {after.at_s - before.at_s:.1f} s"
    return [*above, interval, header(width, sort), *(line(row, width) for row in rows)]
