"""The pace of this machine: of its interpreter, for bounds on CPU time, and of what it runs besides, for bounds on waits."""

from __future__ import annotations

import functools
import os
import time

_REFERENCE_S = 0.0075
"""CPU time of the work below on the machine whose bounds are in the tests (Python 3.11, 2026)."""

_MEMORY_BYTES = 64_000_000
_MEMORY_REFERENCE_S = 0.015
"""Time in which this much new memory is written to on such a machine. A virtual machine whose host has to find the memory takes
ten times as long and more."""

_TRIES = 7

_TASKS_OF_A_CORE_MAX = 25.0


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


def memory_slowness() -> float:
    """The longest time that new memory takes now, in times of the reference; at least 1. It is another one in each second."""
    times: list[float] = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        bytearray(b"x") * _MEMORY_BYTES
        times.append(time.perf_counter() - began)
    return max(1.0, max(times) / _MEMORY_REFERENCE_S)


def at_memory_pace(seconds: float) -> float:
    """A bound on a time that is spent with new memory, for this machine."""
    return seconds * max(slowness(), memory_slowness())


def at_pace(seconds: float) -> float:
    """A bound on CPU time that holds on the reference, for this machine."""
    return seconds * slowness()


def with_patience(seconds: float) -> float:
    """A bound on a wait for other processes that holds on the idle reference, for this machine as busy as it is now."""
    tasks = os.getloadavg()[0] / (os.cpu_count() or 1)
    return at_pace(seconds) * min(max(1.0, tasks), _TASKS_OF_A_CORE_MAX)
