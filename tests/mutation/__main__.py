"""`python -m tests.mutation`: which files, which suites, the report."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

# Loaded before the first fork; nothing of ours may be, and no plugin of pytest, which wants to load them itself.
import h2.connection  # noqa: F401
import msgspec  # noqa: F401
import numpy  # noqa: F401
import trio  # noqa: F401

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.trial import survives

ROOT = Path(__file__).parents[2]

_SCHEDULERS = "data/tpy_data/schedulers"
_GRPC = "src/tpy/frontends/grpc/transport/core"

SUITES: dict[str, tuple[str, ...]] = {
    f"{_SCHEDULERS}/core/sequence_*.py": ("fuzz:sequence_direct", "fuzz:sequence_oldest", "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/core/idle_times.py": ("fuzz:sequence_direct", "fuzz:sequence_oldest", "tests/schedulers"),
    f"{_SCHEDULERS}/core/ensemble*.py": ("fuzz:ensemble_graph", "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/core/rate_limiter.py": ("fuzz:rate_limiter", "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/core/*.py": ("fuzz:scheduler_default", "fuzz:scheduler_dynamic", "tests/schedulers", "tests/engine"),
    f"{_SCHEDULERS}/driver.py": ("tests/schedulers", "tests/engine", "tests/simulation"),
    "data/tpy_data/cache/core/*.py": ("fuzz:response_cache", "fuzz:cache_entry", "tests/engine"),
    "data/tpy_data/engine/core/*.py": ("tests/unit/test_call_circles.py", "tests/engine", "tests/simulation"),
    "data/tpy_data/backends/python/worker/core/*.py": ("tests/backends/python",),
    "control/tpy_control/core/*.py": ("tests/control",),
    "src/tpy/state/*.py": ("tests/unit/test_state_store.py", "tests/control"),
    f"{_GRPC}/*.py": (
        "fuzz:grpc_hostile_frames",
        "fuzz:grpc_conversation",
        "fuzz:grpc_framing",
        "tests/frontends/grpc/transport",
    ),
}
"""The first pattern that fits a file says which suites are to notice; the quick ones come first."""


def suites_of(path: Path) -> tuple[str, ...]:
    """Of a file; () when its mutants are not tried."""
    return next((suites for pattern, suites in SUITES.items() if path.match(pattern)), ())


def module_of(path: Path) -> str:
    """The name that the file is imported by."""
    parts = path.with_suffix("").parts[1:]  # without src, control, data
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sample(paths: list[Path], per_file: int, seed: int) -> list[Mutant]:
    """At most so many mutants of each file, the same ones for the same seed."""
    chosen = []
    for path in paths:
        mutants = mutants_of(str(path), (ROOT / path).read_text())
        if per_file and len(mutants) > per_file:
            mutants = sorted(random.Random(f"{seed}/{path}").sample(mutants, per_file), key=lambda mutant: mutant.line)
        chosen += mutants
    return chosen


def main() -> int:
    """0: at least `--aim` percent were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--per-file", type=int, default=0, help="a sample of so many mutants of each file; 0: all")
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--seconds", type=int, default=120, help="how long one mutant may take; longer counts as noticed")
    parser.add_argument("--aim", type=int, default=0, help="percent that must be noticed")
    parser.add_argument("--json", type=Path, help="where to write the result")
    arguments = parser.parse_args()
    files = [path.relative_to(ROOT) for pattern in SUITES for path in sorted(ROOT.glob(pattern)) if path.name != "__init__.py"]
    files = [path for path in dict.fromkeys(files) if arguments.only in str(path)]
    began = time.monotonic()
    tried: dict[str, int] = {}
    survivors: dict[str, list[str]] = {}
    for suites in dict.fromkeys(suites_of(path) for path in files):
        # Without a fault they must pass, or every mutant would seem to be noticed.
        path = next(path for path in files if suites_of(path) == suites)
        sound = Mutant(str(path), 0, "nothing", (ROOT / path).read_text())
        if not survives(sound, module_of(path), suites, seconds=arguments.seconds):
            print(f"the suites of {path} fail without any mutant: {' '.join(suites)}")
            return 2
    for mutant in sample(files, arguments.per_file, arguments.seed):
        path = Path(mutant.path)
        tried[mutant.path] = tried.get(mutant.path, 0) + 1
        if survives(mutant, module_of(path), suites_of(path), seconds=arguments.seconds):
            line = (ROOT / path).read_text().splitlines()[mutant.line - 1].strip()
            survivors.setdefault(mutant.path, []).append(f"{mutant.line}: {mutant.what}: {line}")
            print(f"SURVIVED {mutant.path}:{survivors[mutant.path][-1]}", flush=True)
    total, lived = sum(tried.values()), sum(map(len, survivors.values()))
    for name, count in tried.items():
        print(f"{count - len(survivors.get(name, ())):5} of {count:5} noticed  {name}")
    percent = 100 * (total - lived) / max(total, 1)
    print(f"{total - lived} of {total} mutants noticed ({percent:.1f} %), {time.monotonic() - began:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps({"tried": tried, "survivors": survivors}, indent=1))
    return 0 if percent >= arguments.aim else 1


if __name__ == "__main__":
    sys.exit(main())
