""".github/CODEOWNERS: every line has owners and fits something, and no line is made void by a later one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
OWNER = re.compile(r"@[a-z0-9-]+(/[a-z0-9-]+)?")


def lines() -> list[tuple[str, list[str]]]:
    """Path and owners of each."""
    text = (ROOT / ".github" / "CODEOWNERS").read_text(encoding="utf-8")
    entries = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [(path, owners) for path, *owners in entries]


def test_paths_exist_and_have_owners() -> None:
    for path, owners in lines():
        assert owners, path
        assert all(OWNER.fullmatch(owner) for owner in owners), path
        if path != "*":
            found = ROOT / path.removeprefix("/")
            assert path.startswith("/"), path
            assert found.is_dir() if path.endswith("/") else found.is_file(), path


def test_the_last_line_that_fits_counts() -> None:
    """So the line for everything is the first, and one for a folder is before those for what is in it."""
    paths = [path for path, _ in lines()]
    assert paths[0] == "*"
    assert len(paths) == len(set(paths))
    for number, path in enumerate(paths):
        covered = [earlier for earlier in paths[1:number] if path.endswith("/") and earlier.startswith(path)]
        assert not covered, f"{path} comes after {covered}, whose owners are never asked"
