"""Finds what treelite does not notice in a text file of LightGBM: that its end is missing, or that it counts zeros as missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tpy.errors import Unsupported
from tpy_data.backends.model_file import read_whole

CUT_SHORT: Final = "the file is cut short"

_MISSING_TYPE_ZERO = 1
"""In bits 2 and 3 of a decision's type."""


def check_text(path: Path, model: str) -> None:
    """Raises ValueError for a file that is shorter than its header says, Unsupported for zeros that count as missing: treelite
    takes them for numbers, and gives other answers than LightGBM."""
    text = read_whole(path, model)
    sizes = re.search(rb"^tree_sizes=([\d ]+)$", text, re.MULTILINE)
    trees = text.find(b"\nTree=0")
    if sizes is not None and len(text) - (trees + 1) < sum(map(int, sizes[1].split())):
        raise ValueError(CUT_SHORT)
    for kinds in re.finditer(rb"^decision_type=([\d ]+)$", text, re.MULTILINE):
        if any((int(kind) >> 2) & 3 == _MISSING_TYPE_ZERO for kind in set(kinds[1].split())):
            raise Unsupported(
                f"'{path.name}' counts zeros as missing values (LightGBM's zero_as_missing), which treelite does not: "
                "its answers would be wrong; run it in a model.py (backend 'python')"
            )
