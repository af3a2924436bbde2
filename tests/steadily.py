"""`python -m tests.steadily ARGUMENT...`: run pytest with these arguments, and what fails once more, alone.

Tests with servers share two cores with each other, and on a machine that also does other things a wait may be too short. A
test that fails again fails the run; one that passes alone is named in the last lines, to be fixed. Many failures are final.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_TESTS_FAILED = 1
_AGAIN_MAX = 5
"""Of so many tests the machine may be the reason."""

_FAILED_FILE = "TPY_FAILED_TESTS"


def run(arguments: list[str], root: Path = _ROOT) -> int:
    """The exit status is pytest's, 0 where every test that failed passed alone."""
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "failed"
        code = _pytest(root, ["-p", "tests.steadily", *arguments], names)
        if code != _TESTS_FAILED:
            return code
        failed = list(dict.fromkeys(names.read_text().splitlines())) if names.exists() else []
    if not failed or len(failed) > _AGAIN_MAX:
        return code
    print(f"\nonce more, alone: {len(failed)} that failed", flush=True)
    code = _pytest(root, failed)
    if code == 0:
        print("unsteady, failed beside other tests and passed alone:", *failed, sep="\n  ", flush=True)
    return code


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """This module is also the plugin of the first run: it notes which tests fail, and those whose fixtures do."""
    if report.failed and _FAILED_FILE in os.environ:
        with Path(os.environ[_FAILED_FILE]).open("a") as names:
            names.write(f"{report.nodeid}\n")


def _pytest(root: Path, arguments: list[str], names: Path | None = None) -> int:
    given = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ if names is None else {**os.environ, "PYTHONPATH": given, _FAILED_FILE: str(names)}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=root, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
