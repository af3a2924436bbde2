"""The events of a run, line by line, with virtual time. The same seed gives the same journal, byte for byte."""

from __future__ import annotations

import hashlib
from collections import Counter

import trio


class Violation(AssertionError):
    """A promise of the server did not hold."""


class Journal:
    """Lines and counts. Whoever sees a promise broken writes it here and goes on; the run fails at its end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def note(self, kind: str, *fields: object) -> None:
        """One event."""
        self.lines.append(" ".join((f"{trio.current_time():.9f}", kind, *map(str, fields))))

    def count(self, what: str) -> None:
        """One more of this, for the report."""
        self.counts[what] += 1

    def broken(self, what: str) -> None:
        """A promise did not hold."""
        self.note("VIOLATION", what)
        self.violations.append(what)

    @property
    def digest(self) -> str:
        """Of all lines."""
        return hashlib.blake2b("\n".join(self.lines).encode(), digest_size=16).hexdigest()
