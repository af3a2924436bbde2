"""CostCurve: how long an instance takes for a batch, by its rows, as far as that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tpy.limits.tuning import CURVE_AGE_BATCHES, CURVE_CELLS_MAX, CURVE_MEMORY, KNOWN_BATCHES_MIN
from tpy.messages import CurvePoint


class _Cell:
    """The batches of one size. It is known from KNOWN_BATCHES_MIN of them on until it is forgotten."""

    __slots__ = ("count", "is_known", "mean_ns", "variance")

    def __init__(self, count: int = 0, mean_ns: int = 0, variance: int = 0) -> None:
        self.count = count
        self.is_known = count >= KNOWN_BATCHES_MIN
        self.mean_ns = mean_ns
        self.variance = variance

    def add(self, took_ns: int) -> None:
        """One more batch. One that is far out, because the machine did something else, counts as four times the mean."""
        if self.is_known:
            took_ns = min(took_ns, 4 * self.mean_ns)
        self.count = min(self.count + 1, CURVE_MEMORY)
        self.is_known = self.is_known or self.count >= KNOWN_BATCHES_MIN
        error_ns = took_ns - self.mean_ns
        self.mean_ns += error_ns // self.count
        if self.count > 1:
            self.variance += (error_ns * error_ns - self.variance) // self.count


class CostCurve:
    """The mean time of each size, made to rise: a larger batch never takes less, so where it seems to, the sizes are pooled.

    Up to CURVE_CELLS_MAX sizes are told apart; with a larger `batch_size_max` a cell has several, and stands for its largest.
    Between two sizes that were seen the time is interpolated, below the smallest it is that of the smallest, and beyond the
    largest it grows in proportion: what was not measured is rather thought too long.
    """

    __slots__ = ("_added", "_cells", "_times_ns", "batch_size_max", "width")

    def __init__(self, batch_size_max: int, points: Iterable[CurvePoint] = ()) -> None:
        """`points` are an earlier curve's. They count as little as can be known."""
        self.batch_size_max = batch_size_max
        self.width = -(-batch_size_max // CURVE_CELLS_MAX)
        self._cells: dict[int, _Cell] = {}
        self._added = 0
        for point in points:
            if 0 < point.rows <= batch_size_max and point.mean_ns > 0 and point.count > 0:
                count = min(point.count, KNOWN_BATCHES_MIN)
                self._cells[self.cell_of(point.rows)] = _Cell(count, point.mean_ns, point.deviation_ns**2)
        self._times_ns = self._fit()

    def cell_of(self, rows: int) -> int:
        """The cell of a size."""
        if 0 < rows <= self.batch_size_max:
            return rows if self.width == 1 else -(-rows // self.width)
        return -(-max(1, min(rows, self.batch_size_max)) // self.width)

    def add(self, rows: int, took_ns: int) -> None:
        """A batch of `rows` rows took `took_ns`. Counts from the next `fit` on."""
        cell = self._cells.setdefault(self.cell_of(rows), _Cell())
        cell.add(took_ns)
        self._added += 1
        if self._added == CURVE_AGE_BATCHES:
            self._added = 0
            for number, each in list(self._cells.items()):
                each.count //= 2
                if each.count == 0 and len(self._cells) > 1:
                    del self._cells[number]

    def fit(self) -> None:
        """Have what was added count."""
        self._times_ns = self._fit()

    @property
    def is_empty(self) -> bool:
        """True until the first fit with a batch."""
        return not self._times_ns

    def known(self) -> list[int]:
        """The cells that were seen often enough to rest a decision on, the smallest first."""
        return sorted(number for number, cell in self._cells.items() if cell.is_known)

    def is_known(self, rows: int) -> bool:
        """True if batches of this size were seen so often."""
        cell = self._cells.get(self.cell_of(rows))
        return cell is not None and cell.is_known

    def cell_ns(self, cell: int) -> int:
        """The time of a batch of a cell; 0: nothing is known at all."""
        return self._times_ns[cell] if self._times_ns else 0

    def time_ns(self, rows: int) -> int:
        """The time for `rows` rows, in several batches where one cannot hold them; 0: nothing is known at all."""
        if not self._times_ns:
            return 0
        full, rest = divmod(rows, self.batch_size_max)
        return full * self._times_ns[-1] + self._times_ns[-(-rest // self.width)]

    def points(self) -> tuple[CurvePoint, ...]:
        """The fitted curve where it was seen, the smallest size first."""
        return tuple(
            CurvePoint(
                min(number * self.width, self.batch_size_max), self.cell_ns(number), math.isqrt(max(0, cell.variance)), cell.count
            )
            for number, cell in sorted(self._cells.items())
        )

    def _fit(self) -> Sequence[int]:
        """The time by cell, that of no rows first."""
        seen = sorted(self._cells.items())
        if not seen:
            return ()
        fitted = rising([(cell.mean_ns, max(1, cell.count)) for _, cell in seen])
        times_ns = [0] + [0] * self.cell_of(self.batch_size_max)
        before, before_ns = 0, fitted[0]
        for (number, _), ns in zip(seen, fitted, strict=True):
            for cell in range(before + 1, number + 1):
                times_ns[cell] = before_ns + (ns - before_ns) * (cell - before) // (number - before)
            before, before_ns = number, ns
        for cell in range(before + 1, len(times_ns)):
            times_ns[cell] = before_ns * cell // before
        return times_ns


def rising(means: Sequence[tuple[int, int]]) -> list[int]:
    """The sequence nearest to these values, with their weights, that never falls (pool adjacent violators)."""
    pools: list[tuple[int, int, int]] = []  # sum, weight, number of values
    for value, weight in means:
        total, number = value * weight, 1
        while pools and pools[-1][0] * weight >= total * pools[-1][1]:
            before = pools.pop()
            total, weight, number = total + before[0], weight + before[1], number + before[2]
        pools.append((total, weight, number))
    return [total // weight for total, weight, number in pools for _ in range(number)]
