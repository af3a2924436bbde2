"""Survivors that are no gap of the tests: the faulty line behaves as the right one does, or nobody is promised what differs."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.mutation.mutants import Mutant

_FILE = Path(__file__).with_name("justified.toml")


class Justification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`file`, `line`, the text of one of its lines without the indentation, and `what` say which mutants; `why` is one line."""

    file: str
    line: str
    what: str
    why: str


class Justified:
    """All justifications."""

    def __init__(self, known: Sequence[Justification] | None = None) -> None:
        """Those of the file, unless others are given."""
        if known is None:
            known = msgspec.convert(tomllib.loads(_FILE.read_text()).get("justified", []), list[Justification])
        self._why = {(one.file, one.line, one.what): one.why for one in known}

    def why(self, mutant: Mutant, line: str) -> str | None:
        """The reason for which the mutant, whose line has this text, may survive; None: it may not."""
        return self._why.get((mutant.path, line, mutant.what))

    def outdated(self, root: Path) -> list[str]:
        """Those whose line is no longer in its file, in words."""
        wrong = []
        for file, line, what in self._why:
            path = root / file
            if not path.is_file() or line not in (text.strip() for text in path.read_text().splitlines()):
                wrong.append(f"justified.toml: {file} has no line {line!r} ({what})")
        return wrong
