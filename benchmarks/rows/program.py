"""The server in a program: calls of a function from threads and tasks, without a port."""

from __future__ import annotations

from benchmarks import calls_in_a_program
from benchmarks.bench import Bench

ROW = "tpy.Server in a program, a function of 16 floats"
BASELINE = "another thread"
_UNITS = (("wall clock", "us/call"), ("CPU", "us/call"), ("quickest call", "us"))


def measure(bench: Bench) -> None:
    """All kinds of callers, interleaved, in their own program."""
    for caller, rounds in calls_in_a_program.drive(bench.effort.rounds).items():
        for number, one in enumerate(rounds, 1):
            values = (one.wall_us, one.cpu_us, one.best_us)
            bench.note_each(
                ((metric, unit, value) for (metric, unit), value in zip(_UNITS, values, strict=True)),
                row=ROW,
                case="one call after the other",
                contender=caller,
                baseline=BASELINE,
                number=number,
            )
