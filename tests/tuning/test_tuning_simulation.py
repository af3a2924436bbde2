"""Batching that tunes itself, beside `dynamic_batching { }` and fixed settings; `python -m tests.tuning` tries many more."""

from __future__ import annotations

import functools
import math
from functools import partial

import pytest

from tests.tuning.simulation import (
    COSTS,
    Bursts,
    Clients,
    Load,
    Make,
    Outcome,
    Poisson,
    capacity_per_s,
    fixed,
    measure,
    plain,
    tuned,
)
from tpy.units import NS_PER_MS, NS_PER_S


def outcome(make: Make, model: str, load: Load) -> Outcome:
    """The outcome once it has been learned."""
    (found,) = measure(make, COSTS[model], [(load, NS_PER_S // 3)], rounds=2)
    return found


@pytest.mark.parametrize("model", COSTS)
def test_random_requests_wait_no_longer_than_without_it(model: str) -> None:
    load = Poisson(0.7 * capacity_per_s(COSTS[model]))
    assert outcome(tuned, model, load).mean_ns <= 1.05 * outcome(plain, model, load).mean_ns


@pytest.mark.parametrize("model", COSTS)
@pytest.mark.parametrize("clients", [1, 12])
def test_clients_that_wait_get_as_much_as_without_it(model: str, clients: int) -> None:
    load = Clients(clients)
    assert outcome(tuned, model, load).per_s >= 0.97 * outcome(plain, model, load).per_s


def test_a_convoy_is_held_together() -> None:
    load = Clients(24)
    assert outcome(tuned, "constant", load).per_s > 1.7 * outcome(plain, "constant", load).per_s


@pytest.mark.parametrize("load", [Poisson(0.6 * 2 * capacity_per_s(COSTS["linear"])), Clients(24)])
def test_two_instances_are_no_slower_than_without_it(load: Load) -> None:
    ours, none = (outcome(partial(make, instances=2), "linear", load).mean_ns for make in (tuned, plain))
    assert ours <= (0.8 if isinstance(load, Clients) else 1.03) * none


def test_a_step_of_the_curve_is_not_exceeded_for_little() -> None:
    load = Poisson(0.6 * capacity_per_s(COSTS["stepped"]))
    assert outcome(tuned, "stepped", load).mean_ns < 0.9 * outcome(plain, "stepped", load).mean_ns


def test_the_size_that_is_best_is_found() -> None:
    load = Clients(64)
    found = outcome(tuned, "convex", load)
    assert found.per_s > 0.95 * capacity_per_s(COSTS["convex"])
    assert found.per_s > 2 * outcome(plain, "convex", load).per_s


def test_no_fixed_setting_is_as_good_for_all_parts_of_a_changing_load() -> None:
    cost = COSTS["constant"]
    loads: list[tuple[Load, int]] = [
        (Clients(1), NS_PER_S // 2),
        (Bursts(12, 40, spread_ns=NS_PER_MS), 2 * NS_PER_S),
        (Clients(16), NS_PER_S // 2),
    ]
    ours = _mean_ns(measure(tuned, cost, loads, rounds=2))
    for pair in [(32, 0), (32, 500_000), (32, 2 * NS_PER_MS), (8, 2 * NS_PER_MS)]:
        assert ours < _mean_ns(measure(functools.partial(fixed, *pair), cost, loads, rounds=2)), pair


def _mean_ns(parts: list[Outcome]) -> float:
    """The mean latency, each part counting the same."""
    return math.exp(sum(math.log(part.mean_ns) for part in parts) / len(parts))
