"""Faults of concurrency, written by hand: a wake-up lost, a slot not given back, a stop that does not wait.

Each is in a file of by_hand/: what breaks, the file, a text that occurs in it exactly once, what stands there instead, and the
suites of which one must fail."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from tests.mutation.mutants import Mutant

_FOLDER = Path(__file__).with_name("by_hand")


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`name` is unique; `suites` as in suites.py, of which all are run until one fails."""

    name: str
    breaks: str
    file: str
    old: str
    new: str
    suites: tuple[str, ...]

    def mutant(self, root: Path) -> Mutant:
        """The file with the fault in it. ValueError: the text is not in the file, or more than once."""
        source = (root / self.file).read_text()
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: the text to replace occurs {source.count(self.old)} times in {self.file}, expected once"
            )
        line = source[: source.index(self.old)].count("\n") + 1
        return Mutant(self.file, line, self.name, source.replace(self.old, self.new))


def faults() -> list[Fault]:
    """All of them."""
    found = []
    for path in sorted(_FOLDER.glob("*.toml")):
        found += msgspec.convert(tomllib.loads(path.read_text())["fault"], list[Fault])
    names = [fault.name for fault in found]
    assert len(set(names)) == len(names), "two faults with one name"
    return found
