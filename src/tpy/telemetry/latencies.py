"""Distributions of durations: DurationHistogram, and QuantileWindow for the quantiles of the newest ones.

Both take a duration in well under a microsecond and have a bounded size: they are fed with every request where
--metrics-config asks for them.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

import msgspec

from tpy.limits import SUMMARY_SLICES, SUMMARY_WINDOW_S
from tpy.messages import Exemplar, Histogram, Latency, Summary
from tpy.units import NS_PER_S, NS_PER_US

_EXACT_BELOW = 256
"""Whole microseconds below this are kept as they are; longer durations with eight significant bits, so within 0.4 %."""

_BITS = _EXACT_BELOW.bit_length() - 1
_SLICE_NS = SUMMARY_WINDOW_S * NS_PER_S // SUMMARY_SLICES


class LatencyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """--metrics-config histogram_latencies, summary_latencies and summary_quantiles."""

    histograms: bool = False
    summaries: bool = False
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)


class DurationHistogram:
    """Counts durations by bucket. `buckets` are upper bounds in units of `unit_ns` nanoseconds, ascending."""

    __slots__ = ("_bounds_ns", "_buckets", "_counts", "_exemplars", "_family", "_total_ns", "_unit_ns")

    def __init__(self, family: str, buckets: Sequence[float], unit_ns: int) -> None:
        self._family = family
        self._buckets = tuple(buckets)
        self._unit_ns = unit_ns
        self._bounds_ns = [bound * unit_ns for bound in buckets]
        self._counts = [0] * (len(buckets) + 1)
        self._exemplars: list[Exemplar | None] = []
        self._total_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one."""
        self._counts[bisect.bisect_left(self._bounds_ns, duration_ns)] += 1
        self._total_ns += duration_ns

    def mark(self, duration_ns: int, trace_id: str, at_ms: int) -> None:
        """This duration, which is counted already, is that of a request in this trace: the newest such is its bucket's
        exemplar."""
        if not self._exemplars:
            self._exemplars = [None] * len(self._counts)
        exemplar = Exemplar(trace_id, duration_ns / self._unit_ns, at_ms)
        self._exemplars[bisect.bisect_left(self._bounds_ns, duration_ns)] = exemplar

    def snapshot(self) -> Latency:
        """The counts now."""
        histogram = Histogram(self._buckets, tuple(self._counts), tuple(self._exemplars))
        return Latency(self._family, self._total_ns / self._unit_ns, histogram)


class QuantileWindow:
    """Quantiles of the newest durations: those of SUMMARY_SLICES slices of time, a minute unless `slice_ns` says otherwise; count
    and sum are of all. Durations are whole microseconds.

    A slice counts durations by their leading bits (as HDR histograms do): it grows with their spread, not with their number.
    """

    __slots__ = ("_count", "_family", "_slice", "_slice_ns", "_slices", "_total_us", "_until_ns")

    def __init__(self, family: str, *, slice_ns: int = _SLICE_NS) -> None:
        self._family = family
        self._slice_ns = slice_ns
        self._count = self._total_us = 0
        self._slice: dict[int, int] = {}
        self._slices: list[tuple[int, dict[int, int]]] = []  # each with its end
        self._until_ns = 0

    def add(self, duration_ns: int, now_ns: int) -> None:
        """Count one that has ended now."""
        if now_ns >= self._until_ns:
            self._begin_slice(now_ns)
        duration_us = duration_ns // NS_PER_US
        self._count += 1
        self._total_us += duration_us
        key = duration_us
        if key >= _EXACT_BELOW:
            shift = key.bit_length() - _BITS
            key = shift << _BITS | key >> shift
        counts = self._slice
        counts[key] = counts.get(key, 0) + 1

    def snapshot(self, quantiles: Sequence[float], now_ns: int) -> Latency:
        """The newest durations, among which `quantiles_of` finds the quantiles: in a thread, as a page has those of every model.
        Slices that are over do not change any more."""
        oldest_ns = now_ns - (SUMMARY_SLICES - 1) * self._slice_ns
        slices = [dict(counts) if counts is self._slice else counts for until_ns, counts in self._slices if until_ns > oldest_ns]
        return Latency(self._family, self._total_us, summary=Summary(tuple(quantiles), tuple(slices), self._count))

    def _begin_slice(self, now_ns: int) -> None:
        self._until_ns = (now_ns // self._slice_ns + 1) * self._slice_ns
        self._slice = {}
        self._slices = [*self._slices, (self._until_ns, self._slice)][-SUMMARY_SLICES:]


def quantiles_of(summary: Summary) -> list[tuple[float, float]]:
    """The quantiles, each with the smallest duration in microseconds that so large a share of the newest did not exceed; NaN
    without durations."""
    counts: dict[int, int] = {}
    for part in summary.slices:
        for key, count in part.items():
            counts[key] = counts.get(key, 0) + count
    total = sum(counts.values())
    if not total:
        return [(quantile, math.nan) for quantile in summary.quantiles]
    keys = sorted(counts)
    reached = list(itertools.accumulate(counts[key] for key in keys))
    found = []
    for quantile in summary.quantiles:
        rank = max(1, math.ceil(quantile * total))
        found.append((quantile, _duration_us(keys[bisect.bisect_left(reached, rank)])))
    return found


def _duration_us(key: int) -> float:
    """The middle of the durations that are counted under the key."""
    shift = key >> _BITS
    if not shift:
        return key
    leading = key & (_EXACT_BELOW - 1)
    return (leading << shift) + (1 << shift >> 1)
