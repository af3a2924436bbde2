"""Mutants: one small fault each, of the kinds that people make.

Left out, as no run of a program shows them: annotations (`int | str` is no arithmetic), and the options of a class (`frozen=True`
forbids what nobody does; a test that tries to would test msgspec)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

import msgspec


class Mutant(msgspec.Struct, frozen=True):
    """A file's source with one fault in it. `what` says which, `line` where."""

    path: str
    line: int
    what: str
    source: str


_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


class Place(NamedTuple):
    """A place for a fault: the number of the node in the order of `ast.walk`, and what is made wrong there."""

    line: int
    what: str
    node: int


def places_of(source: str) -> list[Place]:
    """All of a file, in order. Docstrings, annotations and the texts of errors are left alone."""
    tree = ast.parse(source)
    unseen = _unseen(tree)
    nodes = [(number, node) for number, node in enumerate(ast.walk(tree)) if node not in unseen]
    return sorted(Place(getattr(node, "lineno", 0), what, number) for number, node in nodes for what in _faults(node))


def mutant_of(path: str, source: str, place: Place) -> Mutant:
    """The file with this fault."""
    tree = ast.parse(source)
    _apply(next(node for number, node in enumerate(ast.walk(tree)) if number == place.node), place.what)
    return Mutant(path, place.line, place.what, ast.unparse(ast.fix_missing_locations(tree)))


def _faults(node: ast.AST) -> Iterator[str]:
    """The faults that can be put into this node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        yield "comparison turned"
    elif isinstance(node, ast.BoolOp):
        yield "and/or swapped"
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _ARITHMETIC and not _is_union(node):
        yield "operator turned"
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "off by one"
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "constant negated"
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield "condition negated"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call dropped"
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
        yield "assignment dropped"
    elif isinstance(node, ast.Continue):
        yield "continue made break"
    elif isinstance(node, ast.Break):
        yield "break made continue"


def _unseen(tree: ast.AST) -> set[ast.AST]:
    """Annotations, options of classes, and all that is in them."""
    roots: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            roots += node.keywords
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            roots.append(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            roots.append(node.returns)
    return {inner for root in roots for inner in ast.walk(root)}


def _is_union(node: ast.BinOp | ast.AugAssign) -> bool:
    """Returns True if it is the type X | None of an alias."""
    if isinstance(node, ast.AugAssign) or not isinstance(node.op, ast.BitOr):
        return False
    return any(
        (isinstance(side, ast.Name) and side.id[0].isupper()) or (isinstance(side, ast.Constant) and side.value is None)
        for side in (node.left, node.right)
    )


def _apply(node: ast.AST, what: str) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, (ast.BinOp, ast.AugAssign)):
        node.op = _ARITHMETIC[type(node.op)]()
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else int(str(node.value)) + 1
    elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    else:
        # A statement becomes another one in place, so that its parent need not be known.
        replacement = {"continue made break": ast.Break, "break made continue": ast.Continue}.get(what, ast.Pass)
        node.__class__ = replacement
        node.__dict__ = {key: value for key, value in node.__dict__.items() if key in ("lineno", "col_offset")}
