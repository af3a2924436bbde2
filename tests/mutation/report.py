"""The outcome of the mutants, in lines and in data."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutation.mutants import Mutant
from tests.mutation.suites import group_of
from tests.mutation.trial import End

_FATES = ("killed", "justified", "survived")


class Report:
    """Counts fates; prints survivors when found. With an `earlier` result it goes on; what survived is told anew."""

    def __init__(self, earlier: dict[str, Any] | None = None) -> None:
        self._began = time.monotonic()
        self._files: dict[str, Counter[str]] = {}
        self._survivors: list[dict[str, str | int]] = []
        self._stuck = 0
        if earlier is not None:
            self._files = {name: Counter(counts) for name, counts in earlier["files"].items()}
            for counts in self._files.values():
                counts["survived"] = 0

    def add(self, mutant: Mutant, line: str, end: End, *, why: str | None) -> None:
        """Of one mutant; `why` it may survive, None: it may not."""
        fate = "killed" if end is not End.SURVIVED else "survived" if why is None else "justified"
        self._stuck += end is End.STUCK
        self._files.setdefault(mutant.path, Counter())[fate] += 1
        if fate == "survived":
            self._survivors.append({"file": mutant.path, "number": mutant.line, "line": line, "what": mutant.what})
            print(f"SURVIVED {mutant.path}:{mutant.line}: {mutant.what}: {line}", flush=True)

    def percent(self) -> float:
        """Of all mutants, killed or justified."""
        total = self._total()
        return 100 * (1 - total["survived"] / max(total.total(), 1))

    def text(self, *, by_hand: bool) -> str:
        """A line for each file, for each group of files unless they are few, and for all."""
        lines = [_row(name, counts) for name, counts in sorted(self._files.items())]
        if not by_hand:
            groups: dict[str, Counter[str]] = {}
            for name, counts in self._files.items():
                groups.setdefault(group_of(Path(name)), Counter()).update(counts)
            lines += ["", *(_row(name, counts) for name, counts in groups.items())]
        seconds = time.monotonic() - self._began
        lines.append(_row("all", self._total()))
        lines.append(f"{self.percent():.1f} % killed or justified, {seconds:.0f} s; {self._stuck} of the killed were stuck")
        return "\n".join(["generated    killed justified  survived", *lines])

    def data(self) -> dict[str, object]:
        """For a file."""
        return {"files": {name: dict(counts) for name, counts in self._files.items()}, "survivors": self._survivors}

    def _total(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for counts in self._files.values():
            total.update(counts)
        return total


def _row(name: str, counts: Counter[str]) -> str:
    return f"{counts.total():9} " + " ".join(f"{counts[fate]:9}" for fate in _FATES) + f"  {name}"
