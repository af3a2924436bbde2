"""Target: an invariant and a way to try a history against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Violation(AssertionError):
    """The invariant did not hold. The text says what was seen and what was expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One thing to fuzz.

    * `invariant`: what must hold, in words.
    * `run`: tries the history that belongs to a seed; returns its number of steps, raises when the invariant is broken.
    * `smoke_examples`: how many histories the smoke mode tries; together all targets must stay under 20 s.
    * `must_fail`: a canary, there to prove that failures are found: it is wrong on purpose and the run fails if it passes.
    """

    name: str
    invariant: str
    run: Callable[[int], int]
    smoke_examples: int
    must_fail: bool = False
