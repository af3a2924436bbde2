"""The page has a line for each test, and each says the same class and file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[2] / "docs" / "explanation" / "security.md"
LINE = re.compile(r"^\| (CVE-\d+-\d+) \| [\d-]+ \| (\d+) \| .+ \| `(\w+\.py)` \|$", re.MULTILINE)
PUBLISHED = 64


def _tests() -> dict[str, tuple[str, str]]:
    """The number of each: its class, the first word of its docstring, and its file."""
    found = {}
    for path in FOLDER.glob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_cve_"):
                number = node.name.removeprefix("test_").replace("_", "-").upper()
                found[number] = str(ast.get_docstring(node)).split(",")[0], path.name
    return found


def test_each_published_weakness_has_a_test_and_a_line() -> None:
    lines = {number: (kind, file) for number, kind, file in LINE.findall(PAGE.read_text(encoding="utf-8"))}
    assert lines == _tests()
    assert len(lines) == PUBLISHED
