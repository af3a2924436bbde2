"""The stages of .ci/run: each is a target that exists, and a name that is none is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
CI = ROOT / ".ci" / "run"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CI, *arguments], capture_output=True, text=True, check=False)


def test_the_stages_are_targets_of_the_makefile() -> None:
    stages = run("--list").stdout.split()
    assert {"check", "test", "test-packages"} < set(stages)
    assert len(stages) == len(set(stages))
    for stage in stages:
        done = subprocess.run(["make", "-n", stage], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_an_unknown_stage_is_refused_before_anything_runs() -> None:
    done = run("check", "tests")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(".ci/run: there is no stage 'tests', expected one of: check site ")
