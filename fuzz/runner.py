"""Runner: tries a target's histories one after the other, shrinks what fails, and reports."""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fuzz import corpus_file
from fuzz.chance import Chance, Tape
from fuzz.shrinker import Shrinker, play
from fuzz.target import Target, Violation

_SHOWN_CHARACTERS_MAX = 400
_COLLECT_EVERY = 100
"""Histories."""


@dataclass(slots=True)
class Report:
    """The outcome of a run: `text` is for people, `taken` says how often each rule was taken."""

    target: str
    is_well: bool = True
    histories: int = 0
    steps: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of this process: what others do on the machine does not count."""
    taken: Counter[str] = field(default_factory=Counter)
    text: list[str] = field(default_factory=list)
    canary_failed: bool = False
    """A target that must fail has failed."""

    def say(self, line: str) -> None:
        """Add a line for people."""
        self.text.append(line)

    def fail(self, line: str) -> None:
        """Something is not as it must be."""
        self.is_well = False
        self.text.append(f"  {line}")


def run_target(
    target: Target, *, seed: int, examples: int | None, seconds: float | None, folder: Path = corpus_file.FOLDER
) -> Report:
    """Try the corpus, then the histories seed, seed + 1, ... until one breaks the invariant or a limit is reached.

    With neither limit given it goes on until it is interrupted. A history that fails is shrunk and written into `folder`.
    """
    report = Report(target.name)
    report.say(f"{target.name}: {target.invariant}")
    if not _try_corpus(target, report, folder):
        return report
    began, cpu_began = time.monotonic(), time.process_time()
    chance = Chance()
    gc.disable()  # histories make many short-lived circles: collecting them at once, now and then, is faster
    gc.freeze()  # and what was there before need not be looked at again
    try:
        _try_histories(target, report, chance, _seeds(seed, examples, None if seconds is None else began + seconds), folder)
    finally:
        gc.unfreeze()
        gc.enable()
    if not report.is_well or report.canary_failed:
        return report
    report.seconds = time.monotonic() - began
    report.cpu_seconds = max(time.process_time() - cpu_began, 1e-9)
    report.taken = chance.taken
    per_second = f"{report.histories / report.cpu_seconds:.0f} histories/s, {report.steps / report.cpu_seconds:.0f} steps/s"
    report.say(
        f"  held in {report.histories} histories, {report.steps} steps, {report.seconds:.1f} s,"
        f" {report.cpu_seconds:.1f} s of CPU ({per_second}), first seed {seed}"
    )
    if chance.taken:
        report.say("  rules: " + ", ".join(f"{name} {count}" for name, count in sorted(chance.taken.items())))
    if target.must_fail:
        report.fail(f"FAILED: {target.name} must fail and did not: failures are no longer found")
    return report


def _try_histories(target: Target, report: Report, chance: Chance, seeds: Iterator[int], folder: Path) -> None:
    for history in seeds:
        chance.seed(history)
        try:
            report.steps += target.run(chance)
        except Exception as error:
            _report_failure(target, history, error, report, folder)
            return
        report.histories += 1
        if report.histories % _COLLECT_EVERY == 0:
            gc.collect()


def check_rules(target: Target, report: Report) -> None:
    """Fail the report if a rule of the target was never taken, or one was that the target does not name."""
    if never := sorted(set(target.rules) - set(report.taken)):
        report.fail(f"FAILED: never taken: {', '.join(never)}")
    if unnamed := sorted(set(report.taken) - set(target.rules)):
        report.fail(f"FAILED: taken but not among the target's rules: {', '.join(unnamed)}")


def replay_file(target: Target, path: Path) -> Report:
    """Try a corpus file again."""
    report = Report(target.name)
    entry = corpus_file.read(path)
    report.say(f"{target.name}: {target.invariant}")
    try:
        steps = corpus_file.try_entry(target, entry)
    except Exception as error:
        report.say("".join(traceback.format_exception(error)).rstrip())
        report.fail(f"FAILED: {first_line(error)}")
    else:
        report.say(f"  held in {steps} steps; found once: {entry.found}")
    return report


def _try_corpus(target: Target, report: Report, folder: Path) -> bool:
    tried = 0
    for path in corpus_file.entries(target.name, folder):
        try:
            corpus_file.try_entry(target, corpus_file.read(path))
        except Exception as error:
            report.say("".join(traceback.format_exception(error)).rstrip())
            report.fail(f"FAILED, as once before: {first_line(error)}")
            report.say(f"  replay: python -m fuzz --replay {corpus_file.shown(path)}")
            return False
        tried += 1
    if tried:
        report.say(f"  held in {tried} histories of the corpus")
    return True


def _seeds(first: int, examples: int | None, until: float | None) -> Iterator[int]:
    seed = first
    while (examples is None or seed < first + examples) and (until is None or time.monotonic() < until):
        yield seed
        seed += 1


def _report_failure(target: Target, history: int, error: Exception, report: Report, folder: Path) -> None:
    if target.must_fail and isinstance(error, Violation):
        report.canary_failed = True
        report.say(f"  failed at seed {history}, as it must: {first_line(error)}")
        return
    tape = Tape(seed=history)
    again = play(target.run, tape)
    if again is None or type(again) is not type(error):
        report.say("".join(traceback.format_exception(error)).rstrip())
        report.fail(f"FAILED at seed {history}: {first_line(error)}")
        report.say(
            f"  and then {'held' if again is None else f'failed otherwise: {again!r}'}: it does not follow from its seed alone"
        )
        return
    shrinker = Shrinker(target.run, tape, again)
    shrinker.shrink()
    report.say("".join(traceback.format_exception(shrinker.error)).rstrip())
    report.fail(f"FAILED at seed {history}: {first_line(error)}")
    if first_line(shrinker.error) != first_line(error):
        report.say(f"  shrunk: {first_line(shrinker.error)}")
    entry = corpus_file.Entry(target=target.name, found=first_line(shrinker.error), choices=shrinker.tape.numbers)
    path = corpus_file.write(entry, f"seed_{history}", folder)
    report.say(f"  shrunk from {len(tape.numbers)} to {len(shrinker.tape.numbers)} choices in {shrinker.tries} tries")
    report.say(f"  replay: python -m fuzz --replay {corpus_file.shown(path)}")
    report.say(f"  whole:  python -m fuzz --target {target.name} --replay {history}")


def first_line(error: Exception) -> str:
    """The message of an error in one line."""
    return (str(error) or type(error).__name__).splitlines()[0][:_SHOWN_CHARACTERS_MAX]


def print_report(report: Report) -> None:
    """All its lines, at once."""
    print("\n".join(report.text), file=sys.stdout, flush=True)
