"""The targets of memory trends: random histories of leaks, bursts, garbage and idle times, beside a model that keeps every
reading and works each answer out anew, in fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from fuzz.chance import Chance
from fuzz.target import Target, Violation
from tpy.messages import MemoryGrowth
from tpy.units import KIB, MIB, NS_PER_S
from tpy_data.engine.memory.core.memory_trend import MemoryTrend

MINUTE_NS = 60 * NS_PER_S
_STEPS = (40, 90, 160)
_RULES = ("requests", "idle", "pause", "leak", "burst", "garbage", "known", "leaks", "healed")
_INVARIANT = "a process leaks from when the lowest readings of six parts of an hour rise in step with requests, until they do not"


class NaiveTrend:
    """The trend, written for being right and nothing else."""

    def __init__(self) -> None:
        self.readings: list[tuple[int, int, int]] = []
        self.growth: MemoryGrowth | None = None

    def add(self, now_ns: int, size: int, requests: int) -> None:
        """Tell it of a reading."""
        if self.readings and self.readings[-1][2] >= requests:
            at, other, same = self.readings.pop()
            self.readings.append((at, min(size, other), same))
        else:
            self.readings.append((now_ns, size, requests))
        seen = [each for each in self.readings if now_ns - each[0] < 60 * MINUTE_NS][-60:] or self.readings[-1:]
        begin, many = seen[0][2], seen[-1][2] - seen[0][2] + 1
        parts = [[each for each in seen if part * many <= 6 * (each[2] - begin) < (part + 1) * many] for part in range(6)]
        if any(len(part) < 2 for part in parts):
            self.growth = None
            return
        marks = [sorted(part, key=lambda each: each[1])[0] for part in parts]
        slopes = [_slope(marks[index], marks[index + 1]) for index in range(5)]
        all_of_it, at_the_end = _slope(marks[0], marks[5]), _slope(marks[3], marks[5])
        if self.growth is not None and self.growth.leaks:
            leaks = all_of_it > 0 and at_the_end >= all_of_it / 4
        else:
            swings = sorted(max(size for _, size, _ in part) - min(size for _, size, _ in part) for part in parts)
            leaks = len(seen) >= 30 and marks[5][1] - marks[0][1] >= max(2 * MIB, swings[3]) and at_the_end >= all_of_it * 3 / 4
            for one, other in pairwise(marks):
                expected = all_of_it * (other[2] - one[2])
                leaks = leaks and other[1] - one[1] + 64 * KIB >= expected / 4
        self.growth = MemoryGrowth(
            first_bytes=marks[0][1],
            last_bytes=marks[5][1],
            requests=marks[5][2] - marks[0][2],
            period_ns=marks[5][0] - marks[0][0],
            trend_bytes=_floor(1000 * all_of_it),
            trend_bytes_min=min(_floor(1000 * slope) for slope in slopes),
            trend_bytes_max=max(_floor(1000 * slope) for slope in slopes),
            leaks=leaks,
        )


def _floor(value: Fraction) -> int:
    return value.__floor__()


def _slope(one: tuple[int, int, int], other: tuple[int, int, int]) -> Fraction:
    return Fraction(other[1] - one[1], other[2] - one[2])


class ForgetfulTrend(MemoryTrend):
    """Wrong on purpose: memory that is given back while nobody asks does not count."""

    def __init__(self) -> None:
        super().__init__()
        self._requests = -1

    def add(self, now_ns: int, size_bytes: int, requests: int) -> None:
        """Leaves some out."""
        if requests > self._requests:
            self._requests = requests
            super().add(now_ns, size_bytes, requests)


def run_history(chance: Chance, kind: type[MemoryTrend] = MemoryTrend) -> int:
    """Drive a trend through a random history beside the naive model; returns the number of its steps."""
    trend, naive = kind(), NaiveTrend()
    now_ns, requests, kept = 0, 0, 100 * MIB
    leak, garbage = chance.choice((0, 0, 100, 1000, 5000)), 0
    steps = 0
    for _ in chance.rounds(_STEPS):
        steps += 1
        now_ns += MINUTE_NS
        rule = chance.choice(("requests",) * 30 + ("idle", "leak", "burst", "pause"))
        chance.took(rule)
        if rule in ("pause", "idle"):
            now_ns += chance.choice((0, 5, 30, 70)) * MINUTE_NS
        elif rule == "leak":
            leak = chance.choice((0, 100, 1000, 5000))
        if rule != "idle":
            served = chance.choice((1, 50, 100, 400))
            requests += served
            kept += leak * served
            garbage = chance.choice((0, 0, 0, 64 * KIB, MIB, 3 * MIB))
        elif garbage:
            chance.took("garbage")
            garbage = 0
        burst = chance.choice((0, 10 * MIB)) if rule == "burst" else 0
        was = naive.growth is not None and naive.growth.leaks
        for each in (trend, naive):
            each.add(now_ns, kept + garbage + burst, requests)
        if trend.growth != naive.growth:
            raise Violation(f"after {steps} readings: {trend.growth}, expected {naive.growth}")
        leaks = naive.growth is not None and naive.growth.leaks
        if naive.growth is not None:
            chance.took("leaks" if leaks else "healed" if was else "known")
    return steps


def _run_forgetful(chance: Chance) -> int:
    return run_history(chance, ForgetfulTrend)


MEMORY_TREND = Target(name="memory_trend", invariant=_INVARIANT, run=run_history, smoke_examples=80, rules=_RULES)
CANARY = Target(
    name="memory_trend_canary",
    invariant="a trend that does not count what is given back while nobody asks is found out",
    run=_run_forgetful,
    smoke_examples=20,
    must_fail=True,
)
