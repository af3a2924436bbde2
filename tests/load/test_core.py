"""The load generator's decisions, against naive models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy_tools.load.core.histogram import PRECISION_BITS, VALUE_MAX, LatencyHistogram
from tpy_tools.load.core.ranges import BadRange, parse_range
from tpy_tools.load.core.schedules import ClosedLoop, OpenLoop
from tpy_tools.load.core.searching import BinarySearch, LinearSearch, Search
from tpy_tools.load.core.stability import WindowFigures, is_beyond, is_stable
from tpy_tools.load.exchange import WorkerSettings
from tpy_tools.load.links import Target
from tpy_tools.load.worker import intervals_of

VALUES = st.lists(st.integers(0, VALUE_MAX), min_size=1, max_size=200)


@given(VALUES, st.floats(0.1, 100))
def test_percentiles_are_those_of_the_sorted_values_to_the_precision(values: list[int], percent: float) -> None:
    histogram = LatencyHistogram()
    histogram.add(values)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert histogram.percentile_ns(percent) == pytest.approx(exact, rel=2**-PRECISION_BITS)


@given(VALUES, VALUES)
def test_merged_histograms_count_as_one(first: list[int], second: list[int]) -> None:
    parts = [LatencyHistogram(), LatencyHistogram()]
    for part, values in zip(parts, (first, second), strict=True):
        part.add(values)
    parts[0].merge(parts[1].sparse())
    together = LatencyHistogram()
    together.add(first + second)
    assert parts[0].sparse().buckets == together.sparse().buckets
    assert parts[0].sparse().counts == together.sparse().counts
    assert parts[0].count == len(first) + len(second)
    assert parts[0].mean_ns == pytest.approx(sum(first + second) / len(first + second))
    assert (parts[0].smallest_ns, parts[0].largest_ns) == (min(first + second), max(first + second))


def test_the_deviation_is_that_of_a_sample() -> None:
    histogram = LatencyHistogram()
    histogram.add([1000, 2000, 4000])
    assert histogram.deviation_ns == pytest.approx(float(np.std([1000, 2000, 4000], ddof=1)))
    assert LatencyHistogram().percentile_ns(99) == 0


def simulate(schedule: ClosedLoop | OpenLoop, service_ns: Sequence[int], *, slots: int, end_ns: int) -> list[tuple[int, int]]:
    """Requests as (time from which the latency counts, latency) on a server that answers `slots` at a time, in virtual time."""
    now, begun, found = 0, 0, []
    in_flight: list[tuple[int, int]] = []
    while now <= end_ns:
        while len(in_flight) < slots and (due := schedule.take(now)) is not None:
            in_flight.append((now + service_ns[begun % len(service_ns)], due))
            begun += 1
        times = [min(in_flight)[0]] if in_flight else []
        following = schedule.next_ns()
        if following is not None and following > now and len(in_flight) < slots:
            times.append(following)
        if not times:
            break
        now = min(times)
        for answer in sorted(in_flight):
            if answer[0] <= now:
                in_flight.remove(answer)
                schedule.answered()
                found.append((answer[1], now - answer[1]))
    return found


@given(st.integers(1, 5), st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 30))
def test_a_closed_loop_keeps_its_number_in_flight(concurrency: int, service: list[int], requests: int) -> None:
    schedule = ClosedLoop(concurrency, requests)
    in_flight = 0
    while schedule.take(0) is not None:
        in_flight += 1
    assert in_flight == min(concurrency, requests)
    fresh = ClosedLoop(concurrency, requests)
    assert len(simulate(fresh, service, slots=100, end_ns=10**6)) == requests
    assert fresh.done


def test_an_open_loop_counts_from_the_time_at_which_a_request_was_due() -> None:
    """A server with one place that stops for 100: the ten requests that were due meanwhile waited, too."""
    schedule = OpenLoop(0, iter([10] * 20))
    found = simulate(schedule, [1] * 5 + [100] + [1] * 14, slots=1, end_ns=10**6)
    assert [latency for _, latency in found[:5]] == [1] * 5
    assert [latency for _, latency in found[5:15]] == [100, 91, 82, 73, 64, 55, 46, 37, 28, 19]
    assert schedule.done


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 8), st.lists(st.integers(1, 60), min_size=1, max_size=5))
def test_an_open_loop_begins_all_requests_whatever_the_answers(intervals: list[int], slots: int, service: list[int]) -> None:
    found = simulate(OpenLoop(0, iter(intervals)), service, slots=slots, end_ns=10**9)
    assert sorted(due for due, _ in found) == np.cumsum(intervals, dtype=int).tolist()
    assert all(latency >= min(service) for _, latency in found)


@given(st.integers(1, 5), st.booleans(), st.floats(0.5, 5000), st.integers(0, 3))
def test_workers_divide_the_requests_of_a_rate(workers: int, poisson: bool, rate: float, seed: int) -> None:
    target = Target(host="127.0.0.1", port=1)

    def times(number: int, of: int, count: int) -> list[int]:
        settings = WorkerSettings(target=target, streams=[], number=number, workers=of, rate=rate, poisson=poisson, seed=seed)
        return np.cumsum(list(islice(intervals_of(settings), count)), dtype=np.int64).tolist()

    together = sorted(time for number in range(workers) for time in times(number, workers, 20))
    assert together == times(0, 1, 20 * workers)
    if not poisson:
        assert together[-1] == pytest.approx(20 * workers * 1e9 / rate, abs=1)


def test_poisson_arrivals_have_the_rate_and_the_spread() -> None:
    settings = WorkerSettings(target=Target(host="h", port=1), streams=[], rate=1000.0, poisson=True, seed=3)
    intervals = np.array(list(islice(intervals_of(settings), 20_000)))
    assert intervals.mean() == pytest.approx(1e6, rel=0.03)
    assert intervals.std() == pytest.approx(1e6, rel=0.05)


def test_stable_is_perf_analyzers_rule() -> None:
    def windows(*pairs: tuple[float, float]) -> list[WindowFigures]:
        return [WindowFigures(per_s=per_s, latency_ns=latency) for per_s, latency in pairs]

    assert not is_stable(windows((100, 5), (100, 5)), 10)
    assert is_stable(windows((1, 99), (100, 5), (109, 5), (105, 5.4)), 10)
    assert not is_stable(windows((100, 5), (112, 5), (105, 5)), 10)
    assert not is_stable(windows((100, 5), (100, 5), (100, 6)), 10)
    assert not is_stable(windows((0, 0), (0, 0), (0, 0)), 10)
    assert is_beyond(windows((1, 7), (1, 7), (1, 7)), 6)
    assert not is_beyond(windows((1, 7), (1, 5), (1, 7)), 6)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("8", [8]),
        ("1:4", [1, 2, 3, 4]),
        ("2:7:2", [2, 4, 6]),
        ("1:64:*2", [1, 2, 4, 8, 16, 32, 64]),
        ("3:10:*1.5", [3, 4.5, 6.75]),
    ],
)
def test_ranges(text: str, levels: list[float]) -> None:
    assert parse_range(text, whole=True).levels() == levels


@pytest.mark.parametrize("text", ["", "0", "x", "1:2:3:4", "4:1", "1:4:0", "1:4:*1", "1.5", "1:2:-1", "nan"])
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(BadRange):
        parse_range(text, whole=True)


def test_a_range_without_end_goes_on() -> None:
    endless = parse_range("1:0:3", whole=True)
    assert endless.after(1_000_000) == 1_000_003
    with pytest.raises(BadRange, match="more than"):
        endless.levels()


def measured_levels(search: Search, threshold: float) -> list[float]:
    """The levels that are measured when those up to the threshold meet it."""
    found: list[float] = []
    met = True
    while (level := search.next(met=met)) is not None:
        found.append(level)
        met = level <= threshold
    return found


@given(st.integers(1, 50), st.integers(0, 400), st.integers(1, 20), st.floats(0, 500))
def test_bisection_ends_within_a_step_of_the_highest_level_that_meets_the_threshold(
    start: int, width: int, step: int, threshold: float
) -> None:
    levels = parse_range(f"{start}:{start + width}:{step}", whole=True)
    measured = measured_levels(BinarySearch(levels, whole=True), threshold)
    assert len(measured) <= 2 + (width - 1 if width else 0).bit_length()
    met = [level for level in measured if level <= threshold]
    if threshold < start:
        assert measured == [start]
    else:
        best = min(start + width, math.floor(threshold))
        assert best - step < max(met) + 1e-9 <= best + 1e-9 or max(met) == best


@given(st.floats(0, 300))
def test_bisection_of_rates_goes_between_whole_numbers(threshold: float) -> None:
    measured = measured_levels(BinarySearch(parse_range("1:256:0.25", whole=False), whole=False), threshold)
    if 1 <= threshold < 256:
        assert 0 <= threshold - max(level for level in measured if level <= threshold) <= 0.25


@given(st.integers(1, 5), st.integers(0, 40), st.integers(0, 60))
def test_a_linear_search_stops_behind_the_threshold(start: int, width: int, threshold: int) -> None:
    measured = measured_levels(LinearSearch(parse_range(f"{start}:{start + width}", whole=True)), threshold)
    every = list(range(start, start + width + 1))
    assert measured == [level for level in every if level <= max(start, threshold + 1)]
