"""The tables that the server prints when it has started, in Triton's manner: backends, models, options."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH = 160


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A boxed table as plain text. Cells are shown as they are, control characters excepted, long ones wrapped."""
    shown = Table(*columns, box=box.ASCII, show_lines=False, pad_edge=True)
    for row in rows:
        shown.add_row(*(Text("".join(c if c.isprintable() else " " for c in cell)) for cell in row))
    text = io.StringIO()
    Console(file=text, width=_WIDTH, color_system=None, force_terminal=False, legacy_windows=False).print(shown)
    return text.getvalue().rstrip("\n")
