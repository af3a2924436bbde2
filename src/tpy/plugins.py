"""Entry points of installed packages, and the names of these packages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import Distribution, EntryPoint, EntryPoints, entry_points
from typing import Any, cast

from tpy.errors import Unavailable

OLD_INSTALLATION = "this installation is older than its source, install it again (make setup)"
"""An editable installation has the entry points of the day on which it was made."""

LIBRARIES = ".so"
"""The name of the entry point, in each group that has one, for whatever is in a compiled library; no plug-in is called so."""

_OURS = "tpy-server"


def installed(group: str) -> Sequence[EntryPoint]:
    """The entry points of a group, sorted by name; of two with one name, the one whose package is found first comes first."""
    return sorted(_installed(tuple(sys.path)).select(group=group), key=lambda each: each.name)


def package_of(entry: EntryPoint) -> str:
    """The name and the version of the package that offers an entry point; "" if it is not known."""
    return _described(entry.dist) if entry.dist is not None else ""


def named(group: str, name: str) -> Sequence[EntryPoint]:
    """The entry points of this name: one, if not two packages want it. The same one may be installed twice."""
    return tuple({entry.value: entry for entry in installed(group) if entry.name == name}.values())


def load(group: str, name: str, noun: str) -> Any:
    """Import what the entry point of this name leads to. Raises Unavailable, with one sentence that calls it a `noun`, where it
    is not installed, two packages offer it, or it cannot be loaded."""
    entries = named(group, name)
    if not entries:
        raise Unavailable(f"no entry point '{name}' in '{group}': {OLD_INSTALLATION}")
    if len(entries) > 1:
        raise Unavailable(f"{' and '.join(map(described, entries))} both offer the {noun} '{name}'; remove one of the packages")
    [entry] = entries
    try:
        return entry.load()
    except (Exception, SystemExit) as error:  # of a package that may not be ours
        raise Unavailable(not_loaded(entry, noun, error)) from error


def not_loaded(entry: EntryPoint, noun: str, error: BaseException) -> str:
    """The sentence for an entry point that could not be loaded."""
    reason = f"{type(error).__name__}: {error}; {how_to_mend(entry, error)}"
    return f"the {noun} '{entry.name}' of {described(entry)} cannot be loaded: {reason}"


def described(entry: EntryPoint) -> str:
    """An entry point for people: its package, and where it leads."""
    return f"{package_of(entry) or 'an unknown package'} ({entry.value})"


def how_to_mend(entry: EntryPoint, error: BaseException) -> str:
    """Advice for an entry point that could not be loaded. One of ours that leads nowhere is of an older source."""
    ours = entry.dist is not None and entry.dist.name == _OURS
    leads_nowhere = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("tpy")
    if ours and (leads_nowhere or isinstance(error, AttributeError)):
        return OLD_INSTALLATION
    return "repair or remove the package"


@cache
def _installed(path: tuple[str, ...]) -> EntryPoints:
    """All of them: to find those of one group, each package's file is read."""
    return cast("EntryPoints", entry_points())  # until Python 3.12 a mapping that can select, too


@cache
def _described(distribution: Distribution) -> str:
    """Name and version: each of the two parses all that the package says about itself."""
    return f"{distribution.name} {distribution.version}"
