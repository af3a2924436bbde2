"""The levels of a run, as the flags say."""

from __future__ import annotations

from pathlib import Path

from tpy.cli.parsing import UsageError
from tpy.cli.perf.options import PerfOptions
from tpy.limits import LOAD_INTERVALS_MAX
from tpy.load import Level
from tpy.load.core.ranges import BadRange, LevelRange, parse_range
from tpy.load.core.searching import BinarySearch, LinearSearch, Search


class Levels:
    """The levels of a run, one after another. Raises UsageError."""

    def __init__(self, options: PerfOptions) -> None:
        given = [bool(options.concurrency), bool(options.rate), options.request_intervals is not None]
        if sum(given) > 1:
            raise UsageError("expected one of --concurrency-range, --request-rate-range and --request-intervals")
        self._poisson = options.request_distribution == "poisson"
        self.is_rate = bool(options.rate)
        self._intervals = _read_intervals(options.request_intervals) if options.request_intervals else None
        levels = _range(options)
        if not levels.end and not options.latency_threshold:
            raise UsageError("an end of 0 goes on until --latency-threshold, which is not given")
        self._search: Search = LinearSearch(levels)
        try:
            self.count = len(levels.levels()) if levels.end and self._intervals is None else 1
        except BadRange as error:
            raise UsageError(str(error)) from None
        if options.binary_search:
            self._search = _bisection(options, levels)
            self.count = 0
        self._done = False

    def next(self, *, met: bool) -> Level | None:
        """The next level, None at the end. `met`: the latency of the one before is not above the threshold."""
        if self._intervals is not None:
            level, self._done = (None if self._done else Level(intervals_ns=self._intervals)), True
            return level
        value = self._search.next(met=met)
        if value is None:
            return None
        return Level(rate=value, poisson=self._poisson) if self.is_rate else Level(concurrency=int(value))


def _bisection(options: PerfOptions, levels: LevelRange) -> BinarySearch:
    if ":" not in (options.rate or options.concurrency) or not levels.end:
        raise UsageError("--binary-search needs a --concurrency-range or --request-rate-range with a start and an end")
    if levels.factor:
        raise UsageError("--binary-search: the step is how near the result has to be: a number, no factor")
    if not options.latency_threshold:
        raise UsageError("--binary-search looks for the highest level that meets --latency-threshold, which is not given")
    return BinarySearch(levels, whole=not options.rate)


def _range(options: PerfOptions) -> LevelRange:
    name = "--request-rate-range" if options.rate else "--concurrency-range"
    try:
        return parse_range(options.rate or options.concurrency or "1", whole=not options.rate)
    except BadRange as error:
        raise UsageError(f"{name}: {error}") from None


def _read_intervals(path: Path) -> tuple[int, ...]:
    try:
        lines = path.read_text(encoding="utf-8").split()
        found = tuple(round(float(line) * 1e3) for line in lines)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"--request-intervals: {path}: expected a number of microseconds in each line: {error}") from None
    if not found or len(found) > LOAD_INTERVALS_MAX or min(found) < 0 or not sum(found):
        raise UsageError(
            f"--request-intervals: {path}: expected 1 to {LOAD_INTERVALS_MAX} intervals, none below 0, and not all 0"
        )
    return found
