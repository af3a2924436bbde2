"""State that all rows share during one run of the program."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.measurement import Measurement
from benchmarks.servers.peers import Peers


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of measuring: `rounds` over all contenders, `seconds` for each value, and with `quick` fewer cases."""

    rounds: int
    seconds: int
    quick: bool

    def cases(self, every: Sequence[int], few: Sequence[int]) -> Sequence[int]:
        """`few` of the cases of a row when in a hurry."""
        return few if self.quick else every


class Bench:
    """One run: what to measure with, where scratch files go, what was measured so far. `folder` belongs to the caller."""

    def __init__(self, *, effort: Effort, peers: Peers, folder: Path, models: Path) -> None:
        """`models` is the demo repository."""
        self.effort = effort
        self.peers = peers
        self.models = models
        self.measurements: list[Measurement] = []
        self._folder = folder
        self._numbers = itertools.count(1)

    def fresh(self, name: str) -> Path:
        """A path in the scratch folder that nothing has yet."""
        return self._folder / f"{next(self._numbers):02d}-{name.replace(' ', '-')}"

    def rounds(self) -> Iterator[int]:
        """The rounds, from 1. Within each, a row measures every contender once: A B C, A B C."""
        return iter(range(1, self.effort.rounds + 1))

    def note(self, measurement: Measurement) -> None:
        """Keep a value and show it."""
        self.measurements.append(measurement)
        one = measurement
        self.say(f"{one.row}, {one.case}, {one.contender}, round {one.round}: {one.metric} {one.value:,.2f} {one.unit}".rstrip())

    def note_each(
        self, values: Iterable[tuple[str, str, float]], *, row: str, case: str, contender: str, baseline: str, number: int
    ) -> None:
        """Keep several values (metric, unit, value) of one contender in one case and round."""
        for metric, unit, value in values:
            self.note(
                Measurement(
                    row=row,
                    case=case,
                    metric=metric,
                    unit=unit,
                    contender=contender,
                    baseline=baseline,
                    round=number,
                    value=value,
                )
            )

    def say(self, text: str) -> None:
        """Tell whoever waits, on standard error."""
        print(text, file=sys.stderr, flush=True)
