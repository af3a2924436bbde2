"""One mutant against its suites, in a forked child: libraries are loaded once, in the parent."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from types import ModuleType

import pytest

from tests.mutation.mutants import Mutant

_MEMORY_BYTES_MAX = 4 << 30
"""A mutant may allocate without end."""


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the mutant's source in place of the module's."""

    def __init__(self, module: str, mutant: Mutant) -> None:
        self._module = module
        self._mutant = mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=self._mutant.path)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.source, self._mutant.path, "exec"), module.__dict__)


def survives(mutant: Mutant, module: str, suites: Sequence[str], *, seconds: int) -> bool:
    """Whether all suites pass, fuzz targets first, within the time. A suite is a folder of tests or `fuzz:<target>`."""
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = _try(mutant, module, suites)
        os._exit(status)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _try(mutant: Mutant, module: str, suites: Sequence[str]) -> int:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    sys.meta_path.insert(0, _Mutated(module, mutant))
    for suite in suites:
        if suite.startswith("fuzz:"):
            _fuzz(suite.removeprefix("fuzz:"))
    folders = [suite for suite in suites if not suite.startswith("fuzz:")]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *folders]))  # once: a second call would meet loaded modules


def _fuzz(name: str) -> None:
    from fuzz.registry import target_named

    target = target_named(name)
    assert target is not None, name
    for seed in range(target.smoke_examples):
        target.try_seed(seed)
