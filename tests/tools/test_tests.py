"""Tests of the tests: each can fail, and none looks into the internals of what it tests."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASSERTING = frozenset({"raises", "RaisesGroup", "warns", "fail", "fail_after"})
"""Calls that make a test fail, or bound its time."""


@functools.cache
def sources() -> dict[str, str]:
    files = (file for folder in ("tests", "fuzz") for file in (ROOT / folder).rglob("*.py"))
    return {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in sorted(files)}


class Function:
    """A function of the tests, with the names that it uses. `fails`: it can fail its test by itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.used: set[str] = set()
        self.fails = False


class Module:
    """The functions of one file, and the names that it imports."""

    def __init__(self, source: str) -> None:
        self.functions: list[Function] = []
        self.imported: set[str] = set()
        self._visit(ast.parse(source), ())

    def _visit(self, node: ast.AST, around: tuple[Function, ...]) -> None:
        """One walk through the tree; `around` are the functions that a node is in."""
        for child in ast.iter_child_nodes(node):
            inside = around
            match child:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self.functions.append(Function(name))
                    inside = (*around, self.functions[-1])
                case ast.ImportFrom(names=names):
                    self.imported.update(name.name for name in names)
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    for function in around:
                        function.used.add(name)
                        function.fails |= name in ASSERTING or name.startswith("assert_")
                case ast.Assert() | ast.Raise():
                    for function in around:
                        function.fails = True
            self._visit(child, inside)


def failing_helpers(modules: dict[str, Module]) -> dict[str, set[str]]:
    """By folder, the names of functions that can fail a test, by themselves or through others of their folder."""
    found: dict[str, set[str]] = {}
    for folder in {str(Path(file).parent) for file in modules}:
        helpers = [each for file, module in modules.items() if str(Path(file).parent) == folder for each in module.functions]
        names = {each.name for each in helpers if each.fails}
        while more := {each.name for each in helpers if each.used & names} - names:
            names |= more
        found[folder] = names
    return found


def without_assertion(sources: dict[str, str]) -> list[str]:
    """The tests that cannot fail."""
    modules = {file: Module(source) for file, source in sources.items()}
    helpers = failing_helpers(modules)
    everywhere = set().union(*helpers.values())
    found = []
    for file, module in modules.items():
        names = helpers[str(Path(file).parent)] | (module.imported & everywhere)
        tests = (each for each in module.functions if each.name.startswith("test_"))
        found += [f"{file}: {test.name}" for test in tests if not test.fails and not test.used & names]
    return found


def test_every_test_can_fail() -> None:
    assert without_assertion(sources()) == []


def test_a_test_that_cannot_fail_is_found() -> None:
    source = "def test_nothing():\n    helper()\n\ndef helper():\n    return 1\n"
    assert without_assertion({"x.py": source}) == ["x.py: test_nothing"]
    assert without_assertion({"x.py": source.replace("return 1", "assert 1")}) == []


OWN = frozenset({"self", "cls", "super()"})
DOCUMENTED = frozenset({"_replace", "_asdict", "_fields", "_exit", "_proto"})
"""Of named tuples, `os`, and our own package of generated code."""
OF_OTHERS = {
    "client._post": "tritonclient has no public call for a body of one's own",
    "client._parsed_url": "tritonclient does not say where it is connected",
    "client._until": "our own raw client",
    "_current_frames": "sys",
    "_core._run": "Trio's seed of its random order",
    "core._r.seed": "Trio's seed of its random order",
    "core._ALLOW_DETERMINISTIC_SCHEDULING": "Trio's switch for that order",
    "_obj.value": "ctypes",
    "source._randbelow": "random.Random",
    "session._setupstate": "pytest has no public call that ends the fixtures that tests share before the last of them",
    "torch._C._get_graph_executor_optimize": "PyTorch has no other way to ask",
    "torch._inductor.aoti_compile_and_package": "its documented name",
}
"""Underscores of other projects, for which there is no public name."""


def internals(file: str, source: str) -> list[str]:
    """Lines that use a private name of something else. Texts in quotes are code of models, and are left out."""
    lines, found = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        line = lines[(node.end_lineno or 0) - 1]
        known = node.attr in DOCUMENTED or ast.unparse(node.value) in OWN or any(known in line for known in OF_OTHERS)
        if not known:
            found.append(f"{file}:{node.end_lineno}: {line.strip()}")
    return found


def test_tests_use_public_names() -> None:
    assert [line for name, text in sources().items() for line in internals(name, text)] == []


def test_a_private_name_is_found() -> None:
    assert internals("x.py", "assert core._heap == []") == ["x.py:1: assert core._heap == []"]
    assert internals("x.py", "f(core.\\\n _heap)") == ["x.py:2: _heap)"]
    assert internals("x.py", "self._heap = super()._heap = point._replace(x='core._heap')") == []


CLOCKS = frozenset({"monotonic", "perf_counter", "thread_time", "process_time", "cpu_s"})
MEASURED = re.compile(r"(took|worst|longest|slowest|waited|elapsed|spent|lasted)(_s|_ms|_ns|_us)?")


def absolute_times(file: str, source: str) -> list[str]:
    """Asserts that a measured time is below a constant: a machine half as fast takes twice as long, see `tests.pace`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for compared in ast.walk(node) if isinstance(node, ast.Assert) else ():
            if not isinstance(compared, ast.Compare):
                continue
            sides = (compared.left, *compared.comparators)
            for left, operation, right in zip(sides, compared.ops, sides[1:], strict=False):
                if isinstance(operation, ast.Lt | ast.LtE) and _is_measured(left) and not _is_relative(right):
                    found.append(f"{file}:{compared.lineno}: {ast.unparse(compared)}")
    return found


def _is_measured(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Call):
        called = ast.unparse(node.left.func).rpartition(".")[2]
        return called.removesuffix("_ns") in CLOCKS
    return MEASURED.fullmatch(ast.unparse(node).rpartition(".")[2]) is not None


def _is_relative(node: ast.expr) -> bool:
    """A bound that something was measured for, and no constants alone."""
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
    return any(not name.isupper() for name in names)


def test_no_test_judges_an_absolute_time() -> None:
    assert [line for name, text in sources().items() for line in absolute_times(name, text)] == []


def test_an_absolute_time_is_found() -> None:
    assert absolute_times("x.py", "assert time.monotonic() - began < 2") == ["x.py:1: time.monotonic() - began < 2"]
    assert absolute_times("x.py", "assert 1 < took_s <= 2 * _S_MAX") == ["x.py:1: 1 < took_s <= 2 * _S_MAX"]
    assert absolute_times("x.py", "assert time.thread_time_ns() - began < at_pace(2)") == []
    assert absolute_times("x.py", "assert probe.worst_s < 3 * before.worst_s and trio.current_time() - began < 2") == []


def test_no_file_has_more_than_500_lines() -> None:
    assert {name: count for name, text in sources().items() if (count := len(text.splitlines())) > 500} == {}
