"""Histograms and windows of durations, against naive models."""

from __future__ import annotations

import math
import random

import pytest

from tpy.messages import Exemplar, Latency
from tpy.telemetry.latencies import DurationHistogram, QuantileWindow, quantiles_of
from tpy.units import NS_PER_MS, NS_PER_S, NS_PER_US

QUANTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)


def quantiles(latency: Latency) -> list[float]:
    assert latency.summary is not None
    return [value for _, value in quantiles_of(latency.summary)]


def test_a_duration_on_a_bound_is_in_its_bucket() -> None:
    histogram = DurationHistogram("f", (1.0, 2.5), NS_PER_MS)
    for duration_ns in (0, NS_PER_MS, NS_PER_MS + 1, 2_500_000, 2_500_001, NS_PER_S):
        histogram.add(duration_ns)
    found = histogram.snapshot()
    assert found.histogram is not None
    assert (found.histogram.buckets, found.histogram.counts, found.histogram.exemplars) == ((1.0, 2.5), (2, 2, 2), ())
    assert found.total == pytest.approx(0 + 1 + 1.000001 + 2.5 + 2.500001 + 1000)


def test_the_newest_traced_request_is_the_exemplar_of_its_bucket() -> None:
    histogram = DurationHistogram("f", (1.0, 2.0), NS_PER_S)
    for duration_ns, trace in ((NS_PER_S, "a"), (3 * NS_PER_S, "b"), (NS_PER_S // 2, "c")):
        histogram.add(duration_ns)
        histogram.mark(duration_ns, trace, 7)
    found = histogram.snapshot().histogram
    assert found is not None
    assert found.exemplars == (Exemplar("c", 0.5, 7), None, Exemplar("b", 3.0, 7))


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_are_those_of_the_sorted_durations(seed: int) -> None:
    """Exactly by rank, and within 0.4 % of the duration that has it."""
    source = random.Random(seed)
    window = QuantileWindow("f")
    durations_us = [int(source.lognormvariate(6, 3)) for _ in range(source.choice((1, 2, 10, 3000)))]
    for duration_us in durations_us:
        window.add(duration_us * NS_PER_US + source.randrange(NS_PER_US), NS_PER_S)
    found = window.snapshot(QUANTILES, NS_PER_S)
    ordered = sorted(durations_us)
    for quantile, value in zip(QUANTILES, quantiles(found), strict=True):
        expected = ordered[max(0, math.ceil(quantile * len(ordered)) - 1)]
        assert value == expected if expected < 256 else abs(value - expected) <= expected / 256
    assert found.summary is not None
    assert (found.summary.count, found.total) == (len(durations_us), sum(durations_us))


def test_quantiles_forget_what_is_older_than_a_minute_and_counts_do_not() -> None:
    window = QuantileWindow("f")
    assert all(map(math.isnan, quantiles(window.snapshot(QUANTILES, 0))))
    seen = []
    for second in range(200):
        if second < 30 or 110 <= second < 120:
            window.add((second + 1) * NS_PER_US, second * NS_PER_S)
        found = window.snapshot((0.0, 1.0), second * NS_PER_S)
        oldest, newest = quantiles(found)
        if not math.isnan(oldest):
            assert oldest - 1 > second - 61
            assert newest <= second + 1
        seen.append(newest)
        if 48 <= second < 76:
            assert newest == 30, "what is younger than 48 s counts"
    assert math.isnan(seen[95])
    assert seen[150] == 120
    assert found.summary is not None
    assert found.summary.count == 40


def test_a_window_grows_with_the_spread_of_durations_only() -> None:
    window = QuantileWindow("f")
    for number in range(50_000):
        window.add(number * NS_PER_MS, 0)
    summary = window.snapshot((), 0).summary
    assert summary is not None
    assert sum(map(len, summary.slices)) < 20 * 128
