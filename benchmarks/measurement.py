"""Measurements: single values, and their summary."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

import msgspec


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One value of one contender in one round.

    `row` names the part of the program that measured it, `case` what was varied within the row ("16 connections"), `metric` what
    the value is, `unit` its unit. `baseline` is the contender of the same row, case and metric that ratios are taken against; it
    need not have been measured.
    """

    row: str
    case: str
    metric: str
    unit: str
    contender: str
    baseline: str
    round: int
    value: float


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One contender in one line of the table: the median of its rounds, their extremes, the ratio of medians to the baseline."""

    contender: str
    median: float
    minimum: float
    maximum: float
    rounds: int
    ratio: float | None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: the same metric of the same case for all contenders."""

    row: str
    case: str
    metric: str
    unit: str
    baseline: str
    cells: tuple[Cell, ...]

    def cell(self, contender: str) -> Cell | None:
        """The cell of `contender`, None when it was not measured."""
        return next((cell for cell in self.cells if cell.contender == contender), None)


def summarise(measurements: Iterable[Measurement]) -> tuple[Line, ...]:
    """The lines of the table, in the order in which their first values were measured."""
    values: dict[tuple[str, str, str, str, str], dict[str, list[float]]] = {}
    for one in measurements:
        line = values.setdefault((one.row, one.case, one.metric, one.unit, one.baseline), {})
        line.setdefault(one.contender, []).append(one.value)
    return tuple(
        Line(row=row, case=case, metric=metric, unit=unit, baseline=baseline, cells=_cells(contenders, baseline))
        for (row, case, metric, unit, baseline), contenders in values.items()
    )


def _cells(contenders: Mapping[str, list[float]], baseline: str) -> tuple[Cell, ...]:
    base = statistics.median(contenders[baseline]) if baseline in contenders else 0.0
    return tuple(
        Cell(
            contender=contender,
            median=statistics.median(values),
            minimum=min(values),
            maximum=max(values),
            rounds=len(values),
            ratio=statistics.median(values) / base if base else None,
        )
        for contender, values in contenders.items()
    )
