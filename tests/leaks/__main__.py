"""`python -m tests.leaks [--requests N]`. Exit status 1: something is left."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .run import run

_GROWTH_BYTES_MAX = 24 * 1024 * 1024


def main() -> int:
    """Run, print the figures, and judge them."""
    parser = argparse.ArgumentParser(prog="python -m tests.leaks")
    parser.add_argument("--requests", type=int, default=200_000)
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tpy-leaks-") as folder:
        report = run(Path(folder), arguments.requests)
    print(f"{report}\n{time.monotonic() - began:.0f} s")
    report.check(growth_bytes_max=_GROWTH_BYTES_MAX)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as error:
        sys.exit(f"FAILED: {error}")
