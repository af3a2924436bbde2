"""The times at which requests begin.

A closed loop begins a request when another one is answered. An open loop begins them at times that the answers have no influence
on; the latency of each counts from the time at which it was due, so that a server which stops for a second shows in all the
requests that were due in this second (no coordinated omission).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

_ENDLESS = 2**62


class Schedule(Protocol):
    """Decides when requests begin. Times are nanoseconds of one monotonic clock."""

    def take(self, now_ns: int) -> int | None:
        """Begin a request, if one is due. Returns the time from which its latency counts, None when no request is due."""
        ...

    def next_ns(self) -> int | None:
        """The time at which the next one is due; None: not before an answer, or never."""
        ...

    def answered(self) -> None:
        """A request has been answered, or has failed."""
        ...

    def stop(self) -> None:
        """Begin no more requests."""
        ...

    @property
    def done(self) -> bool:
        """True when no request is to begin and all are answered."""
        ...


class ClosedLoop:
    """Keeps `concurrency` requests in flight, `requests` in all."""

    def __init__(self, concurrency: int, requests: int | None = None) -> None:
        self._concurrency = concurrency
        self._left = _ENDLESS if requests is None else requests
        self._in_flight = 0

    def take(self, now_ns: int) -> int | None:
        if self._in_flight >= self._concurrency or self._left <= 0:
            return None
        self._in_flight += 1
        self._left -= 1
        return now_ns

    def next_ns(self) -> int | None:
        return None

    def answered(self) -> None:
        self._in_flight -= 1

    def stop(self) -> None:
        self._left = 0

    @property
    def done(self) -> bool:
        return not self._in_flight and self._left <= 0


class OpenLoop:
    """Begins a request after each of the `intervals_ns`, the first one after the first of them; ends with the intervals, or after
    `requests`."""

    def __init__(self, begin_ns: int, intervals_ns: Iterator[int], requests: int | None = None) -> None:
        self._intervals = intervals_ns
        self._left = _ENDLESS if requests is None else requests
        self._in_flight = 0
        self._due: int | None = begin_ns
        self._advance()

    def _advance(self) -> None:
        interval = next(self._intervals, None) if self._left > 0 else None
        self._due = None if interval is None or self._due is None else self._due + interval

    def take(self, now_ns: int) -> int | None:
        due = self._due
        if due is None or due > now_ns:
            return None
        self._in_flight += 1
        self._left -= 1
        self._advance()
        return due

    def next_ns(self) -> int | None:
        return self._due

    def answered(self) -> None:
        self._in_flight -= 1

    def stop(self) -> None:
        self._left = 0
        self._due = None

    @property
    def done(self) -> bool:
        return not self._in_flight and self._due is None
