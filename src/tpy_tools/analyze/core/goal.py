"""The order of measurements: objectives with weights, under constraints, in Model Analyzer's names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tpy_tools.analyze.core.space import CandidateConfig, Point

MARGIN = 1.02
"""A measurement is better than another when it is so by this factor: two of the same thing differ by about as much."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a measured point: inferences per second, milliseconds, megabytes."""

    throughput: float
    avg_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    batch: float = 0.0
    """Inferences per execution."""

    memory_mb: float | None = None
    gpu_memory_mb: float | None = None
    responses_per_s: float | None = None
    first_p99_ms: float | None = None
    between_p99_ms: float | None = None
    """Of models that answer a request with several responses: their rate, the time to the first, and that between two."""

    errors: int = 0
    stable: bool = True


def together(parts: Sequence[Figures]) -> Figures:
    """The figures of several models that were measured at once: sums of what is per second and of memory, the latencies of the
    slowest."""

    def values(field: str) -> list[float]:
        return [value for one in parts if (value := getattr(one, field)) is not None]

    slowest: dict[str, Any] = {field: max(values(field), default=None) for field in _TIMES}
    sums: dict[str, Any] = {field: sum(found) if (found := values(field)) else None for field in _SUMS}
    return Figures(
        batch=max(one.batch for one in parts),
        errors=sum(one.errors for one in parts),
        stable=all(one.stable for one in parts),
        **slowest,
        **sums,
    )


