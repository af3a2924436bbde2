"""The search by Optuna: its sampler proposes points, as long as they are worth it."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from tpy.config import ModelConfig
from tpy_tools.analyze.core.goal import Goal, Row, Score
from tpy_tools.analyze.core.search import Search, confirmed, points_of
from tpy_tools.analyze.core.space import OFF, CandidateConfig, Point, Space, read

_REPEATS_MAX = 20
"""Proposals of a point that is known already, for each trial: a small space has nothing else to propose in the end."""


class OptunaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the search, with Model Analyzer's names and defaults. Numbers of trials win over shares of the space."""

    trials_min: int | None = None
    trials_max: int | None = None
    percent_min: int = 5
    percent_max: int = 10
    early_exit: int = 10
    """Trials without a gain after which it ends, once there have been the fewest."""

    concurrency_formula: bool = False
    """Two requests for each place in the instances' batches, instead of searching the concurrency."""

    seed: int = 0

    def bounds(self, points: int) -> tuple[int, int]:
        """The fewest and the most trials in a space of `points` points."""
        most = math.ceil(points * self.percent_max / 100) if self.trials_max is None else self.trials_max
        least = math.ceil(points * self.percent_min / 100) if self.trials_min is None else self.trials_min
        return min(least, max(1, most)), max(1, most)


def is_optuna_installed() -> bool:
    """True when this search can be used."""
    return importlib.util.find_spec("optuna") is not None


def optuna(space: Space, goal: Goal, base: Mapping[str, ModelConfig], settings: OptunaSettings) -> Search:
    """Points that Optuna's sampler (TPE) proposes; the configuration as it is comes first. A trial is a measurement."""
    return confirmed(_proposed(space, goal, base, settings), goal)


def _proposed(space: Space, goal: Goal, base: Mapping[str, ModelConfig], settings: OptunaSettings) -> Search:
    study = _study(settings.seed)
    least, most = settings.bounds(_points(space, formula=settings.concurrency_formula))
    known: dict[Point, float] = {}
    best: Row | None = None
    trials = idle = repeats = 0
    study.enqueue_trial({one.label: one.values.index(one.default) for one in space.dimensions})
    while trials < most and (trials < least or idle < settings.early_exit) and repeats < _REPEATS_MAX * most:
        trial = study.ask()
        point = _point(space, base, trial, formula=settings.concurrency_formula)
        if point in known:
            repeats += 1
            study.tell(trial, known[point])
            continue
        row = yield point
        trials += 1
        known[point] = _value(goal.score(row))
        study.tell(trial, known[point])
        if best is None or goal.better(row, best):
            best, idle = row, 0
        else:
            idle += 1


def _points(space: Space, *, formula: bool) -> int:
    """The different points that can be proposed."""
    return points_of(space) // (len(space.concurrencies) if formula else 1)


def _study(seed: int) -> Any:
    module = importlib.import_module("optuna")
    module.logging.set_verbosity(module.logging.WARNING)
    return module.create_study(direction="maximize", sampler=module.samplers.TPESampler(seed=seed))


def _point(space: Space, base: Mapping[str, ModelConfig], trial: Any, *, formula: bool) -> Point:
    chosen = {
        one.label: one.values[trial.suggest_int(one.label, 0, len(one.values) - 1)]
        if all(isinstance(value, int) for value in one.values)
        else one.values[trial.suggest_categorical(one.label, list(range(len(one.values))))]
        for one in space.dimensions
    }
    candidate = space.candidate(chosen)
    if formula:
        return Point(candidate, _formula(space, base, candidate))
    levels = space.concurrencies
    return Point(candidate, levels[trial.suggest_int("concurrency", 0, len(levels) - 1)])


def _formula(space: Space, base: Mapping[str, ModelConfig], candidate: CandidateConfig) -> int:
    """Twice the places in the batches of all instances, as a level that is searched: that or the nearest below."""
    places = 1
    for config in space.configs(base, candidate).values():
        if config.ensemble_scheduling is None:
            batch = config.max_batch_size if read(config, "delay_us") != OFF else 1
            places = max(places, int(str(read(config, "instances"))) * max(1, batch))
    return max((level for level in space.concurrencies if level <= 2 * places), default=space.concurrencies[0])


def _value(score: Score) -> float:
    """A score as one number, in the same order for all that matters to a sampler."""
    kind, value = score
    return value if kind == 0 else -1e6 - min(-value, 1e6) if kind == -1 else -1e7
