"""`make nightly`: all that takes too long for every change, one after the other, and one report of what came of it.

A stage that fails or takes too long does not keep the next ones from running. Its whole output is in a file beside the report.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
STAGES: Mapping[str, str] = {
    "tests": ".ci/run",
    "clients and tools": "make interop test-openai-clients",
    "coverage": "make coverage",
    "fuzz": "make fuzz FUZZ_SECONDS=900",
    "simulation": "make simulate SEEDS=5000",
    "tenants on a device": "make simulate-tenants",
    "mutants": "make mutants MUTANTS=20",
    "chaos": "make chaos",
    "leaks": "make leaks",
    "soak": "make soak SOAK=20",
    "attacks": "make attack",
    "guards": "make test-guards",
    "known vulnerabilities": "make audit",
    "ARM": "make test-aarch64",
    "install sizes": "make check-install-sizes",
    "repositories in clouds": "make test-clouds",
    "Hugging Face": "make test-hugging-face",
    "MLflow": "make test-mlflow",
    "MLServer": "make test-mlserver",
    "TorchServe": "make test-torchserve",
    "vLLM": "make test-vllm",
    "soak under attack": "make attack-soak SOAK_MINUTES=60",
    "memory budget": "make fleet MINUTES=10",
    "greedy tenant": "make greedy",
    "Ray": "make test-ray",
    "rolling restarts": "make test-rollout",
    "speed": "make bench",
}
_MINUTES_MAX = 120.0
_LINES_SHOWN = 15


class Outcome(NamedTuple):
    """The exit status of a stage, None where its time was over; its seconds, and the last lines that it wrote."""

    name: str
    status: int | None
    seconds: float
    end: str


def run_stage(name: str, command: str, output: Path, *, minutes_max: float, root: Path = ROOT) -> Outcome:
    """Run the command, with its output in a file."""
    began_s = time.monotonic()
    with output.open("wb") as stream:
        process = subprocess.Popen(
            shlex.split(command), cwd=root, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(minutes_max * 60)
        except subprocess.TimeoutExpired:
            status = None
        except BaseException:
            _end(process)
            raise
        if status is None:
            _end(process)
    lines = output.read_text(errors="replace").splitlines()
    return Outcome(name, status, time.monotonic() - began_s, "\n".join(lines[-_LINES_SHOWN:]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """All of its session."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def report(outcomes: list[Outcome], commit: str) -> str:
    """The report as Markdown: a table first, then the ends of the output of what failed."""
    good = sum(outcome.status == 0 for outcome in outcomes)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"# {good} of {len(outcomes)} stages passed",
        "",
        f"{now}, commit {commit}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "",
        "| stage | outcome | minutes |",
        "|---|---|--:|",
        *(f"| {each.name} | {_words(each)} | {each.seconds / 60:.1f} |" for each in outcomes),
    ]
    for each in outcomes:
        if each.status != 0:
            lines += ["", f"## {each.name}", "", "```text", each.end, "```"]
    return "\n".join(lines) + "\n"


def _words(outcome: Outcome) -> str:
    if outcome.status is None:
        return "**its time was over**"
    return "passed" if outcome.status == 0 else f"**failed ({outcome.status})**"


def run(stages: Mapping[str, str], to: Path, *, minutes_max: float = _MINUTES_MAX, root: Path = ROOT) -> int:
    """Run the stages, and write the report after each of them. Returns the exit status: 0 if all passed."""
    to.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    outcomes: list[Outcome] = []
    for name, command in stages.items():
        print(f"{name}: {command}", flush=True)
        output = to / f"{name.replace(' ', '-')}.log"
        outcomes.append(run_stage(name, command, output, minutes_max=minutes_max, root=root))
        (to / "report.md").write_text(report(outcomes, commit.stdout.strip() or "unknown"))
    print((to / "report.md").read_text())
    return 0 if all(outcome.status == 0 for outcome in outcomes) else 1


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description="Run what takes hours, and write one report.")
    parser.add_argument("--only", action="append", choices=list(STAGES), help="this stage (again for more); all by default")
    parser.add_argument("--to", type=Path, default=ROOT / ".nightly", help="folder for the report and all output (.nightly)")
    given = parser.parse_args()
    return run({name: STAGES[name] for name in given.only or STAGES}, given.to)


if __name__ == "__main__":
    sys.exit(main())
