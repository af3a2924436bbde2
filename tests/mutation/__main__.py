"""`python -m tests.mutation`: makes the mutants, tries them, reports."""

from __future__ import annotations

import argparse
import compileall
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

# Loaded before the first fork; nothing of ours may be, and no plugin of pytest, which wants to load them itself.
import h2.connection  # noqa: F401
import msgspec  # noqa: F401
import numpy  # noqa: F401
import trio  # noqa: F401

from tests.mutation.by_hand import faults
from tests.mutation.justified import Justified
from tests.mutation.mutants import Mutant, Place, mutant_of, places_of
from tests.mutation.report import Report
from tests.mutation.suites import SUITES, suites_of
from tests.mutation.trial import ROOT, End, Trial

Candidate = tuple[Mutant, tuple[str, ...]]


def sample(path: Path, per_file: int, seed: int) -> list[Place]:
    """At most so many faults of a file, the same ones for the same seed; 0: all."""
    places = places_of((ROOT / path).read_text())
    if not per_file or len(places) <= per_file:
        return places
    return sorted(random.Random(f"{seed}/{path}").sample(places, per_file))


def tried(candidates: Iterable[Candidate], *, seconds: int, jobs: int) -> Iterator[tuple[Mutant, End]]:
    """Each mutant with its end, as they come."""
    waiting = iter(candidates)
    running: list[Trial] = []
    more = True
    while more or running:
        while more and len(running) < jobs:
            following = next(waiting, None)
            if following is None:
                more = False
                break
            mutant, suites = following
            running.append(Trial(mutant, suites, seconds=seconds))
        for trial in list(running):
            end = trial.end()
            if end is not None:
                running.remove(trial)
                yield trial.mutant, end
        time.sleep(0.02)


def unsound(candidates: Iterable[Candidate], *, seconds: int, jobs: int) -> list[str]:
    """Suites that fail without any mutant, or every mutant would seem to be noticed."""
    first: dict[tuple[str, ...], str] = {}
    for mutant, suites in candidates:
        first.setdefault(suites, mutant.path)
    sound = [(Mutant(path, 0, " ".join(suites), (ROOT / path).read_text()), suites) for suites, path in first.items()]
    return [mutant.what for mutant, end in tried(sound, seconds=seconds, jobs=jobs) if end is not End.SURVIVED]


def generated(arguments: argparse.Namespace, earlier: dict[str, list[dict[str, str]]] | None) -> list[Candidate]:
    """The sample that the arguments ask for; or the survivors of an earlier result."""
    files = [path.relative_to(ROOT) for pattern in SUITES for path in sorted(ROOT.glob(pattern)) if path.name != "__init__.py"]
    files = [path for path in dict.fromkeys(files) if arguments.only in str(path)]
    left = None if earlier is None else {(one["file"], one["line"], one["what"]) for one in earlier["survivors"]}
    candidates = []
    for path in files:
        source = (ROOT / path).read_text()
        lines = source.splitlines()
        for place in sample(path, 0 if left is not None else arguments.per_file, arguments.seed):
            if left is None or (str(path), lines[place.line - 1].strip(), place.what) in left:
                candidates.append((mutant_of(str(path), source, place), suites_of(path)))
    return candidates


def written(arguments: argparse.Namespace) -> list[Candidate]:
    """Those of by_hand/."""
    return [(fault.mutant(ROOT), fault.suites) for fault in faults() if arguments.only in f"{fault.name} {fault.file}"]


def line_of(mutant: Mutant) -> str:
    """The text of the line that was changed."""
    return (ROOT / mutant.path).read_text().splitlines()[mutant.line - 1].strip()


def main() -> int:
    """0: at least `--aim` percent were noticed or are justified."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--per-file", type=int, default=0, help="a sample of so many mutants of each file; 0: all")
    parser.add_argument("--only", default="", help="only files whose path, or faults whose name, contains this")
    parser.add_argument(
        "--by-hand", action="store_true", help="the faults of concurrency that were written by hand, all to be noticed"
    )
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument(
        "--seconds", type=int, default=180, help="of the processor that one mutant may take; more counts as killed"
    )
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="how many at once")
    parser.add_argument("--aim", type=int, default=0, help="percent that must be noticed or justified; by hand: 100")
    parser.add_argument(
        "--again", type=Path, help="only the survivors of this result, which --json then has with their new fates"
    )
    parser.add_argument("--unchecked", action="store_true", help="do not see first that the suites pass without a mutant")
    parser.add_argument("--json", type=Path, help="where to write the result")
    arguments = parser.parse_args()
    justified = Justified()
    outdated = justified.outdated(ROOT)
    if outdated:
        print("\n".join(outdated))
        return 2
    for folder in ("src", "control", "data"):
        compileall.compile_dir(ROOT / folder, quiet=2)
    earlier = json.loads(arguments.again.read_text()) if arguments.again else None
    candidates = written(arguments) if arguments.by_hand else generated(arguments, earlier)
    checked = [] if arguments.unchecked else candidates
    for failing in unsound(checked, seconds=arguments.seconds, jobs=arguments.jobs):
        print(f"these suites fail without any mutant: {failing}")
        return 2
    report = Report(earlier)
    for mutant, end in tried(candidates, seconds=arguments.seconds, jobs=arguments.jobs):
        line = line_of(mutant)
        report.add(mutant, line, end, why=justified.why(mutant, line))
        if arguments.json:
            arguments.json.write_text(json.dumps(report.data(), indent=1))  # each time: a long run may be ended
    print(report.text(by_hand=arguments.by_hand))
    return 0 if report.percent() >= (100 if arguments.by_hand else arguments.aim) else 1


if __name__ == "__main__":
    sys.exit(main())
