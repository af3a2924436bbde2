"""Plug-ins of tests/native/plugins, compiled once for a session."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from tpy_native.building import compile_plugin

SOURCES = Path(__file__).parent / "plugins"


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tpy-plugins-")


@functools.cache
def library(source: str, *, name: str | None = None) -> Path:
    """Returns the library of backend `name`, which is the source's name if nothing else is said."""
    target = Path(_folder().name) / f"libtriton_{name or source}.so"
    compile_plugin(SOURCES / f"{source}.c", target)
    return target


def agent_library(folder: Path) -> Path:
    """Puts the agent of tests/native/plugins into a folder of agents, under the name `shift`. Returns that folder."""
    (folder / "shift").mkdir(parents=True)
    (folder / "shift" / "libtritonrepoagent_shift.so").symlink_to(library("agent"))
    return folder


def cache_library(folder: Path, name: str = "table") -> Path:
    """Puts the cache of tests/native/plugins into a folder of caches. Returns the library."""
    (folder / name).mkdir(parents=True)
    path = folder / name / f"libtritoncache_{name}.so"
    path.symlink_to(library("cache"))
    return path
