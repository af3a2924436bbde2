"""No files import each other in a circle. An import for type checkers alone counts, and one in a function: who reads the first
file has to read the other one, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "control", "data")

Modules = dict[str, ast.Module]


def modules_in(*folders: Path) -> Modules:
    """The modules below these folders, by name. A package has the name of its folder."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
            found[name].is_package = path.name == "__init__.py"  # type: ignore[attr-defined]  # for relative imports
    return found


def origin(modules: Modules, module: str, name: str) -> str:
    """The module that has this name: one of this package, or the one that its front takes the name from."""
    if f"{module}.{name}" in modules:
        return f"{module}.{name}"
    for node in modules[module].body:
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            source = source_of(modules, module, node)
            if source in modules:
                return origin(modules, source, name)
    return module


def source_of(modules: Modules, module: str, node: ast.ImportFrom) -> str:
    """The module that an import names, also where it does so from where it stands."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + getattr(modules[module], "is_package", False)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def imports_of(modules: Modules, module: str) -> Iterator[str]:
    """The modules that one imports. What the front of a package only hands on is not the front's import, but that of whoever
    takes it from there."""
    tree = modules[module]
    is_front = getattr(tree, "is_package", False)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = [alias for alias in node.names if not is_front or (alias.asname or alias.name).partition(".")[0] in used]
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in names if alias.name in modules)
        elif (source := source_of(modules, module, node)) in modules:
            yield from (origin(modules, source, alias.name) for alias in names)


def circles(modules: Modules) -> list[list[str]]:
    """The modules of each circle: those that Tarjan's algorithm finds strongly connected."""
    graph = {module: sorted(set(imports_of(modules, module)) - {module}) for module in modules}
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(graph[root]))]
        index[root] = lowest[root] = len(index)
        stack.append(root)
        while work:
            module, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = lowest[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(graph[other])))
                    break
                if other in stack:
                    lowest[module] = min(lowest[module], index[other])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[module])
                if lowest[module] == index[module]:
                    circle = [stack.pop()]
                    while circle[-1] != module:
                        circle.append(stack.pop())
                    if len(circle) > 1:
                        found.append(sorted(circle))
    return found


def test_no_files_import_each_other_in_a_circle() -> None:
    modules = modules_in(*[ROOT / folder for folder in FOLDERS])
    assert len(modules) > 500
    assert circles(modules) == [], "move what both need to where it belongs"


@pytest.mark.parametrize(
    "back",
    [
        "from house.roof import Roof",
        "import house.roof",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from house.roof import Roof",
        "def roof() -> object:\n    from house.roof import Roof\n\n    return Roof",
        "from house import Roof",
        "from .roof import Roof",
        "from . import roof",
    ],
    ids=["from", "import", "type checking", "in a function", "by the front", "relative", "relative module"],
)
def test_a_circle_is_found(tmp_path: Path, back: str) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").write_text("from house.roof import Roof\n")
    (house / "roof.py").write_text("from house.walls import Wall\n\nclass Roof: ...\n")
    (house / "walls.py").write_text("from house.ground import Ground\n\nclass Wall: ...\n")
    (house / "ground.py").write_text("class Ground: ...\n")
    assert circles(modules_in(tmp_path)) == []
    (house / "ground.py").write_text(f"{back}\n\nclass Ground: ...\n")
    assert circles(modules_in(tmp_path)) == [["house.ground", "house.roof", "house.walls"]]


def test_a_front_that_uses_what_it_imports_is_part_of_a_circle(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").write_text("from house.roof import Roof\n\nNEEDS = 1\n\ndef create() -> Roof:\n    return Roof()\n")
    (house / "roof.py").write_text("from house import NEEDS\n\nclass Roof: ...\n")
    assert circles(modules_in(tmp_path)) == [["house", "house.roof"]]
