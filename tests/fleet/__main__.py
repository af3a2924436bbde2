"""`python -m tests.fleet [--minutes N]` and `python -m tests.fleet rollouts [--rounds N]`. Exit status 1: an error that is no
documented refusal, or memory beyond the budget; a faulty version that was not rolled back in time, or more failed requests than
the plan allows."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .rollouts import run as run_rollouts
from .run import run


def main() -> int:
    """Run, print the figures, and judge them."""
    parser = argparse.ArgumentParser(prog="python -m tests.fleet")
    parser.add_argument("part", nargs="?", choices=("memory", "rollouts"), default="memory")
    parser.add_argument("--rounds", type=int, default=10, help="of rollouts: a faulty and a good version of each model in each")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--onnx", type=int, default=200)
    parser.add_argument("--python", type=int, default=40)
    parser.add_argument("--room", type=int, default=20, help="models that the budget has room for")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpy-fleet-") as folder:
        if arguments.part == "rollouts":
            reports = run_rollouts(Path(folder), rounds=arguments.rounds)
            print("\n".join(map(str, reports)))
            for each in reports:
                each.check()
            return 0
        report = run(
            Path(folder),
            seconds=60 * arguments.minutes,
            onnx_count=arguments.onnx,
            python_count=arguments.python,
            room=arguments.room,
        )
    print(report)
    report.check()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as error:
        sys.exit(f"FAILED: {error}")
