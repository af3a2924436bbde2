"""The stability of a measurement: perf_analyzer's rule, over the last three windows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

WINDOWS = 3
"""The number of windows that are compared, and make up the result."""


class WindowFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one window that are compared: requests per second, and the latency (the average, or a percentile)."""

    per_s: float
    latency_ns: float


def is_stable(windows: Sequence[WindowFigures], percent: float) -> bool:
    """True when in the last three windows the largest throughput is at most `percent` above the smallest, the largest latency as
    well, and every one of them has answers."""
    last = windows[-WINDOWS:]
    if len(last) < WINDOWS or any(window.per_s <= 0 for window in last):
        return False
    return _within([window.per_s for window in last], percent) and _within([window.latency_ns for window in last], percent)


def _within(values: Sequence[float], percent: float) -> bool:
    return max(values) <= min(values) * (1 + percent / 100)


def is_beyond(windows: Sequence[WindowFigures], latency_max_ns: float) -> bool:
    """True when every one of the last three windows exceeds the latency: perf_analyzer gives up then, whether stable or not."""
    last = windows[-WINDOWS:]
    return len(last) == WINDOWS and all(window.latency_ns > latency_max_ns for window in last)
