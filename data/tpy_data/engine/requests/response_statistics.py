"""ResponseCounters: the numbers of `response_stats`, per index of a response within its request. Of the Trio thread only."""

from __future__ import annotations

import enum

from tpy.limits import RESPONSE_STATISTICS_MAX
from tpy.messages import Duration, ResponseStatistics


class Kind(enum.IntEnum):
    """The kinds of responses."""

    SUCCESS = 0
    FAIL = 1
    EMPTY = 2
    CANCEL = 3


class ResponseCounters:
    """Grows by one row with each new index, up to RESPONSE_STATISTICS_MAX rows."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[list[int]] = []  # per kind: count, infer ns, output ns

    def add(self, kind: Kind, index: int, infer_ns: int, output_ns: int) -> None:
        """Count one response."""
        rows = self._rows
        index = min(index, RESPONSE_STATISTICS_MAX - 1)
        while len(rows) <= index:
            rows.append([0] * (3 * len(Kind)))
        row, at = rows[index], 3 * kind
        row[at] += 1
        row[at + 1] += infer_ns
        row[at + 2] += output_ns

    def snapshot(self) -> tuple[ResponseStatistics, ...]:
        """The rows, by index."""
        return tuple(_statistics(index, row) for index, row in enumerate(self._rows))


def _statistics(index: int, row: list[int]) -> ResponseStatistics:
    def both(kind: Kind) -> Duration:
        count, infer_ns, output_ns = row[3 * kind : 3 * kind + 3]
        return Duration(count, infer_ns + output_ns)

    success, fail = 3 * Kind.SUCCESS, 3 * Kind.FAIL
    computed = row[success] + row[fail]
    return ResponseStatistics(
        index=index,
        compute_infer=Duration(computed, row[success + 1] + row[fail + 1]),
        compute_output=Duration(row[success], row[success + 2]),
        success=both(Kind.SUCCESS),
        fail=both(Kind.FAIL),
        empty_response=both(Kind.EMPTY),
        cancel=both(Kind.CANCEL),
    )
