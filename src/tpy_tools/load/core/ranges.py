"""Ranges of levels as they are written on a command line: `8`, `1:16`, `1:16:2`, `1:64:*2`."""

from __future__ import annotations

import msgspec

from tpy.limits.loading import LOAD_LEVELS_MAX


class BadRange(Exception):
    """An invalid range. `str()` says why."""


class LevelRange(msgspec.Struct, frozen=True, kw_only=True):
    """The levels from `start` to `end` at most, each more than the one before by `step`, or `factor` times as much. `end` 0: on
    and on."""

    start: float
    end: float
    step: float = 1.0
    factor: float = 0.0

    def after(self, level: float) -> float | None:
        """The level that follows, None at the end."""
        following = level * self.factor if self.factor else level + self.step
        return following if not self.end or following <= self.end * (1 + 1e-9) else None

    def levels(self) -> list[float]:
        """All levels of a range that has an end. Raises BadRange when they are too many."""
        found: list[float] = []
        level: float | None = self.start
        while level is not None:
            found.append(level)
            if len(found) > LOAD_LEVELS_MAX:
                raise BadRange(f"more than {LOAD_LEVELS_MAX} levels")
            level = self.after(level)
        return found


def parse_range(text: str, *, whole: bool) -> LevelRange:
    """Read START, START:END or START:END:STEP, the step a number or `*` and a factor. `whole`: whole numbers only. Raises
    BadRange."""
    parts = text.split(":")
    if len(parts) > 3:
        raise BadRange(f"expected START, START:END or START:END:STEP, got {text!r}")
    multiplied = len(parts) == 3 and parts[2].startswith("*")
    if multiplied:
        parts[2] = parts[2][1:]
    numbers = [_number(part, text, whole=whole and not (multiplied and at == 2)) for at, part in enumerate(parts)]
    start, end, step = numbers[0], numbers[1] if len(numbers) > 1 else numbers[0], numbers[2] if len(numbers) > 2 else 1.0
    if start <= 0:
        raise BadRange(f"expected a start above 0, got {text!r}")
    if end and end < start:
        raise BadRange(f"expected an end that is not below the start, got {text!r}")
    if multiplied and step <= 1:
        raise BadRange(f"expected a factor above 1, got {text!r}")
    if step <= 0:
        raise BadRange(f"expected a step above 0, got {text!r}")
    return LevelRange(start=start, end=end, step=step, factor=step if multiplied else 0.0)


def _number(part: str, text: str, *, whole: bool) -> float:
    try:
        number = float(part)
    except ValueError:
        number = float("nan")
    if not 0 <= number < 1e12 or (whole and number != int(number)):
        raise BadRange(f"expected {'whole numbers' if whole else 'numbers'} in {text!r}")
    return number
