"""Many seeds: `python -m tests.simulation --seeds 1000`. One: `python -m tests.simulation --first N --seeds 1 --journal`."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections import Counter

from tests.simulation.rollouts import simulate_rollout
from tests.simulation.run import simulate


def first_seed_of_commit() -> int:
    """A number that every commit has for itself, so that each explores other seeds and anyone can run them again."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return int(hashlib.sha256(commit.encode()).hexdigest()[:8], 16)


def main() -> int:
    """0: every promise held in every run."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=100, help="how many runs")
    parser.add_argument("--first", type=int, help="the first seed; without it, one that belongs to the commit")
    parser.add_argument("--rollouts", action="store_true", help="only rollouts, which are quicker than the whole server")
    parser.add_argument("--journal", action="store_true", help="show what happened")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    first = first_seed_of_commit() if arguments.first is None else arguments.first
    counts: Counter[str] = Counter()
    failed = 0
    began = time.monotonic()
    for seed in range(first, first + arguments.seeds):
        reports = {" --rollouts": simulate_rollout(seed)}
        if not arguments.rollouts:
            reports = {"": simulate(seed), **reports}
        for flag, report in reports.items():
            counts += report.counts
            if arguments.journal:
                print("\n".join(report.journal))
                print(f"journal {report.digest}")
            if report.violations:
                failed += 1
                print(f"seed {seed} FAILED:", *report.violations[:10], sep="\n  ")
                print(f"  replay: python -m tests.simulation --first {seed} --seeds 1 --journal{flag}")
        if failed and not arguments.keep_going:
            break
    print(f"{arguments.seeds} seeds from {first}, {failed} failed, {time.monotonic() - began:.1f} s")
    for what, count in sorted(counts.items()):
        print(f"{count:9} {what}")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") is None:
        os.environ["PYTHONHASHSEED"] = "0"
    sys.exit(main())
