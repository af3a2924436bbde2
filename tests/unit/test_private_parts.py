"""The product uses nothing private of what it is built on: Trio, Hypercorn, hpack, watchfiles and the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

ALLOWED = {
    "_exit": "documented in the module os",
    "_asdict": "public: of a namedtuple",
    "_getframe": "documented in the module sys",
    "_current_frames": "documented in the module sys",
    "_Decompress": "the type of zlib.decompressobj(), which has no other name",
    "_C": "PyTorch: settings of its executor, which have no public way",
    "_jit_set_profiling_executor": "as `_C`",
    "_jit_set_profiling_mode": "as `_C`",
    "_jit_set_texpr_fuser_enabled": "as `_C`",
    "_set_graph_executor_optimize": "as `_C`",
    "_aoti": "PyTorch's loader of AOTInductor packages",
    "_inductor": "PyTorch's documentation compiles AOTInductor packages by it",
    "_make_callable_from_options": "TensorFlow's prepared calls of a session",
    "_LIB": "treelite's library has no public handle",
}
"""Private names of dependencies that are used, and why."""


def _own_names(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines: of functions, classes, variables and attributes, and those that strings hold (`__slots__`)."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _imported(tree: ast.Module) -> set[str]:
    """Names that a module imports from packages of others."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(each.asname or each.name).split(".")[0] for each in node.names if not each.name.startswith("tpy")}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("tpy"):
            names |= {each.asname or each.name for each in node.names}
    return names


def _root(node: ast.expr) -> str | None:
    """The first name of `a.b.c`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def own_names(trees: dict[str, ast.Module]) -> set[str]:
    """The names that modules of these define."""
    return {name for tree in trees.values() for name in _own_names(tree)}


def foreign_private_names(trees: dict[str, ast.Module], own: set[str]) -> list[str]:
    """A line for each private attribute that is read of something imported from others, or that is none of `own`."""
    found = []
    for name, tree in trees.items():
        imported = _imported(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
                continue
            if node.attr not in own or _root(node) in imported:
                found.append(f"{name}:{node.lineno} {node.attr}")
    return found


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The modules of the product by their paths."""
    files = [path for folder in ("src", "control", "data") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in files}


@pytest.fixture(scope="module")
def own(trees: dict[str, ast.Module]) -> set[str]:
    """The product's names."""
    return own_names(trees)


def test_the_private_names_of_dependencies_that_are_used_are_those_allowed(trees: dict[str, ast.Module], own: set[str]) -> None:
    found = foreign_private_names(trees, own)
    assert [line for line in found if line.split()[-1] not in ALLOWED] == []
    assert {line.split()[-1] for line in found} == set(ALLOWED)


@pytest.mark.parametrize(
    "line",
    [
        "import trio\nrunner = trio._core._run",
        "schema = Message._betterproto",
        "class Table(Other):\n    def size(self):\n        return self._maxsize",
    ],
)
def test_a_private_part_is_found(own: set[str], line: str) -> None:
    canary = {"canary.py": ast.parse(line)}
    found = foreign_private_names(canary, own | own_names(canary))
    assert any(each.startswith("canary.py") for each in found)
