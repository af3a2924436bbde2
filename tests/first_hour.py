"""The first hour of a newcomer: a fresh clone, a fresh environment, and what the README says up to an own model that answers.

`python -m tests.first_hour` clones what is committed here to .first-hour/clone, sets it up with `make`, and has the rest done
there, by the Python that was set up; then it tries what newcomers met in their first hour (first_hour_checks.py). It prints each
command with the seconds that it took, and fails where something is not so, or all together takes longer than it may.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parents[1]
PLACE = ".first-hour"
NOTE = "make first-hour runs it"
PACKAGES_MAX = 65


def timed(text: str, begun_s: float) -> None:
    """Say what a command took."""
    print(f"{time.monotonic() - begun_s:7.1f} s  {text}", flush=True)


def clone() -> Path:
    """A fresh clone that is set up."""
    target = HERE / PLACE / "clone"
    shutil.rmtree(target, ignore_errors=True)
    # Make hands its flags on by the environment; a newcomer's shell has none.
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "VIRTUAL_ENV"))}
    for command, where in ((["git", "clone", "-q", str(HERE), str(target)], HERE), (["make", "-s", "demo"], target)):
        begun_s = time.monotonic()
        done = subprocess.run(command, cwd=where, env=plain, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        timed("make serve, until it serves" if command[0] == "make" else "git clone", begun_s)
    return target


def count_packages(target: Path) -> int:
    """The packages that `make serve` has installed. Fails where they are not only those that the server needs."""
    found = len(list((target / ".venv").glob("lib/python3*/site-packages/*.dist-info")))
    print(f"{found} packages; at most {PACKAGES_MAX}")
    if found > PACKAGES_MAX:
        raise SystemExit("make serve installs more than it needs")
    return found


def follow() -> int:
    """Do what the README of this clone says about an own model; the number of steps that went wrong."""
    import pytest

    from .docs.pages import ROOT, Block, blocks
    from .docs.reader import Reader

    wrong = 0
    with pytest.MonkeyPatch.context() as monkeypatch:
        reader = Reader(ROOT, monkeypatch)
        todo = [*blocks(ROOT / "README.md"), Block(language="text", text="", line=0)]
        for block, following in pairwise(todo):
            if block.notes.get("not run") != NOTE:
                continue
            notes = {name: value for name, value in block.notes.items() if name != "not run"}
            begun_s = time.monotonic()
            try:
                step = Block(language=block.language, text=block.text, line=block.line, notes=notes)
                reader.do(step, following.text if "prints" in following.notes else None)
            except AssertionError as problem:
                wrong += 1
                print(f"README.md:{block.line}: {problem}")
            lines = block.text.splitlines()
            timed("\n           ".join(lines if block.language == "sh" else [f"{lines[0]} ... (Python)"]), begun_s)
        reader.stop()
    return wrong


def check() -> int:
    """Try what newcomers met; the number of checks that failed."""
    from .first_hour_checks import checks

    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        for each in checks(Path(place), HERE / "models"):
            begun_s = time.monotonic()
            try:
                seen = each()
            except (AssertionError, TimeoutError) as problem:
                wrong += 1
                seen = f"failed: {problem!r}"
            timed(seen, begun_s)
    return wrong


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="A newcomer's way from a clone to an own model that answers.")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long it may take")
    parser.add_argument("--follow", action="store_true", help="do what the README here says, and try the rest, without a clone")
    given = parser.parse_args()
    if given.follow:
        return min(1, follow() + check())
    begun_s = time.monotonic()
    target = clone()
    count_packages(target)
    here_s = time.monotonic()
    subprocess.run(["make", "-s", "setup"], cwd=target, check=True, stdout=subprocess.DEVNULL)  # what follows is a test
    begun_s += time.monotonic() - here_s
    code = subprocess.run([target / ".venv" / "bin" / "python", "-m", "tests.first_hour", "--follow"], cwd=target).returncode
    minutes = (time.monotonic() - begun_s) / 60
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{(used.ru_utime + used.ru_stime) / 60:.1f} minutes of processor time")
    print(f"{minutes:.1f} minutes from a clone to an own model that answers; at most {given.minutes:g}")
    return code or int(minutes > given.minutes)


if __name__ == "__main__":
    sys.exit(main())
