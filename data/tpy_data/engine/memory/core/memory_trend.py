"""MemoryTrend: how the memory of a process grows with the requests that it serves, and whether it leaks.

The readings of the last hour are divided into six parts with as many requests each, and each part counts with its lowest reading,
its low mark. What is given back again is in no low mark: a burst, garbage that is collected. What is filled once raises some of
them. A leak raises all, in step with the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tpy.messages import MemoryGrowth
from tpy.units import KIB, MIB, NS_PER_S

WINDOW_NS: Final = 3600 * NS_PER_S
READINGS_MAX: Final = 60
PARTS: Final = 6
PART_READINGS_MIN: Final = 2
"""With fewer in a part the trend is not known: a low mark is the lowest of several readings."""
LEAK_READINGS_MIN: Final = 30
"""Fewer do not show a leak: half an hour, in which most of what is filled once is full."""
GROWTH_BYTES_MIN: Final = 2 * MIB
"""A smaller growth of the low marks does not show a leak: allocators take memory in pieces of up to a megabyte."""
STEP_BYTES: Final = 64 * KIB
"""A step from mark to mark may be shorter by this much than it should be: heaps grow in such pieces."""


class Reading(NamedTuple):
    """The memory of a process, and the requests served by then."""

    now_ns: int
    size_bytes: int
    requests: int


class MemoryTrend:
    """The trend of one process: readings in, growth out. A process that took the place of another one gets a new trend."""

    def __init__(self) -> None:
        self._readings: list[Reading] = []
        self.growth: MemoryGrowth | None = None
        """The growth over the last hour; None while a part of it has too few readings."""

    def add(self, now_ns: int, size_bytes: int, requests: int) -> None:
        """The process has `size_bytes` now, and `requests` were served since some time in the past. A reading without a request
        since the one before only lowers that."""
        readings = self._readings
        if readings and requests <= (last := readings[-1]).requests:
            readings[-1] = last._replace(size_bytes=min(last.size_bytes, size_bytes))
        else:
            readings.append(Reading(now_ns, size_bytes, requests))
        # After an hour without requests the last reading is older than that.
        recent = [each for each in readings[-READINGS_MAX:] if each.now_ns > now_ns - WINDOW_NS] or readings[-1:]
        self._readings = recent
        was_leaking = self.growth is not None and self.growth.leaks
        parts = _parts(recent)
        self.growth = _growth(parts, was_leaking) if min(map(len, parts)) >= PART_READINGS_MIN else None


def _parts(readings: Sequence[Reading]) -> list[list[Reading]]:
    parts: list[list[Reading]] = [[] for _ in range(PARTS)]
    begin, requests = readings[0].requests, _requests(readings)
    for reading in readings:
        parts[(reading.requests - begin) * PARTS // (requests + 1)].append(reading)
    return parts


def _growth(parts: Sequence[Sequence[Reading]], was_leaking: bool) -> MemoryGrowth:
    marks = [min(part, key=lambda reading: reading.size_bytes) for part in parts]
    first, last = marks[0], marks[-1]
    slopes = [_per_1000(one, other) for one, other in pairwise(marks)]
    return MemoryGrowth(
        first_bytes=first.size_bytes,
        last_bytes=last.size_bytes,
        requests=last.requests - first.requests,
        period_ns=last.now_ns - first.now_ns,
        trend_bytes=_per_1000(first, last),
        trend_bytes_min=min(slopes),
        trend_bytes_max=max(slopes),
        leaks=_still_leaks(marks) if was_leaking else _leaks(parts, marks),
    )


def _per_1000(one: Reading, other: Reading) -> int:
    return 1000 * (other.size_bytes - one.size_bytes) // (other.requests - one.requests)


def _leaks(parts: Sequence[Sequence[Reading]], marks: Sequence[Reading]) -> bool:
    """All marks rise in step with the requests, those at the end too, and by more than the memory swings within a part."""
    swings = sorted(max(each.size_bytes for each in part) - min(each.size_bytes for each in part) for part in parts)
    if sum(map(len, parts)) < LEAK_READINGS_MIN or _rise(marks) < max(GROWTH_BYTES_MIN, swings[PARTS // 2]):
        return False
    return all(_keeps_up(step, marks, quarters=1, more_bytes=STEP_BYTES) for step in pairwise(marks)) and _keeps_up(
        marks[-3:], marks, quarters=3
    )


def _still_leaks(marks: Sequence[Reading]) -> bool:
    """It did, and has not slowed down since to a quarter of it."""
    return _rise(marks) > 0 and _keeps_up(marks[-3:], marks, quarters=1)


def _keeps_up(some: Sequence[Reading], marks: Sequence[Reading], *, quarters: int, more_bytes: int = 0) -> bool:
    """True if `some` of the marks, with `more_bytes`, rise by `quarters` / 4 of their share in an even rise of all."""
    risen = 4 * (_rise(some) + more_bytes) * _requests(marks)
    return risen >= quarters * _rise(marks) * _requests(some)


def _rise(marks: Sequence[Reading]) -> int:
    return marks[-1].size_bytes - marks[0].size_bytes


def _requests(marks: Sequence[Reading]) -> int:
    return marks[-1].requests - marks[0].requests
