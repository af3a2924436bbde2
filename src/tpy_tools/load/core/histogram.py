"""A histogram of latencies with a bounded relative error (HDR: high dynamic range), counted by numpy in lots.

Values below 2**PRECISION_BITS ns are counted exactly; above, each power of two is divided into 2**PRECISION_BITS equal steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

_Counts = np.ndarray[Any, np.dtype[np.int64]]

PRECISION_BITS = 10
"""Two values in one bucket differ by less than 1/1024 of the smaller one."""

VALUE_MAX = 2**42 - 1
"""73 minutes in nanoseconds; longer ones count as this long."""

_STEPS = 1 << PRECISION_BITS
_BUCKETS = (42 - PRECISION_BITS + 1) * _STEPS


class SparseCounts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A histogram as it travels between processes: the buckets that are not empty."""

    buckets: list[int]
    counts: list[int]
    total_ns: int
    squares: float
    smallest: int
    largest: int


class LatencyHistogram:
    """Counts of values in nanoseconds."""

    def __init__(self) -> None:
        self._counts: _Counts = np.zeros(_BUCKETS, np.int64)
        self._total_ns = 0
        self._squares = 0.0
        self._smallest = VALUE_MAX
        self._largest = 0

    def add(self, values_ns: Sequence[int] | _Counts) -> None:
        """Count some values, none of them negative."""
        values: _Counts = np.minimum(np.asarray(values_ns, np.int64), VALUE_MAX)
        if not values.size:
            return
        np.add.at(self._counts, buckets_of(values), 1)
        self._total_ns += int(values.sum())
        self._squares += float(np.square(values, dtype=np.float64).sum())
        self._smallest = min(self._smallest, int(values.min()))
        self._largest = max(self._largest, int(values.max()))

    def merge(self, other: LatencyHistogram | SparseCounts) -> None:
        """Count what another histogram has counted."""
        sparse = other.sparse() if isinstance(other, LatencyHistogram) else other
        if not sparse.buckets:
            return
        self._counts[sparse.buckets] += np.array(sparse.counts, np.int64)
        self._total_ns += sparse.total_ns
        self._squares += sparse.squares
        self._smallest = min(self._smallest, sparse.smallest)
        self._largest = max(self._largest, sparse.largest)

    def sparse(self) -> SparseCounts:
        """The counts that are not zero."""
        (filled,) = np.nonzero(self._counts)
        return SparseCounts(
            buckets=filled.tolist(),
            counts=self._counts[filled].tolist(),
            total_ns=self._total_ns,
            squares=self._squares,
            smallest=self._smallest,
            largest=self._largest,
        )

    @property
    def count(self) -> int:
        """The number of values."""
        return int(self._counts.sum())

    @property
    def smallest_ns(self) -> int:
        """The smallest value, exactly; 0 without values."""
        return self._smallest if self.count else 0

    @property
    def largest_ns(self) -> int:
        """The largest value, exactly; 0 without values."""
        return self._largest

    @property
    def mean_ns(self) -> float:
        """The mean, exactly; 0 when there is no value."""
        return self._total_ns / self.count if self.count else 0.0

    @property
    def deviation_ns(self) -> float:
        """The standard deviation of the values (of a sample); 0 for fewer than two."""
        count = self.count
        if count < 2:
            return 0.0
        return float(np.sqrt(max(0.0, (self._squares - count * self.mean_ns**2) / (count - 1))))

    def percentile_ns(self, percent: float) -> int:
        """The smallest value that `percent` of the values do not exceed, to the precision; 0 without values."""
        count = self.count
        if not count:
            return 0
        rank = max(1, int(np.ceil(count * percent / 100)))
        bucket = int(np.searchsorted(np.cumsum(self._counts), rank))
        return min(max(_middle(bucket), self._smallest), self._largest)

    def curve(self) -> tuple[list[float], list[float]]:
        """The distribution as points: values in ns, and the share of all values that do not exceed each."""
        (filled,) = np.nonzero(self._counts)
        if not filled.size:
            return [], []
        shares = np.cumsum(self._counts[filled]) / self.count
        return [float(_middle(int(bucket))) for bucket in filled], shares.tolist()


def buckets_of(values: _Counts) -> _Counts:
    """The bucket of each value from 0 to VALUE_MAX."""
    exponents = np.maximum(np.frexp(values.astype(np.float64))[1] - 1 - PRECISION_BITS, 0).astype(np.int64)
    # Within a power of two the leading 1 is dropped by the offset: bucket = exponent * STEPS + value >> exponent.
    buckets: _Counts = exponents * _STEPS + (values >> exponents)
    return buckets


def _middle(bucket: int) -> int:
    """The value that stands for a bucket."""
    if bucket < 2 * _STEPS:
        return bucket
    exponent = bucket // _STEPS - 1
    low = (bucket - exponent * _STEPS) << exponent
    return low + (1 << exponent) // 2