_TIMES = ("avg_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "queue_ms", "compute_ms", "first_p99_ms", "between_p99_ms")
_SUMS = ("throughput", "memory_mb", "gpu_memory_mb", "responses_per_s")


class GoalMetric(msgspec.Struct, frozen=True):
    """A figure that can be an objective or have a bound."""

    field: str
    unit: str
    more_is_better: bool = False

    def of(self, figures: Figures) -> float | None:
        """Its value."""
        value: float | None = getattr(figures, self.field)
        return value


METRICS = {
    "perf_throughput": GoalMetric("throughput", "infer/s", True),
    "perf_latency_avg": GoalMetric("avg_ms", "ms"),
    "perf_latency_p50": GoalMetric("p50_ms", "ms"),
    "perf_latency_p90": GoalMetric("p90_ms", "ms"),
    "perf_latency_p95": GoalMetric("p95_ms", "ms"),
    "perf_latency_p99": GoalMetric("p99_ms", "ms"),
    "cpu_used_ram": GoalMetric("memory_mb", "MB"),
    "gpu_used_memory": GoalMetric("gpu_memory_mb", "MB"),
    "output_token_throughput": GoalMetric("responses_per_s", "responses/s", True),
    "time_to_first_token_p99": GoalMetric("first_p99_ms", "ms"),
    "inter_token_latency_p99": GoalMetric("between_p99_ms", "ms"),
}
"""By Model Analyzer's names; perf_latency_p50 is an addition. A token is a response of a model that answers with several."""


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A bound of a metric."""

    metric: str
    minimum: float | None = None
    maximum: float | None = None

    def excess(self, figures: Figures) -> float:
        """The distance of the figures beyond it, as a share of the bound; 0: they are within."""
        value = METRICS[self.metric].of(figures)
        if value is None:
            return math.inf
        over = 0.0 if self.maximum is None else value / self.maximum - 1 if self.maximum else value
        under = 0.0 if not self.minimum else 1 - value / self.minimum
        return max(over, under, 0.0)

    def __str__(self) -> str:
        bounds = [f">= {self.minimum:g}"] if self.minimum is not None else []
        bounds += [f"<= {self.maximum:g}"] if self.maximum is not None else []
        return f"{self.metric} {' and '.join(bounds)} {METRICS[self.metric].unit}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A point and its figures, or the problem that kept it from being measured. `parts`: those of each model, where several
    were measured at once."""

    point: Point
    figures: Figures | None = None
    parts: Mapping[str, Figures] = {}
    problem: str = ""
    samples: int = 1
    """Measurements whose averages these are."""


def average(row: Row, again: Row) -> Row:
    """A row that has been measured once more."""
    if row.figures is None or again.figures is None:
        return msgspec.structs.replace(again, samples=row.samples + 1)
    parts = {name: _average(figures, again.parts[name], row.samples) for name, figures in row.parts.items()}
    figures = _average(row.figures, again.figures, row.samples)
    return msgspec.structs.replace(again, figures=figures, parts=parts, samples=row.samples + 1)


def _average(one: Figures, other: Figures, weight: int) -> Figures:
    found: dict[str, Any] = {"errors": one.errors + other.errors, "stable": one.stable and other.stable}
    for field in (*_TIMES, *_SUMS, "batch"):
        here, there = getattr(one, field), getattr(other, field)
        found[field] = there if here is None or there is None else (here * weight + there) / (weight + 1)
    return Figures(**found)


Score = tuple[int, float]


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """Objectives with their weights, and constraints. `models`: the goals of models that are measured together, each with the
    `weight` that it has among them; the objectives and constraints of the whole are not used then."""

    objectives: tuple[tuple[str, float], ...] = (("perf_throughput", 1.0),)
    constraints: tuple[Constraint, ...] = ()
    weight: float = 1.0
    models: Mapping[str, Goal] = {}

    def score(self, row: Row) -> Score:
        """Larger is better: what cannot be measured, then what breaks a constraint (by how much), then by the objectives.

        Several objectives: the weighted sum of the logarithms, that is, of relative gains, whatever their units; of several
        models: the same over the models.
        """
        if not self.models:
            return self._score(row.figures)
        scores = {name: goal._score(row.parts.get(name)) for name, goal in self.models.items()}
        kind = min(kind for kind, _ in scores.values())
        if kind < 0:
            return (kind, sum(value for one, value in scores.values() if one == kind))
        total = sum(self.models[name].weight * value for name, (_, value) in scores.items())
        return (0, total / sum(goal.weight for goal in self.models.values()))

    def _score(self, figures: Figures | None) -> Score:
        if figures is None or figures.throughput <= 0:
            return (-2, 0.0)
        if figures.errors:
            return (-1, -math.inf)
        excess = sum(constraint.excess(figures) for constraint in self.constraints)
        if excess > 0:
            return (-1, -excess)
        total = 0.0
        for name, weight in self.objectives:
            value = METRICS[name].of(figures)
            if value is None:
                return (-1, -math.inf)
            gain = math.log(max(value, 1e-9))
            total += weight * (gain if METRICS[name].more_is_better else -gain)
        return (0, total / sum(weight for _, weight in self.objectives))

    def names(self, metric: str) -> bool:
        """True when a metric is an objective or has a bound."""
        own = {name for name, _ in self.objectives} | {one.metric for one in self.constraints}
        return any(goal.names(metric) for goal in self.models.values()) if self.models else metric in own

    def better(self, row: Row, than: Row) -> bool:
        """True when a row is better by more than measurements differ."""
        (kind, value), (other_kind, other) = self.score(row), self.score(than)
        if kind != other_kind:
            return kind > other_kind
        if kind == 0:
            return value - other > math.log(MARGIN)
        return kind == -1 and (1 - value) * MARGIN < 1 - other

    def meets(self, row: Row) -> bool:
        """True when a row was measured and breaks no constraint."""
        return self.score(row)[0] == 0

    def ranked(self, rows: Iterable[Row]) -> list[Row]:
        """The best row of each configuration, the best first."""
        best: dict[CandidateConfig, Row] = {}
        for row in rows:
            held = best.get(row.point.candidate)
            if held is None or self.score(row) > self.score(held):
                best[row.point.candidate] = row
        return sorted(best.values(), key=self.score, reverse=True)

    def broken(self, row: Row) -> Sequence[str]:
        """The reasons for which a row is not eligible."""
        if row.figures is None:
            return [row.problem]
        if not self.models:
            return self._broken(row.figures, row.problem)
        parts = ((name, goal._broken(row.parts[name], row.problem)) for name, goal in self.models.items() if name in row.parts)
        return [f"{name}: {reason}" for name, reasons in parts for reason in reasons]

    def _broken(self, figures: Figures, problem: str) -> list[str]:
        found = [f"{figures.errors} requests failed" + (f": {problem}" if problem else "")] * bool(figures.errors)
        for constraint in self.constraints:
            if constraint.excess(figures) > 0:
                missing = METRICS[constraint.metric].of(figures) is None
                found.append(f"{constraint.metric} cannot be measured here" if missing else f"not {constraint}")
        missing_goals = [name for name, _ in self.objectives if METRICS[name].of(figures) is None]
        return found + [f"{name} cannot be measured here" for name in missing_goals]

    def __str__(self) -> str:
        if self.models:
            several = len({goal.weight for goal in self.models.values()}) > 1
            return " and ".join(
                f"{name}: {goal}" + (f" (weight {goal.weight:g})" if several else "") for name, goal in self.models.items()
            )
        several = len(self.objectives) > 1
        wanted = " and ".join(f"{name} (weight {weight:g})" if several else name for name, weight in self.objectives)
        return wanted + (f" with {', '.join(map(str, self.constraints))}" if self.constraints else "")
