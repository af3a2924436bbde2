"""The programs beside the server say what they take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    "benchmarks",
    "benchmarks.growth",
    "benchmarks.profile",
    "benchmarks.python_servers",
    "fuzz",
    "tests.simulation",
    "tests.mutation",
    "tests.leaks",
    "tests.chaos",
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_explains_itself(program: str) -> None:
    told = subprocess.run([sys.executable, "-m", program, "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith(f"usage: python -m {program}")
