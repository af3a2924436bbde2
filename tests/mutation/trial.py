"""One mutant against its suites, in a forked child: libraries are loaded once, in the parent."""

from __future__ import annotations

import contextlib
import enum
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
_MEMORY_BYTES_MAX = 4 << 30
"""A mutant may allocate without end. Shared memory does not count: frontend processes map 4 GiB, most of which they never use."""

_STILL_S_MAX = 40.0
_LIVELY_S = 0.1
"""A trial that has not had so much of the processor for so long waits for what never comes."""

_HISTORIES_MAX = 3000
"""Of each fuzz target: some seconds."""


class End(enum.Enum):
    """The end of a trial."""

    SURVIVED = "survived"
    KILLED = "killed"
    STUCK = "stuck"
    """Killed as well: it took too long, or did nothing any more."""


class Trial:
    """Under way in a process of its own, which its suites may give children; all of them end with it. A suite is a folder or file
    of tests, or `fuzz:<target>`; the targets are tried first. `seconds` are those of the processor: a busy machine kills nothing.

    The tests, and the processes that they start, import a copy of the product that has the fault."""

    def __init__(self, mutant: Mutant, suites: Sequence[str], *, seconds: int) -> None:
        self.mutant = mutant
        self._seconds = seconds
        self._used_s = 0.0
        self._moved_s = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="tpy-mutant-"))
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.setsid()
                status = _try(mutant, suites, self._folder)
            os._exit(status)

    def end(self) -> End | None:
        """Its end; None while it runs."""
        done, status = os.waitpid(self._pid, os.WNOHANG)
        if done:
            end = End.KILLED if status else End.SURVIVED
        elif self._is_stuck():
            end = End.STUCK
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        else:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)
        return end

    def _is_stuck(self) -> bool:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rsplit(")", 1)[1].split()
        used_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # its own and that of children that have ended
        now_s = time.monotonic()
        if used_s >= self._used_s + _LIVELY_S:
            self._used_s, self._moved_s = used_s, now_s
        return used_s > self._seconds or now_s > self._moved_s + _STILL_S_MAX


def _try(mutant: Mutant, suites: Sequence[str], folder: Path) -> int:
    if os.environ.get("MUTANT_SHOWN") != "1":
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    _copy_with(mutant, folder)
    for suite in suites:
        if suite.startswith("fuzz:"):
            _fuzz(suite.removeprefix("fuzz:"))
    folders = [suite for suite in suites if not suite.startswith("fuzz:")]
    if not folders:
        return 0
    # The fuzz targets import what is a plugin of pytest as well (anyio), whose assertions it cannot rewrite any more.
    late = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-W", late, "--basetemp", str(folder / "tmp")]
    return int(pytest.main([*arguments, *folders]))  # once: a second call would meet loaded modules


def _copy_with(mutant: Mutant, folder: Path) -> None:
    """Import the product from a copy which has the fault, here and in the processes that tests start."""
    places = []
    for name in ("src", "control", "data"):
        shutil.copytree(ROOT / name, folder / name)  # with what is compiled: only the faulty file is newer than that
        places.append(str(folder / name))
    (folder / mutant.path).write_text(mutant.source)
    sys.path[:0] = places
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, str(ROOT)])


def _fuzz(name: str) -> None:
    from fuzz.registry import target_named

    target = target_named(name)
    assert target is not None, name
    for seed in range(min(target.smoke_examples, _HISTORIES_MAX)):
        target.try_seed(seed)
