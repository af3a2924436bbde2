"""The page has a line for each test, and each says the same class and file. A test has a guard without which it has been seen to
fail, or a reason why it has none: nobody has seen these 16 fail, and the four about DALI only run where that is installed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.attack.mutations import guards

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[2] / "docs" / "explanation" / "security.md"
LINE = re.compile(r"^\| (CVE-\d+-\d+) \| [\d-]+ \| (\d+) \| .+ \| `(\w+\.py)` \|$", re.MULTILINE)
PUBLISHED = 64
_NESTING = "the parser that is used has no recursion, or ends it itself"
_DALI = "what reads the file is DALI: the test is skipped where it is not installed"
WITHOUT_GUARD = {
    "CVE-2025-23268": _DALI,
    "CVE-2025-23316": "no shell is started anywhere",
    "CVE-2025-23320": "the memory of workers has no name that a text could tell",
    "CVE-2025-23321": "nothing is divided by a size that a client sends: a batch without rows is refused all the same",
    "CVE-2025-23322": "nothing is freed by hand, and a call that is over ignores what comes for it",
    "CVE-2025-23325": _NESTING,
    "CVE-2025-33202": _NESTING,
    "CVE-2025-33238": "settings are changed on the event loop, one after the other, without a lock that could be left out",
    "CVE-2025-33254": "one task at a time changes what is desired: turns of load calls only say which is answered first",
    "CVE-2026-24213": _DALI,
    "CVE-2026-24214": _DALI,
    "CVE-2026-24215": _DALI,
    "CVE-2026-47477": _NESTING,
    "CVE-2026-47478": "a connection is an object: nothing keeps the number of its descriptor",
    "CVE-2026-47479": _NESTING,
    "CVE-2026-47627": "names of models are looked up in a table, and no path is made of them",
}
"""Weaknesses that no line keeps out, and why; all others have a guard in tests/attack/guards.toml."""


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


def test_each_test_fails_without_its_guard_or_there_is_none() -> None:
    """`python -m tests.attack.mutations cve-` takes each away, with all checks that refuse the same, and sees its tests fail."""
    named = {test for guard in guards() for test in re.findall(r"::test_cve_(\d+_\d+)$", "\n".join(guard.suites), re.MULTILINE)}
    guarded = {f"CVE-{test.replace('_', '-')}" for test in named}
    assert guarded | WITHOUT_GUARD.keys() == _tests().keys()
    assert not guarded & WITHOUT_GUARD.keys()
