"""TokenBucket: a rate with bursts. Time is an argument."""

from __future__ import annotations

from tpy.units import NS_PER_S


class TokenBucket:
    """A rate with bursts: `burst` tokens at first and at most, `per_s` new ones a second. Counted in whole nanoseconds, so that
    no rounding adds up."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._cost_ns = max(1, round(NS_PER_S / per_s))
        self._full_ns = burst * self._cost_ns
        self._level_ns = self._full_ns
        self._at_ns = 0
        self._begun = False

    def take(self, now_ns: int) -> int:
        """Take a token. Returns 0, or the nanoseconds until there is one; then none was taken."""
        if not self._begun:
            self._begun, self._at_ns = True, now_ns
        self._level_ns = min(self._full_ns, self._level_ns + max(0, now_ns - self._at_ns))
        self._at_ns = max(self._at_ns, now_ns)
        if self._level_ns < self._cost_ns:
            return self._cost_ns - self._level_ns
        self._level_ns -= self._cost_ns
        return 0
