"""The names of the parameters in config.pbtxt that the source reads: texts and constants, also in a collection that a loop goes
over. Names that are read as they come, such as the properties of OpenVINO, are not found."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FOLDERS = {"src": ("tpy/config", "tpy/backend"), "data": ("tpy_backends", "tpy_data", "tpy_native")}


class _Module:
    """A file, and what its constants, and those that it imports, are."""

    def __init__(self, text: str, modules: dict[str, _Module]) -> None:
        self.text = text
        self._modules = modules

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """The module and name there of each name that comes from another module."""
        imports = [node for node in self.tree.body if isinstance(node, ast.ImportFrom)]
        return {each.asname or each.name: (str(node.module), each.name) for node in imports for each in node.names}

    @cached_property
    def _constants(self) -> dict[str, ast.expr]:
        found: dict[str, ast.expr] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                found |= {each.id: value for each, value in pairs if isinstance(each, ast.Name)}
        return found

    def strings(self, node: ast.AST | None) -> Iterator[str]:
        """Those that an expression can be: a text, a constant, each of a collection's, the keys of a mapping."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name) and node.id in self._constants:
            yield from self.strings(self._constants[node.id])
        elif isinstance(node, ast.Name) and node.id in self.imported:
            module, name = self.imported[node.id]
            if module in self._modules:
                yield from self._modules[module].strings(ast.Name(name))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.imported:
            module = ".".join(self.imported[node.value.id])
            if module in self._modules:
                yield from self._modules[module].strings(ast.Name(node.attr))
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            for each in node.elts:
                yield from self.strings(each)
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                yield from self.strings(key)
        elif isinstance(node, ast.Starred):
            yield from self.strings(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:  # frozenset(...), sorted(...)
            yield from self.strings(node.args[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "items":
            yield from self.strings(node.func.value)


def model_parameters() -> set[tuple[str, str]]:
    """The backend that reads it, or "any", and the name."""
    modules: dict[str, _Module] = {}
    for root, folders in _FOLDERS.items():
        for path in sorted(path for folder in folders for path in (ROOT / root / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT / root).with_suffix("").parts).removesuffix(".__init__")
            modules[name] = _Module(path.read_text(encoding="utf-8"), modules)
    own = {name: _readers(module.tree) for name, module in modules.items() if ".parameter" in module.text}
    public = [function for functions in own.values() for function in functions if not function.startswith("_")]
    found = set()
    for name, module in modules.items():
        if name not in own and not any(function in module.text for function in public):
            continue  # parsing takes most of the time
        readers = own.get(name, {}) | {
            alias: own[other][function] for alias, (other, function) in module.imported.items() if function in own.get(other, ())
        }
        of_backend = re.match(r"(?:tpy_data\.backends|tpy_backends)\.(\w+)", name)
        backend = of_backend[1] if of_backend else "native" if name.startswith("tpy_native.backend") else "any"
        for function in ast.walk(module.tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            loops = _loops(function)
            for node in ast.walk(function):
                for key in (*_looked_up(node), *_given(node, readers)):
                    for place in (key, *_over(key, loops)):
                        found |= {(backend, each) for each in module.strings(place)}
    return found


def _readers(tree: ast.AST) -> dict[str, slice]:
    """Functions that read parameters whose names they are given, and where among their arguments these are."""
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        arguments = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        loops = _loops(node)
        for inner in ast.walk(node):
            for key in _looked_up(inner):
                for place in (key, *_over(key, loops)):
                    if isinstance(place, ast.Name) and place.id in arguments:
                        found[node.name] = slice(arguments.index(place.id), arguments.index(place.id) + 1)
                    elif isinstance(place, ast.Name) and node.args.vararg and place.id == node.args.vararg.arg:
                        found[node.name] = slice(len(arguments), None)
    return found


def _given(node: ast.AST, readers: dict[str, slice]) -> Iterator[ast.expr]:
    """The names in a call of such a function."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in readers:
        yield from node.args[readers[node.func.id]]


def _looked_up(node: ast.AST) -> Iterator[ast.expr]:
    """Keys that are looked up among the parameters of a configuration."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        method = node.func
        if (method.attr == "parameter" and _is_config(method.value)) or (method.attr == "get" and _is_parameters(method.value)):
            yield node.args[0]
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn) and _is_parameters(node.comparators[0]):
        yield node.left
    elif isinstance(node, ast.Subscript) and _is_parameters(node.value):
        yield node.slice


def _is_config(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.strip("_") == "config"


def _is_parameters(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "parameters" and _is_config(node.value)


def _loops(tree: ast.AST) -> dict[str, list[ast.expr]]:
    """The collections that loops go over, by the variable."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            found.setdefault(node.target.id, []).append(node.iter)
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Tuple):
            found.setdefault(ast.unparse(node.target.elts[0]), []).append(node.iter)
    return found


def _over(key: ast.expr, loops: dict[str, list[ast.expr]]) -> list[ast.expr]:
    return loops.get(key.id, []) if isinstance(key, ast.Name) else []
