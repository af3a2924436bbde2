"""Arrivals: the rows that came during one execution, and how many come in a time."""

from __future__ import annotations

from bisect import bisect_right

from tpy.limits.tuning import ARRIVALS_NS, REPLAYED_ARRIVALS_MAX
from tpy.units import NS_PER_S


class Arrivals:
    """The rows that arrived, by the time since the batch could have gone."""

    __slots__ = ("_offsets_ns", "_rows")

    def __init__(self) -> None:
        self._offsets_ns: list[int] = []
        self._rows: list[int] = []  # by then, all together

    def add(self, rows: int, offset_ns: int) -> None:
        """A request has come. Of more than REPLAYED_ARRIVALS_MAX the last ones do not count."""
        if len(self._rows) < REPLAYED_ARRIVALS_MAX:
            self._offsets_ns.append(offset_ns)
            self._rows.append(rows + (self._rows[-1] if self._rows else 0))

    def rows_by(self, offset_ns: int) -> int:
        """The rows that arrived by then."""
        index = bisect_right(self._offsets_ns, offset_ns)
        return self._rows[index - 1] if index else 0

    def time_of(self, rows: int) -> int:
        """The time by which `rows` rows had arrived. At least that many did."""
        return self._offsets_ns[bisect_right(self._rows, rows - 1)]


class ArrivalRate:
    """Rows that arrive in a time: of the last ARRIVALS_NS about, older ones count half. What arrives is added to `rows`; at
    `half_ns` they are to be halved."""

    __slots__ = ("_since_ns", "half_ns", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self._since_ns = 0
        self.half_ns = -1

    def halve(self, now_ns: int) -> None:
        """Have what came until now count half."""
        span_ns = now_ns - self._since_ns
        if self.half_ns < 0:
            self._since_ns = now_ns
        else:
            self.rows = max(1, self.rows // 2)
            self._since_ns = now_ns - min(span_ns // 2, ARRIVALS_NS)
        self.half_ns = self._since_ns + ARRIVALS_NS

    def per_s(self, now_ns: int) -> int:
        """Rows in a second."""
        return self.rows * NS_PER_S // max(now_ns - self._since_ns, 1) if self.rows > 1 else 0

    def in_ns(self, time_ns: int, now_ns: int) -> int:
        """Rows in a time."""
        return self.rows * time_ns // max(now_ns - self._since_ns, 1) if self.rows > 1 else 0
