"""Runner: tries a target's histories one after the other, and reports."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator

from fuzz.target import Target


def run_target(target: Target, *, seed: int, examples: int | None, seconds: float | None) -> bool:
    """Try the histories seed, seed + 1, ... until one breaks the invariant or a limit is reached; returns whether all is well.

    With neither limit given it goes on until it is interrupted.
    """
    print(f"{target.name}: {target.invariant}")
    began = time.monotonic()
    tried = steps = 0
    for history in _seeds(seed, examples, None if seconds is None else began + seconds):
        try:
            steps += target.run(history)
        except Exception as error:
            return _report_failure(target, history, error)
        tried += 1
    took = max(time.monotonic() - began, 1e-9)
    print(f"  held in {tried} histories, {steps} steps, {took:.1f} s ({tried / took:.0f} histories/s), first seed {seed}")
    if target.must_fail:
        print(f"  FAILED: {target.name} must fail and did not: failures are no longer found")
    return not target.must_fail


def _seeds(first: int, examples: int | None, until: float | None) -> Iterator[int]:
    seed = first
    while (examples is None or seed < first + examples) and (until is None or time.monotonic() < until):
        yield seed
        seed += 1


def _report_failure(target: Target, history: int, error: Exception) -> bool:
    if target.must_fail:
        print(f"  failed at seed {history}, as it must: {_first_line(error)}")
        return True
    traceback.print_exception(error, file=sys.stdout)
    print(f"  FAILED at seed {history}: {_first_line(error)}")
    print(f"  replay: python -m fuzz --target {target.name} --replay {history}")
    return False


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
