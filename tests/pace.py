"""The pace of this machine's interpreter, for bounds on the time of the loop: a machine half as fast may take twice as long."""

from __future__ import annotations

import functools
import time

_REFERENCE_S = 0.0075
"""CPU time of the work below on the machine whose bounds are in the tests (Python 3.11, 2026)."""

_TRIES = 7


def _work() -> None:
    sorted(str(number * 7919 % 50_000) for number in range(30_000))


@functools.cache
def slowness() -> float:
    """The time that this interpreter takes for a piece of work, in times of the reference; at least 1."""
    times: list[float] = []
    for _ in range(_TRIES):
        began = time.thread_time()
        _work()
        times.append(time.thread_time() - began)
    return max(1.0, min(times) / _REFERENCE_S)


def at_pace(seconds: float) -> float:
    """A bound that holds on the reference, for this machine."""
    return seconds * slowness()
