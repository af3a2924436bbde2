"""Time: the only place where the server reads a clock, and where floats of seconds meet integer nanoseconds."""

from __future__ import annotations

import time
from typing import Protocol

import trio

from tpy.units import NS_PER_MS, NS_PER_S


class Clock(Protocol):
    """Monotonic and wall time. Both methods may be called from any thread."""

    def now_ns(self) -> int:
        """Monotonic time in nanoseconds; only differences mean anything."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, for people and for `last_inference`."""
        ...


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.monotonic_ns)

    def wall_ms(self) -> int:
        return time.time_ns() // NS_PER_MS


class TrioClock:
    """The time of a Trio run. With MockClock this is virtual time; `wall_ms` then starts at zero with the run."""

    def __init__(self, clock: trio.abc.Clock) -> None:
        self._clock = clock

    def now_ns(self) -> int:
        return round(self._clock.current_time() * NS_PER_S)

    def wall_ms(self) -> int:
        return self.now_ns() // NS_PER_MS


async def sleep_until_ns(clock: Clock, deadline_ns: int) -> int:
    """Sleep until `deadline_ns` and return the time to pass to a core: never before the deadline.

    Timers may fire a rounding error early; a core told an earlier time would ask for the same deadline again and,
    under an auto-jumping clock, spin for ever. Cancellation is Trio's.
    """
    await trio.sleep(max(0, deadline_ns - clock.now_ns()) / NS_PER_S)
    return max(clock.now_ns(), deadline_ns)
