"""Target: an invariant and a way to try a history against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzz.chance import Chance


class Violation(AssertionError):
    """The invariant did not hold. The text says what was seen and what was expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One thing to fuzz.

    * `invariant`: what must hold, in words.
    * `run`: tries one history; draws every choice from the chance it is given, returns its number of steps, raises when the
      invariant is broken.
    * `smoke_examples`: how many histories the smoke mode tries; together all targets must stay under 3 minutes.
    * `must_fail`: a canary, there to prove that failures are found: it is wrong on purpose and the run fails if it passes.
    * `rules`: what a history can do. The smoke run fails when one of them was never taken.
    * `attack`: tries bytes of somebody else's choice, as a coverage-guided fuzzer makes them. None: the target has no bytes.
    """

    name: str
    invariant: str
    run: Callable[[Chance], int]
    smoke_examples: int
    must_fail: bool = False
    rules: tuple[str, ...] = ()
    attack: Callable[[bytes], int] | None = None

    def try_seed(self, seed: int) -> int:
        """The history of that seed."""
        return self.run(Chance(seed))
