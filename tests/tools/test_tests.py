"""Tests of the tests: each can fail, and none looks into the internals of what it tests."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASSERTING = re.compile(r"assert_\w+|raises|RaisesGroup|warns|fail|fail_after")
"""Calls that make a test fail, or bound its time."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def trees() -> dict[str, ast.Module]:
    files = (file for folder in ("tests", "fuzz") for file in (ROOT / folder).rglob("*.py"))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")) for file in sorted(files)}


@functools.cache
def functions(tree: ast.Module) -> list[Function]:
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


@functools.cache
def calls(function: Function) -> set[str]:
    """The last names of all that a function calls or passes on."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    return {
        node.attr if isinstance(node, ast.Attribute) else node.id for node in nodes if isinstance(node, ast.Attribute | ast.Name)
    }


@functools.cache
def asserts(function: Function) -> bool:
    """True if the function itself can fail its test."""
    return any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function)) or any(
        ASSERTING.fullmatch(name) for name in calls(function)
    )


def imported(tree: ast.Module) -> set[str]:
    return {name.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names}


def asserting_helpers(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """By folder, the names of functions that assert, by themselves or through others of their folder."""
    found: dict[str, set[str]] = {}
    for folder in {str(Path(file).parent) for file in modules}:
        helpers = [each for file, tree in modules.items() if str(Path(file).parent) == folder for each in functions(tree)]
        names = {each.name for each in helpers if asserts(each)}
        while more := {each.name for each in helpers if calls(each) & names} - names:
            names |= more
        found[folder] = names
    return found


def without_assertion(modules: dict[str, ast.Module]) -> list[str]:
    helpers = asserting_helpers(modules)
    everywhere = set().union(*helpers.values())
    found = []
    for file, tree in modules.items():
        names = helpers[str(Path(file).parent)] | (imported(tree) & everywhere)
        tests = (each for each in functions(tree) if each.name.startswith("test_"))
        found += [f"{file}: {test.name}" for test in tests if not asserts(test) and not calls(test) & names]
    return found


def test_every_test_can_fail() -> None:
    assert without_assertion(trees()) == []


def test_a_test_that_cannot_fail_is_found() -> None:
    source = "def test_nothing():\n    helper()\n\ndef helper():\n    return 1\n"
    assert without_assertion({"x.py": ast.parse(source)}) == ["x.py: test_nothing"]
    assert without_assertion({"x.py": ast.parse(source.replace("return 1", "assert 1"))}) == []


INTERNALS = re.compile(r"(?<!\bself)(?<!\bcls)(?<!super\(\))\._(?!replace\b|asdict\b|fields\b|exit\b|_|proto\b)[a-z]\w*")
OF_OTHERS = {
    "client._post": "tritonclient has no public call for a body of one's own",
    "client._parsed_url": "tritonclient does not say where it is connected",
    "client._until": "our own raw client",
    "_current_frames": "sys",
    "_core._run": "Trio's seed of its random order",
    "core._r.seed": "Trio's seed of its random order",
    "_obj.value": "ctypes",
    "source._randbelow": "random.Random",
}
"""Underscores of other projects, for which there is no public name."""
UNDER_WAY = (
    "tests/backends/python/",
    "tests/frontends/",
    "tests/engine/test_process_channel.py",
    "tests/engine/test_thread_channel.py",
)


def internals(file: str, source: str) -> list[str]:
    """Lines that use a private name of something else. Texts in quotes are code of models, and are left out."""
    found = []
    for number, line in enumerate(source.splitlines(), 1):
        code = re.sub(r"\"[^\"]*\"|'[^']*'", "", line)
        if INTERNALS.search(code) and not any(known in line for known in OF_OTHERS):
            found.append(f"{file}:{number}: {line.strip()}")
    return found


def test_tests_use_public_names() -> None:
    files = (file for folder in ("tests", "fuzz") for file in sorted((ROOT / folder).rglob("*.py")))
    names = {str(file.relative_to(ROOT)): file for file in files}
    found = [line for name, file in names.items() if not name.startswith(UNDER_WAY) for line in internals(name, file.read_text())]
    assert found == []


def test_a_private_name_is_found() -> None:
    assert internals("x.py", "assert core._heap == []") == ["x.py:1: assert core._heap == []"]
    assert internals("x.py", "self._heap = point._replace(x='core._heap')") == []
