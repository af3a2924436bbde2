"""Budgets: what costs us and gives nothing, of one peer over time; bytes of all peers at the same time."""

from __future__ import annotations

from tpy.units import NS_PER_S


class Budget:
    """A token bucket. Full at the beginning; refilled by time and by the useful things that the peer does."""

    __slots__ = ("_capacity", "_last_ns", "_ns_per_token", "_tokens")

    def __init__(self, capacity: int, per_s: int, now_ns: int) -> None:
        self._capacity = capacity
        self._tokens = capacity
        self._ns_per_token = NS_PER_S // per_s
        self._last_ns = now_ns

    def spend(self, now_ns: int) -> bool:
        """Take one token; False: no token is left."""
        if self._tokens <= 0:
            earned = (now_ns - self._last_ns) // self._ns_per_token
            if earned <= 0:
                return False
            self._last_ns += earned * self._ns_per_token
            self._tokens = min(self._capacity, earned)
        self._tokens -= 1
        return True

    def refund(self, tokens: int) -> None:
        """Give back for something useful."""
        self._tokens = min(self._capacity, self._tokens + tokens)


class ByteBudget:
    """Bytes that all peers together may have us hold at the same time."""

    __slots__ = ("_capacity", "held")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.held = 0

    def take(self, count: int) -> bool:
        """Hold `count` more; False: there is no room for them, and nothing has changed."""
        if self.held + count > self._capacity:
            return False
        self.held += count
        return True

    def give(self, count: int) -> None:
        """Hold `count` fewer."""
        self.held -= count
