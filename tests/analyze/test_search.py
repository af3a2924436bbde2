"""The searches on two real networks whose server is simulated, with noisy measurements: how far from the best they end, and after
how many measurements."""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import msgspec
import pytest

from tpy.config import parse_pbtxt
from tpy_tools.analyze.core.goal import Constraint, Figures, Goal, Row, average
from tpy_tools.analyze.core.optuna_search import OptunaSettings, optuna
from tpy_tools.analyze.core.search import Search, brute, confirmed, quick
from tpy_tools.analyze.core.space import OFF, CandidateConfig, Point, Space, Value, make_space

from .simulated import EFFICIENTNET, SILERO, Network, measure

BASE = parse_pbtxt(
    'name: "m" backend: "onnxruntime" max_batch_size: 8 instance_group { count: 1 kind: KIND_CPU } '
    'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
).config
WISHES: Mapping[str, Sequence[Value]] = {
    "instances": (1, 2, 3),
    "max_batch_size": (1, 4, 8, 16),
    "delay_us": (OFF, 0, 200),
    "threads": ("1", "2"),
}
NETWORKS: Mapping[str, tuple[Network, Mapping[str, Sequence[Value]], Sequence[int]]] = {
    "efficientnet": (EFFICIENTNET, {**WISHES, "max_batch_size": (1, 4, 8)}, (1, 2, 4, 8, 16)),
    "silero": (SILERO, WISHES, (1, 2, 4, 8, 16, 32)),
}
GOALS: Mapping[str, Callable[[Sequence[Figures]], Goal]] = {
    "throughput": lambda figures: Goal(),
    "throughput under a latency": lambda figures: Goal(
        constraints=(Constraint(metric="perf_latency_p99", maximum=sorted(one.p99_ms for one in figures)[len(figures) // 3]),)
    ),
    "latency": lambda figures: Goal(objectives=(("perf_latency_p99", 1.0),)),
    "latency with a throughput": lambda figures: Goal(
        objectives=(("perf_latency_p99", 1.0),),
        constraints=(Constraint(metric="perf_throughput", minimum=max(one.throughput for one in figures) / 2),),
    ),
    "both": lambda figures: Goal(objectives=(("perf_throughput", 2.0), ("perf_latency_p99", 1.0))),
}
SEEDS = 40


@cache
def surface(name: str) -> tuple[Space, Mapping[Point, Figures]]:
    """Every configuration of a network at every concurrency, once."""
    network, wishes, concurrencies = NETWORKS[name]
    space = make_space({"m": BASE}, wishes, concurrencies)
    configs = {candidate: space.configs({"m": BASE}, candidate)["m"] for candidate in space.all()}
    points = [Point(candidate, concurrency) for candidate in configs for concurrency in concurrencies]
    return space, {point: measure(network, configs[point.candidate], point.concurrency) for point in points}


def noisy(figures: Figures, chance: random.Random, spread: float) -> Figures:
    """A measurement: latencies spread more than throughputs, and now and then something else runs on the machine."""
    disturbed = chance.random() < 0.03 and spread > 0
    slower = math.exp(chance.gauss(0, spread)) * (1.4 if disturbed else 1.0)
    later = math.exp(chance.gauss(0, 2 * spread)) * (1.5 if disturbed else 1.0)
    return msgspec.structs.replace(
        figures,
        throughput=figures.throughput / slower,
        avg_ms=figures.avg_ms * slower,
        p99_ms=figures.p99_ms * later,
    )


def run(search: Search, figures: Mapping[Point, Figures], chance: random.Random, spread: float) -> tuple[dict[Point, Row], int]:
    """The rows of a search, and its measurements."""
    rows: dict[Point, Row] = {}
    count = 0
    point = next(search, None)
    while point is not None:
        row = Row(point=point, figures=noisy(figures[point], chance, spread))
        rows[point] = average(rows[point], row) if point in rows else row
        count += 1
        try:
            point = search.send(rows[point])
        except StopIteration:
            break
    return rows, count


def loss(goal: Goal, found: Row, best: Row, figures: Mapping[Point, Figures]) -> float:
    """The distance of a configuration's true figures from the best, or from the bound that they break, as a share."""
    kind, value = goal.score(Row(point=found.point, figures=figures[found.point]))
    return -value if kind < 0 else 1 - math.exp(value - goal.score(best)[1])


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("name", NETWORKS)
def test_quick_is_within_five_percent_of_the_best_in_a_fifth_of_the_time(name: str, goal: str) -> None:
    space, figures = surface(name)
    wanted = GOALS[goal](list(figures.values()))
    every, all_count = run(brute(space), figures, random.Random(0), 0.0)
    best = wanted.ranked(every.values())[0]
    assert wanted.meets(best)
    assert all_count == len(figures)
    for spread, seeds_within in ((0.0, 1.0), (0.02, 0.95), (0.04, 0.85)):
        losses = []
        for seed in range(SEEDS if spread else 1):
            rows, count = run(quick(space, wanted), figures, random.Random(seed), spread)
            assert count <= all_count / 5
            losses.append(loss(wanted, wanted.ranked(rows.values())[0], best, figures))
        within = sum(one <= 0.05 for one in losses) / len(losses)
        assert within >= seeds_within, f"spread {spread}: {sorted(losses)[-5:]}"


@pytest.mark.parametrize("name", NETWORKS)
def test_the_default_is_far_from_the_best(name: str) -> None:
    # Else the test above would pass with a search that measures nothing.
    _, figures = surface(name)
    default = max(one.throughput for point, one in figures.items() if point.candidate == CandidateConfig())
    assert default < 0.6 * max(one.throughput for one in figures.values())


@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="Optuna is not installed")
@pytest.mark.parametrize("name", NETWORKS)
def test_optuna_finds_a_good_one_in_a_tenth_of_the_time(name: str) -> None:
    space, figures = surface(name)
    goal = Goal()
    search = optuna(space, goal, {"m": BASE}, OptunaSettings(early_exit=20))
    rows, count = run(search, figures, random.Random(1), 0.02)
    assert next(iter(rows)).candidate == CandidateConfig()
    assert count <= math.ceil(len(figures) / 10) + 8
    found = goal.ranked(rows.values())[0]
    assert figures[found.point].throughput > 0.8 * max(one.throughput for one in figures.values())


@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="Optuna is not installed")
def test_optuna_keeps_its_bounds() -> None:
    space, figures = surface("efficientnet")
    formula = OptunaSettings(trials_max=12, trials_min=12, concurrency_formula=True, early_exit=1)
    rows, _ = run(optuna(space, Goal(), {"m": BASE}, formula), figures, random.Random(1), 0.0)
    assert len(rows) == 12
    for point in rows:
        chosen = {"instances": 1, "max_batch_size": 8, "delay_us": OFF, **dict(point.candidate.settings)}
        places = int(str(chosen["instances"])) * (1 if chosen["delay_us"] == OFF else int(str(chosen["max_batch_size"])))
        assert point.concurrency == max(level for level in space.concurrencies if level <= 2 * places)
    early = OptunaSettings(trials_max=200, trials_min=5, early_exit=3)
    rows, _ = run(optuna(space, Goal(), {"m": BASE}, early), figures, random.Random(1), 0.0)
    assert 5 <= len(rows) < 100


def test_a_lucky_measurement_is_found_out() -> None:
    # The first measurement of a bad point is far too good; measured once more it is not the best any more.
    points = [Point(CandidateConfig((("instances", number),)), 1) for number in (1, 2)]

    def rows_of(throughput: float, point: Point) -> Row:
        figures = Figures(throughput=throughput, avg_ms=1, p50_ms=1, p90_ms=1, p95_ms=1, p99_ms=1)
        return Row(point=point, figures=figures)

    def both() -> Search:
        yield points[0]
        yield points[1]

    search = confirmed(both(), Goal())
    assert next(search) == points[0]
    assert search.send(rows_of(100, points[0])) == points[1]
    assert search.send(rows_of(180, points[1])) == points[1]
    assert search.send(average(rows_of(180, points[1]), rows_of(10, points[1]))) == points[0]
    with pytest.raises(StopIteration):
        search.send(average(rows_of(100, points[0]), rows_of(100, points[0])))
