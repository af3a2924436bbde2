"""The curves: what is varied, what it costs; and their points."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from benchmarks.machine import Machine

CPU = "CPU per request, us"


class Curve(msgspec.Struct, frozen=True):
    """A plot and a table. `name` is the plot's file name too. `log_y`: costs differ so much that only a logarithm shows all."""

    name: str
    title: str
    x: str
    y: str
    log_y: bool = False


CURVES: tuple[Curve, ...] = (
    Curve("batch", "Batch size", "rows", CPU),
    Curve("concurrency", "Concurrency", "connections, all busy", CPU),
    Curve("size", "Tensor size", "bytes in, and as many out", CPU, log_y=True),
    Curve("models", "Idle models", "models loaded, one of them busy", CPU),
    Curve("models-idle", "Idle models: the server at rest, polling once a second", "models loaded", "CPU, ms per second"),
    Curve("models-memory", "Idle models: memory", "models loaded", "resident, MB"),
    Curve("connections", "Connections", "connections", CPU),
    Curve("connections-memory", "Connections: memory", "idle connections", "resident, MB"),
    Curve("queue", "Queue length, scheduling alone", "requests waiting", CPU),
    Curve("sequences", "Live sequences, scheduling alone", "live sequences", CPU),
)


class Point(msgspec.Struct, frozen=True):
    """One value: `y` at `x` of a series of a curve (a curve's name)."""

    curve: str
    series: str
    x: int
    y: float


class GrowthReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report as JSON. `points` has every round; `failures` says which curves are missing, and why."""

    machine: Machine
    rounds: int
    seconds: int
    points: Sequence[Point]
    failures: Sequence[str] = ()


def series_of(points: Iterable[Point], curve: str) -> Mapping[str, Mapping[int, float]]:
    """Series -> x -> median of the rounds, in the order of measurement, x ascending."""
    values: dict[str, dict[int, list[float]]] = {}
    for point in points:
        if point.curve == curve:
            values.setdefault(point.series, {}).setdefault(point.x, []).append(point.y)
    return {name: {x: statistics.median(line[x]) for x in sorted(line)} for name, line in values.items()}
