"""The clocks of the machine, as schedulers, engine and frontends are given them."""

from __future__ import annotations

import time
from typing import Protocol

from tpy.units import NS_PER_MS


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
