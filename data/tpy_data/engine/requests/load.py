"""LoadMeter: how much is asked of a model's instances, as a multiple of what they can do."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tpy.units import NS_PER_MS, NS_PER_S

SMOOTHED_NS: Final = 15 * NS_PER_S
"""After this time a change shows by 63 %."""

_PERIOD_NS_MIN: Final = 50 * NS_PER_MS
"""Shorter periods say nothing."""


class WorkCounts(NamedTuple):
    """The work of a model's instances since it was loaded: `busy_ns` instance time in which they held a batch, requests
    `executed` and `refused` (their queue was full, or their time ran out in it), and the requests `waiting` now."""

    busy_ns: int
    executed: int
    refused: int
    waiting: int


class LoadMeter:
    """Demanded over available instance time, smoothed: 0 for idle, 1 for instances that are just busy, 3 where three times as
    much is asked for as they can do. Looked at in any intervals; nothing is kept between but the last counts.

    The demand of a period is the time that instances worked, and what the requests would have taken that came and were not
    executed: the growth of the queue (or less its shrinkage), and the refused ones. While a queue
    is worked off, the load is not below the time that instances work.
    """

    __slots__ = ("_busy_ns", "_executed", "_last", "_last_ns", "_load", "_shown", "_utilization")

    def __init__(self, now_ns: int) -> None:
        self._last = WorkCounts(0, 0, 0, 0)
        self._last_ns = now_ns
        self._load = self._utilization = self._shown = 0.0
        self._busy_ns = 0.0
        """Instance time of the last while, for the cost of a request."""
        self._executed = 0.0
        """Requests of that time."""

    def look(self, counts: WorkCounts, instances: int, now_ns: int) -> float:
        """The load now; `instances` take batches."""
        period_ns = now_ns - self._last_ns
        if period_ns < _PERIOD_NS_MIN:
            return self._shown
        last, self._last, self._last_ns = self._last, counts, now_ns
        kept = math.exp(-period_ns / SMOOTHED_NS)
        busy_ns = max(0, counts.busy_ns - last.busy_ns)
        self._busy_ns = kept * self._busy_ns + busy_ns
        self._executed = kept * self._executed + counts.executed - last.executed
        cost_ns = self._busy_ns / max(1.0, self._executed)
        unserved = counts.waiting - last.waiting + counts.refused - last.refused
        demand_ns = max(0.0, busy_ns + unserved * cost_ns)
        available_ns = period_ns * max(1, instances)
        self._load = kept * self._load + (1 - kept) * demand_ns / available_ns
        self._utilization = kept * self._utilization + (1 - kept) * busy_ns / available_ns
        self._shown = max(self._load, self._utilization) if counts.waiting else self._load
        return self._shown
