"""Searches. Each is a generator: it yields the point to measure next, and is sent the row. A point that is yielded again is
measured once more, and the row is that of both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator

from tpy_tools.analyze.core.goal import Goal, Row
from tpy_tools.analyze.core.space import CandidateConfig, Point, SettingRange, Space

Search = Generator[Point, Row, None]

_PATIENCE = 2
"""Steps without a gain before a direction is given up: one more client may just wait while another is served, and the first
value of a setting may be what the default means."""

_HOPELESS = math.log(1.5)
"""A configuration that is worse by this factor at the concurrency of the best one is not measured at others."""


_SHARE_MAX = 5
"""The quick search takes a fifth of the measurements of an exhaustive one at most, the last ones included."""

_MEASUREMENTS_MIN = 24
"""Of the quick search, where a fifth is fewer."""

_CONFIRMED_MAX = 8
"""Points that are measured once more in the end, at most."""


def brute(space: Space) -> Search:
    """Every configuration at every concurrency."""
    for candidate in space.all():
        for concurrency in space.concurrencies:
            row = yield Point(candidate, concurrency)
            if row.figures is None:
                break


def quick(space: Space, goal: Goal) -> Search:
    """Hill climbing, with a bounded number of measurements, and a winner that was measured twice."""
    bound = max(_MEASUREMENTS_MIN, points_of(space) // _SHARE_MAX - _CONFIRMED_MAX)
    return confirmed(_bounded(_climb(space, goal), bound), goal)


def points_of(space: Space) -> int:
    """The measurements of an exhaustive search."""
    return sum(1 for _ in space.all()) * len(space.concurrencies)


def _bounded(search: Search, measurements_max: int) -> Search:
    """A search that ends after `measurements_max` different points."""
    rows: dict[Point, Row] = {}
    point = next(search, None)
    while point is not None:
        if point not in rows:
            if len(rows) >= measurements_max:
                return
            rows[point] = yield point
        try:
            point = search.send(rows[point])
        except StopIteration:
            return


def confirmed(search: Search, goal: Goal) -> Search:
    """A search, and then the best point once more, until the best one is one that was measured twice: of many measurements the
    best is often one that was lucky."""
    rows: dict[Point, Row] = {}
    point = next(search, None)
    while point is not None:
        rows[point] = yield point
        try:
            point = search.send(rows[point])
        except StopIteration:
            break
    for _ in range(_CONFIRMED_MAX):
        best = max(rows.values(), key=goal.score, default=None)
        if best is None or best.samples > 1 or not goal.meets(best):
            return
        rows[best.point] = yield best.point


def _climb(space: Space, goal: Goal) -> Search:
    """Hill climbing from the default: in each dimension go on as long as it gets better, until no neighbour is better, nor one
    that differs in two settings (fewer instances with more threads each, say). It is climbed twice, the dimensions in both
    orders: what shares the cores is given most of them by whichever comes first.

    The concurrency is searched for each configuration, from the best one's on.
    """
    climb = _Climb(space, goal)
    start = yield from climb.level(CandidateConfig(), None)
    best = start
    for dimensions in (space.dimensions, space.dimensions[::-1]):
        top = yield from _ascend(climb, start, dimensions)
        best = top if goal.better(top, best) else best
    yield from _ascend(climb, best, space.dimensions, diagonals=True)


def _ascend(
    climb: _Climb, best: Row, dimensions: tuple[SettingRange, ...], *, diagonals: bool = False
) -> Generator[Point, Row, Row]:
    """The top that is reached from a row, by steps in these dimensions in this order."""
    space = climb.space
    while True:
        before = best
        for dimension in dimensions:
            for step in (1, -1):
                best = yield from climb.along(best, space.neighbours(best.point.candidate, dimension, step))
        if best is before and diagonals:
            for candidate in _diagonals(space, best.point.candidate):
                best = yield from climb.along(best, iter([candidate]))
                if best is not before:
                    break
        if best is before:
            return best


def _diagonals(space: Space, candidate: CandidateConfig) -> Iterator[CandidateConfig]:
    """The configurations that are one step away in two dimensions."""
    for one, other in itertools.combinations(space.dimensions, 2):
        for step, other_step in ((-1, 1), (1, -1), (1, 1), (-1, -1)):
            for middle in itertools.islice(space.neighbours(candidate, one, step), 1):
                yield from itertools.islice(space.neighbours(middle, other, other_step), 1)


class _Climb:
    """The configurations that a search has seen, with the best row of each."""

    def __init__(self, space: Space, goal: Goal) -> None:
        self.space = space
        self._goal = goal
        self._seen: dict[CandidateConfig, Row] = {}

    def along(self, best: Row, candidates: Iterator[CandidateConfig]) -> Generator[Point, Row, Row]:
        """The best row of these configurations and of `best`, as far as they are not given up."""
        patience = _PATIENCE
        for candidate in candidates:
            row = yield from self.level(candidate, best)
            if self._goal.better(row, best):
                best, patience = row, _PATIENCE
            else:
                patience -= 1
            if not patience or row.figures is None:
                break
        return best

    def level(self, candidate: CandidateConfig, best: Row | None) -> Generator[Point, Row, Row]:
        """The best concurrency of a configuration: from that of the best row up as long as it gets better, else down."""
        if candidate in self._seen:
            return self._seen[candidate]
        levels = self.space.concurrencies
        start = 0 if best is None else levels.index(best.point.concurrency)
        row = yield Point(candidate, levels[start])
        if best is not None and self._hopeless(row, best):
            return row
        if row.figures is not None:
            higher = yield from self._walk(row, start, 1)
            row = higher if higher is not row else (yield from self._walk(row, start, -1))
        self._seen[candidate] = row
        return row

    def _hopeless(self, row: Row, best: Row) -> bool:
        (kind, score), (best_kind, best_score) = self._goal.score(row), self._goal.score(best)
        return kind == best_kind == 0 and score < best_score - _HOPELESS

    def _walk(self, best: Row, start: int, step: int) -> Generator[Point, Row, Row]:
        at, patience = start + step, _PATIENCE if step > 0 else 1
        while 0 <= at < len(self.space.concurrencies) and patience:
            row = yield Point(best.point.candidate, self.space.concurrencies[at])
            if self._goal.better(row, best):
                best = row
            elif self._goal.meets(best) and not self._goal.meets(row):
                break
            else:
                patience -= 1
            at += step
        return best
