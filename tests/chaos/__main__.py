"""`python -m tests.chaos [SCENARIO ...]`: run the scenarios, a line of figures for each.

Exit status 1: a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from .registry import SCENARIOS
from .skipped import Skipped


def main() -> int:
    """Run what the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--list", action="store_true", help="name the scenarios with what they hold the server to")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="only these")
    arguments = parser.parse_args()
    unknown = set(arguments.scenarios) - {scenario.name for scenario in SCENARIOS}
    if unknown:
        parser.error(f"there is no scenario {', '.join(sorted(unknown))}; there are: {', '.join(s.name for s in SCENARIOS)}")
    failed = 0
    for scenario in SCENARIOS:
        if arguments.scenarios and scenario.name not in arguments.scenarios:
            continue
        print(f"{scenario.name}: {scenario.promise}", flush=True)
        if arguments.list:
            continue
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="tpy-chaos-") as folder:
                figures = scenario.run(Path(folder))
        except Skipped as skipped:
            figures = f"SKIPPED: {skipped}"
        except Exception:
            traceback.print_exc()
            failed += 1
            figures = "FAILED"
        print(f"  {figures} ({time.monotonic() - began:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
