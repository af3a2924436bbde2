"""The tests that pages name are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/explanation/threat-model.md", "docs/explanation/security.md")


def missing(page: str) -> list[str]:
    """The names in a page of files, folders and functions below `tests` that are not there."""
    found = []
    for path, function in re.findall(r"`(tests/[\w/.-]+)(?:::(\w+))?", page):
        target = ROOT / path
        if not target.exists():
            found.append(path)
        elif function:
            defined = ast.walk(ast.parse(target.read_text(encoding="utf-8")))
            if function not in {each.name for each in defined if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}:
                found.append(f"{path}::{function}")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_tests_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("`tests/") > 20
    assert missing(text) == []


def test_the_check_can_fail() -> None:
    text = "`tests/no_such_folder` and `tests/docs/test_named_tests.py::test_no_such_thing` and `tests/docs/test_named_tests.py`"
    assert missing(text) == ["tests/no_such_folder", "tests/docs/test_named_tests.py::test_no_such_thing"]
