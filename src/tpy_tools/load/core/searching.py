"""The order in which levels are measured: one after another, or by bisection."""

from __future__ import annotations

from typing import Protocol

from tpy_tools.load.core.ranges import LevelRange


class Search(Protocol):
    """Says which level is measured next."""

    def next(self, *, met: bool) -> float | None:
        """The level to measure now, None: the end. `met`: the latency of the one before was not above the threshold."""
        ...


class LinearSearch:
    """All levels of a range from the start on, until one does not meet the threshold."""

    def __init__(self, levels: LevelRange) -> None:
        self._levels = levels
        self._following: float | None = levels.start

    def next(self, *, met: bool) -> float | None:
        level = self._following
        if level is None or not met:
            return None
        self._following = self._levels.after(level)
        return level


class BinarySearch:
    """The highest level that meets the threshold, as perf_analyzer searches it: the start, the end, then the middle between the
    highest that met it and the lowest that did not, until they are no more than the step apart. `whole`: whole numbers only."""

    def __init__(self, levels: LevelRange, *, whole: bool) -> None:
        self._good: float | None = None
        self._bad: float | None = None
        self._start = levels.start
        self._end = levels.end
        self._step = levels.step
        self._whole = whole
        self._asked: float | None = None

    def next(self, *, met: bool) -> float | None:
        if self._asked is None:
            return self._ask(self._start)
        if met:
            self._good = self._asked
        else:
            self._bad = self._asked
        if self._good is None or self._good >= self._end:
            return None
        if self._bad is None:
            return self._ask(self._end)
        if self._bad - self._good <= self._step:
            return None
        middle = (self._good + self._bad) / 2
        return self._ask(float(int(middle)) if self._whole else middle)

    def _ask(self, level: float) -> float:
        self._asked = level
        return level
