"""`python -m tests.greedy [--seconds N]`. Exit status 1: the polite tenant feels more of the greedy one than it may."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .run import run


def main() -> int:
    """Run, print the figures, and judge them."""
    parser = argparse.ArgumentParser(prog="python -m tests.greedy")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each of four scenarios")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpy-greedy-") as folder:
        report = run(Path(folder), arguments.seconds)
    print(report)
    report.check()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as error:
        sys.exit(f"FAILED: {error}")
