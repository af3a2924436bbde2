"""One analysis: the models, their load, the configurations and the goal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tpy.errors import TpyError
from tpy_tools.analyze.core.goal import METRICS, Constraint, Goal
from tpy_tools.analyze.core.optuna_search import OptunaSettings
from tpy_tools.analyze.core.space import Value, Wishes


class AnalysisError(TpyError):
    """An analysis cannot begin, or go on. `str()` is a line for the user."""


DEFAULT_CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)

OBJECTIVES = {"throughput": "perf_throughput", "latency": "perf_latency_p99", "memory": "cpu_used_ram"}


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The requests, and how long each point is measured."""

    protocol: str = "http"
    streaming: bool = False
    """Over ModelStreamInfer, as decoupled models are always asked."""

    batch_sizes: tuple[int, ...] = (1,)
    """Inferences in a request: the first one, or each of them."""

    input_data: str = "random"
    """zero, random, or a JSON file in perf_analyzer's format."""

    shapes: Mapping[str, tuple[int, ...]] = {}
    string_length: int = 128
    string_data: str | None = None
    sequence_length: int = 0
    """Requests of a sequence; 0: 20, or as many as the data have."""

    sequence_variation: float = 20.0
    poisson: bool = False
    window_s: float = 1.0
    windows_max: int = 10
    stable_percent: float = 10.0
    percentile: int = -1
    """The latency that has to be stable; -1 is the average."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A model under load: its goal, its requests, and what may change."""

    model: str
    members: tuple[str, ...] = ()
    """Models whose settings are varied, too: those of an ensemble are known."""

    wishes: Wishes = {}
    own: Mapping[str, Wishes] = {}
    """The values for members that have others."""

    cpu_only: tuple[str, ...] = ()
    """The models, among the model and its members, whose instances are on the CPU, whatever their files say."""

    goal: Goal = Goal()
    load: LoadPlan = LoadPlan()


class AnalysisPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One analysis: of a model, or of several that are under load at the same time."""

    profiles: tuple[Profile, ...]
    concurrencies: tuple[int, ...] = DEFAULT_CONCURRENCIES
    by_rate: bool = False
    """`concurrencies` are requests per second, not clients."""

    search: str = "quick"
    optuna: OptunaSettings = OptunaSettings()
    output: Path
    checkpoints: Path | None = None

    @property
    def name(self) -> str:
        """The models."""
        return " and ".join(profile.model for profile in self.profiles)

    @property
    def goal(self) -> Goal:
        """The goal of the model, or of all of them."""
        if len(self.profiles) == 1:
            return self.profiles[0].goal
        return Goal(models={profile.model: profile.goal for profile in self.profiles})

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sizes of requests that are tried: the same for all models."""
        return self.profiles[0].load.batch_sizes

    def level_text(self, level: int) -> str:
        """A level of load in words."""
        if self.by_rate:
            return f"{level} requests/s"
        return f"{level} clients" + (" each" if len(self.profiles) > 1 else "")


def parse_numbers(text: str, *, words: tuple[str, ...] = (), minimum: int = 0) -> tuple[Value, ...]:
    """ "1,4,8", "1:4", "0:8:2" or "1:64:*2". Raises AnalysisError."""
    found: list[Value] = []
    for part in text.split(","):
        if part in words:
            found.append(part)
            continue
        first, *rest = part.strip().split(":")
        last, step = [*rest, "", ""][:2]
        factor = step.startswith("*")
        numbers = [first, last or first, step.removeprefix("*") or "1"]
        if len(rest) > 2 or not all(number.isdecimal() for number in numbers):
            also = f" (also {', '.join(words)})" if words else ""
            raise AnalysisError(f"expected numbers as 1,4,8 or 1:4 or 1:64:*2{also}, got '{text}'")
        at, end, by = map(int, numbers)
        if at < minimum or end < at or by < 1 or (factor and (by < 2 or at < 1)) or (end - at) // by > 10_000:
            raise AnalysisError(f"expected a range upwards from {minimum} at least, got '{part}'")
        while at <= end:
            found.append(at)
            at = at * by if factor else at + by
    return tuple(dict.fromkeys(found))


def parse_objectives(text: str) -> tuple[tuple[str, float], ...]:
    """ "throughput", "perf_latency_p95", or several with weights: "throughput:2,latency:1". Raises AnalysisError."""
    found = []
    for part in text.split(","):
        name, _, weight = part.strip().partition(":")
        found.append((metric_name(name), _weight(weight)))
    return tuple(found)


def metric_name(name: str) -> str:
    """The metric of an objective or a constraint. Raises AnalysisError."""
    full = OBJECTIVES.get(name, name)
    if full not in METRICS:
        raise AnalysisError(f"there is no metric '{name}'; there are {', '.join([*OBJECTIVES, *METRICS])}")
    return full


def _weight(text: str) -> float:
    try:
        weight = float(text or 1)
    except ValueError:
        weight = 0.0
    if not 0 < weight < float("inf"):
        raise AnalysisError(f"expected a weight above 0, got '{text}'")
    return weight


def constraints(
    *, latency_ms: float | None, percentile: int, memory_mb: float | None, throughput: float | None
) -> tuple[Constraint, ...]:
    """Constraints from single bounds."""
    found = []
    if latency_ms is not None:
        found.append(Constraint(metric=metric_name(f"perf_latency_p{percentile}"), maximum=latency_ms))
    if memory_mb is not None:
        found.append(Constraint(metric="cpu_used_ram", maximum=memory_mb))
    if throughput is not None:
        found.append(Constraint(metric="perf_throughput", minimum=throughput))
    return tuple(found)
