"""MemoryTrend: what leaks, and what only looks like it; beside the naive model of the fuzz target."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.engine.memory_trend import MINUTE_NS, NaiveTrend
from tpy.messages import MemoryGrowth
from tpy.units import GIB, KIB, MIB
from tpy_data.engine.memory.core.memory_trend import LEAK_READINGS_MIN, MemoryTrend

BASE = 200 * MIB


def read(sizes: Iterable[float], served: Iterable[int] = itertools.repeat(100)) -> list[MemoryGrowth | None]:
    """One reading a minute, with so many requests before each; the growth after each."""
    trend, requests, found = MemoryTrend(), 0, []
    for minute, (size, count) in enumerate(zip(sizes, served, strict=False)):
        requests += count
        trend.add(minute * MINUTE_NS, BASE + round(size), requests)
        found.append(trend.growth)
    return found


def leaks_from(found: list[MemoryGrowth | None]) -> int | None:
    """The number of readings by which it was found to leak; None: never."""
    return next((number for number, each in enumerate(found, 1) if each is not None and each.leaks), None)


def test_a_kibibyte_a_request_is_found_with_the_30th_reading() -> None:
    found = read(100 * KIB * minute for minute in range(60))
    assert [each is None for each in found].index(False) == 11
    assert leaks_from(found) == LEAK_READINGS_MIN
    growth = found[-1]
    assert growth is not None
    assert (growth.trend_bytes, growth.trend_bytes_min, growth.trend_bytes_max) == (1000 * KIB, 1000 * KIB, 1000 * KIB)
    assert (growth.requests, growth.period_ns, growth.last_bytes - growth.first_bytes) == (5000, 50 * MINUTE_NS, 5000 * KIB)


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_is_found_whatever_the_load_and_in_noise(seed: int) -> None:
    chance = random.Random(seed)
    served = [chance.choice((5, 100, 2000)) for _ in range(90)]
    sizes = [KIB * sum(served[: minute + 1]) + chance.random() * 4 * MIB for minute in range(90)]
    assert (leaks_from(read(sizes, served)) or 999) <= 60


def test_after_a_warm_up_a_leak_is_found_when_the_hour_begins_behind_it() -> None:
    warm_up = (min(minute, 10) * 30 * MIB for minute in itertools.count())
    found = read(size + 200 * KIB * minute for minute, size in zip(range(120), warm_up, strict=False))
    number = leaks_from(found)
    assert number is not None
    assert 60 < number <= 75


HARMLESS: dict[str, Callable[[int, random.Random], float]] = {
    "nothing happens": lambda minute, chance: 0,
    "noise": lambda minute, chance: chance.random() * 20 * MIB,
    "a warm-up": lambda minute, chance: min(minute, 12) * 20 * MIB,
    "a cache that fills in 20 minutes": lambda minute, chance: min(minute, 20) * 10 * MIB,
    "a cache that is missed less and less": lambda minute, chance: 500 * MIB * (1 - math.exp(-minute / 8)),
    "bursts that are given back": lambda minute, chance: 300 * MIB * (chance.random() < 0.3),
    "a step, and another one": lambda minute, chance: 100 * MIB * (minute > 20) + 100 * MIB * (minute > 70),
    "garbage collected every 7 minutes": lambda minute, chance: (minute % 7) * 15 * MIB,
    "garbage collected every 25 minutes": lambda minute, chance: (minute % 25) * 15 * MIB,
    "pages that are touched": lambda minute, chance: 20 * KIB * minute,
    "it shrinks": lambda minute, chance: -MIB * minute,
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_only_looks_like_a_leak(what: str) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        assert leaks_from(read(HARMLESS[what](minute, chance) for minute in range(200))) is None


def test_noise_of_weeks_is_no_leak() -> None:
    chance = random.Random(1)
    assert leaks_from(read(chance.expovariate(1) * 50 * MIB for _ in range(10_000))) is None


def test_a_leak_that_stops_is_over_within_the_hour() -> None:
    found = read(min(minute, 60) * MIB for minute in range(120))
    leaking = [each is not None and each.leaks for each in found]
    assert leaking == [False] * 29 + [True] * leaking.count(True) + [False] * (91 - leaking.count(True))
    assert leaking.count(True) <= 31 + 30


def test_a_reading_without_requests_only_lowers_the_one_before() -> None:
    trend, other = MemoryTrend(), MemoryTrend()
    for minute in range(40):
        for each in (trend, other):
            each.add(minute * MINUTE_NS, BASE + minute * MIB, 100 * minute)
        other.add(minute * MINUTE_NS, GIB, 100 * minute)
    assert trend.growth == other.growth
    trend.add(40 * MINUTE_NS, BASE, 3900)
    assert trend.growth != other.growth


def test_the_past_hour_counts() -> None:
    trend = MemoryTrend()
    for minute in range(20):
        trend.add(minute * MINUTE_NS, BASE, minute)
    assert trend.growth is not None
    trend.add(70 * MINUTE_NS, BASE, 1000)
    assert trend.growth is None, "10 readings are left"


def test_hours_without_requests() -> None:
    trend = MemoryTrend()
    for minute in range(200):
        trend.add(minute * MINUTE_NS, BASE + minute * MIB, 7)
        assert trend.growth is None


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 5, 61]), st.integers(0, 3), st.integers(0, 8)), min_size=12, max_size=90))
def test_as_the_naive_model(history: list[tuple[int, int, int]]) -> None:
    trend, naive, now_ns, requests = MemoryTrend(), NaiveTrend(), 0, 0
    for minutes, served, size in history:
        now_ns += minutes * MINUTE_NS
        requests += served
        for each in (trend, naive):
            each.add(now_ns, BASE + size * MIB, requests)
        assert trend.growth == naive.growth
