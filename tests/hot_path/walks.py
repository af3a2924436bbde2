"""The walks of the architecture page, to be compared with what a server did."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tpy.hot import codec

ROOT = Path(__file__).parents[2]
_PAGE = ROOT / "docs/explanation/architecture.md"
_PREFIXES = (
    ("src/tpy/", ""),
    ("data/tpy_data/", ""),
    ("control/tpy_control/", "control/"),
    ("data/tpy_backends/", "tpy_backends/"),
)
_NAME = re.compile(r"`([\w/]+(?:\.py|/))`")

Calls = list[list[Any]]
"""File, function and line of each call, in order; and the caller's file, where it was recorded."""


class Walk(NamedTuple):
    """`steps` are the rows of the table, `others` the names in the text around it. A name that ends with "/" is a folder's."""

    steps: Sequence[Sequence[str]]
    others: Collection[str]


def section(title: str) -> str:
    """A section of the page, without its title."""
    return re.split(r"\n##+ ", _PAGE.read_text(encoding="utf-8").split(f"\n### {title}\n")[1])[0]


def walk(title: str) -> Walk:
    """The walk of this title."""
    lines = section(title).splitlines()
    steps = [names for line in lines if line.startswith("|") and (names := _NAME.findall(line))]
    return Walk(steps, [name for line in lines if not line.startswith("|") for name in _NAME.findall(line)])


def named(path: str) -> str:
    """A file as the page names it."""
    return next((name + path.removeprefix(prefix) for prefix, name in _PREFIXES if path.startswith(prefix)), path)


def files(calls: Calls) -> list[str]:
    """The file of each call as the page names it; none for the import of a module."""
    return [named(file) for file, function, *_ in calls if function != "<module>"]


def assert_goes(found: Walk, records: Sequence[Calls], *, by_chance: Collection[str] = ()) -> None:
    """The walk has the files of the shortest record, and no others than the records have. The first file of each step is passed
    behind that of the step before; within a step, and beside the table, tasks and threads go side by side. `by_chance` are files
    of what the server may do at the same time."""
    listed = {*found.others, *(name for step in found.steps for name in step)}
    shortest = files(min(records, key=len))
    also = {*by_chance, *(() if codec.FORM == codec.NATIVE else ("hot/codec.py",))}  # a function of Python, which gives nothing
    unknown = sorted(file for file in set(shortest).difference(also) if not any(_covers(name, file) for name in listed))
    assert unknown == [], f"not in the walk: {unknown}"
    passed = {file for calls in records for file in files(calls)}
    unused = sorted(name for name in listed if not any(_covers(name, file) for file in passed))
    assert unused == [], f"not passed: {unused}"
    rest = iter(shortest)
    late = [step[0] for step in found.steps if not any(_covers(step[0], file) for file in rest)]
    assert late == [], f"not in this order: {late}"


def _covers(name: str, file: str) -> bool:
    return file == name or (name.endswith("/") and file.startswith(name))
