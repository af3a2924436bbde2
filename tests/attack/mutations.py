"""`python -m tests.attack.mutations [GUARD ...]`: take each guard of guards.toml away, in a copy of the source, and run what
attacks it: they must not hold. Exit status 1 when one does."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.mutation.by_hand import Fault

ROOT = Path(__file__).parents[2]
_GUARDS = Path(__file__).with_name("guards.toml")
_SOURCES = ("src", "control", "data")
_IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")
_PATIENCE_S = 300.0


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text that occurs in a file exactly once, and what stands there instead."""

    file: str
    old: str
    new: str


class Guard(Fault, frozen=True, forbid_unknown_fields=True):
    """`suites` are names of attacks, or tests. `also` are checks each of which refuses the same: they are taken away together."""

    also: tuple[Check, ...] = ()

    def changed(self, root: Path) -> dict[str, str]:
        """Files without it. ValueError: a text is not in its file, or more than once."""
        found = {self.file: self.mutant(root).source}
        for check in self.also:
            source = found.get(check.file) or (root / check.file).read_text()
            if source.count(check.old) != 1:
                raise ValueError(
                    f"{self.name}: {check.old!r} occurs {source.count(check.old)} times in {check.file}, expected once"
                )
            found[check.file] = source.replace(check.old, check.new)
        return found


def guards() -> list[Guard]:
    """All of them."""
    return msgspec.convert(tomllib.loads(_GUARDS.read_text())["fault"], list[Guard])


def main() -> int:
    """Try those that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.mutations", description=__doc__)
    parser.add_argument("guards", nargs="*", metavar="GUARD", help="only these, or those whose name begins so")
    names = tuple(parser.parse_args().guards)
    chosen = [guard for guard in guards() if not names or guard.name.startswith(names)]
    if not chosen:
        parser.error(f"there is no such guard: {', '.join(guard.name for guard in guards())}")
    print("| guard taken away | attack | notices |\n|---|---|---|", flush=True)
    missed = 0
    for guard in chosen:
        with tempfile.TemporaryDirectory(prefix="tpy-guard-", ignore_cleanup_errors=True) as folder:
            _copy(Path(folder), guard)
            for case in guard.suites:
                found = _notice(Path(folder), case)
                missed += found is None
                print(f"| {guard.name}: {guard.breaks} | {case} | {found or 'NO'} |", flush=True)
    print(f"\n{missed} not noticed")
    return 1 if missed else 0


def _copy(folder: Path, guard: Guard) -> None:
    for name in (*_SOURCES, "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=_IGNORED, symlinks=True)
    for name in ("docs", "benchmarks", "native"):  # which tests read
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for file, source in guard.changed(ROOT).items():
        (folder / file).write_text(source)


def _notice(folder: Path, case: str) -> str | None:
    """The verdict of the attack or the test on a server without its guard; None: it holds."""
    command = ["pytest", "-q", "-x", "-p", "no:cacheprovider", case] if case.startswith("tests/") else ["tests.attack", case]
    path = os.pathsep.join([*(str(folder / name) for name in _SOURCES), str(folder)])
    ran = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    said = list(_lines(ran.stdout))
    if ran.returncode not in (0, 1) or (ran.returncode and not said):  # it does not serve at all, or there is no such test
        raise RuntimeError(f"{case} cannot be run, it ended with {ran.returncode}:\n{ran.stdout[-3000:]}")
    return said[-1] if ran.returncode else None


def _lines(text: str) -> Iterator[str]:
    """Those that say what was noticed."""
    for line in text.splitlines():
        if line.startswith("FAILED ") or "ERROR at teardown of" in line:
            yield "a test fails"
        elif "| no (" in line:
            yield line.split("|")[-2].strip()


if __name__ == "__main__":
    sys.exit(main())
