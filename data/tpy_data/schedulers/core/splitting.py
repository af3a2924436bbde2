"""Splitting: which sizes are better executed as several batches, by what these take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tpy_data.schedulers.core.cost_curve import CostCurve

_PARTS_MAX: Final = 12
_ROW: Final = 1 << 16
"""Times by row are in this part of a nanosecond."""


def quickest(curve: CostCurve) -> list[int]:
    """The known cells that take less time by row than those next to them, at most _PARTS_MAX: only these are worth splitting
    into."""
    known = curve.known()
    found: list[tuple[int, int]] = []
    before_ns = curve.cell_ns(known[0]) * _ROW // known[0] if known else 0
    for cell, after in pairwise(known):
        row_ns = curve.cell_ns(cell) * _ROW // cell
        if row_ns <= before_ns and row_ns < curve.cell_ns(after) * _ROW // after:
            found.append((row_ns, cell))
        before_ns = row_ns
    return sorted(cell for _, cell in sorted(found)[:_PARTS_MAX])


def splits(curve: CostCurve, parts: Sequence[int], largest: int, price: int, gain_permille_min: int, ns_min: int) -> list[int]:
    """By cell up to the largest, the cell that is sent of it first: one of `parts`, or all of it. A split saves time of the
    requests in it and of `price` others that wait behind it, at least so much of what those in it need together. What takes less
    than `ns_min` is not split."""
    sent = list(range(largest + 1))
    values = [0] * (largest + 1)
    for cell in sent[1:]:
        values[cell] = whole = (cell + price) * curve.cell_ns(cell)
        if curve.cell_ns(cell) < ns_min:
            continue
        gain_min = cell * curve.cell_ns(cell) * gain_permille_min
        for part in parts:
            if part >= cell:
                break
            value = (cell + price) * curve.cell_ns(part) + values[cell - part]
            if value < values[cell] and (whole - value) * 1000 > gain_min:
                values[cell], sent[cell] = value, part
    return sent
