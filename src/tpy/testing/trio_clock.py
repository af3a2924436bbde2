"""TrioClock: the (possibly virtual) time of a Trio run."""

from __future__ import annotations

import trio

from tpy.units import NS_PER_MS, NS_PER_S


class TrioClock:
    """A `Clock` of a Trio run. With MockClock this is virtual time; `wall_ms` then starts at zero with the run."""

    def __init__(self, clock: trio.abc.Clock) -> None:
        self._clock = clock

    def now_ns(self) -> int:
        return round(self._clock.current_time() * NS_PER_S)

    def wall_ms(self) -> int:
        return self.now_ns() // NS_PER_MS
