"""Command line: `python -m fuzz --help`.

Exit status: 0 all is well, 1 an invariant was broken (or a canary held, or a rule was never taken), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzz import corpus_file
from fuzz.guided import run_guided
from fuzz.jobs import run_jobs
from fuzz.registry import TARGETS, target_named
from fuzz.runner import Report, check_rules, print_report, replay_file, run_target
from fuzz.target import Target

_SECONDS_DEFAULT = 10.0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Try random histories against stated invariants.")
    parser.add_argument("--list", action="store_true", help="name the targets with their invariants")
    parser.add_argument("--target", help="only this target (default: all)")
    parser.add_argument(
        "--seconds", type=float, help=f"for each target (default: {_SECONDS_DEFAULT:.0f}, unless --examples is given)"
    )
    parser.add_argument("--examples", type=int, help="histories for each target")
    parser.add_argument("--seed", type=int, help="the first history's seed (default: chosen at random and printed)")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes that try histories of each target at the same time (default: 1)"
    )
    parser.add_argument("--replay", metavar="SEED|FILE", help="only that history of --target, or that corpus file")
    parser.add_argument("--smoke", action="store_true", help="a fixed, short run of every target, for CI")
    parser.add_argument("--atheris", metavar="TARGET", help="a coverage-guided run of a target that takes bytes; needs atheris")
    arguments = parser.parse_args()
    for name in (arguments.target, arguments.atheris):
        if name is not None and target_named(name) is None:
            parser.error(f"there is no target {name!r}; targets: {', '.join(target.name for target in TARGETS)}")
    if arguments.replay is not None and arguments.replay.isdecimal() and arguments.target is None:
        parser.error("--replay SEED needs --target")
    if arguments.jobs < 1:
        parser.error("--jobs must be at least 1")
    return arguments


def main() -> int:
    """Run what the command line asks for."""
    arguments = _arguments()
    chosen = TARGETS if arguments.target is None else tuple(target for target in TARGETS if target.name == arguments.target)
    if arguments.list:
        for target in chosen:
            print(f"{target.name}{' (must fail)' if target.must_fail else ''}\n  {target.invariant}")
        return 0
    if arguments.atheris is not None:
        return run_guided(_named(arguments.atheris), seconds=arguments.seconds)
    if arguments.replay is not None:
        reports = iter([_replay(arguments.replay, chosen[0])])
    elif arguments.smoke:
        reports = _smoke(chosen)
    else:
        reports = _run(arguments, chosen)
    all_well = True
    for report in reports:
        print_report(report)
        all_well &= report.is_well
    return 0 if all_well else 1


def _named(name: str) -> Target:
    target = target_named(name)
    assert target is not None, name  # the command line was checked
    return target


def _replay(which: str, target: Target) -> Report:
    if which.isdecimal():
        return run_target(target, seed=int(which), examples=1, seconds=None)
    try:
        name = corpus_file.read(Path(which)).target
    except ValueError as error:
        sys.exit(f"python -m fuzz: {error}")
    found = target_named(name)
    if found is None:
        sys.exit(f"python -m fuzz: {which} is of target {name!r}, which there is not")
    return replay_file(found, Path(which))


def _smoke(chosen: Sequence[Target]) -> Iterator[Report]:
    for target in chosen:
        report = run_target(target, seed=0, examples=target.smoke_examples, seconds=None)
        if report.is_well and not target.must_fail:
            check_rules(target, report)
        yield report


def _run(arguments: argparse.Namespace, chosen: Sequence[Target]) -> Iterator[Report]:
    seed = random.SystemRandom().getrandbits(48) if arguments.seed is None else arguments.seed
    seconds = _SECONDS_DEFAULT if arguments.seconds is None and arguments.examples is None else arguments.seconds
    if arguments.jobs == 1:
        for target in chosen:
            yield run_target(target, seed=seed, examples=arguments.examples, seconds=seconds)
        return
    for target in chosen:
        yield from run_jobs(target.name, jobs=arguments.jobs, seed=seed, examples=arguments.examples, seconds=seconds)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
