"""Mutants: one small fault each, of the kinds that people make."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

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


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a file, in order. Docstrings, annotations and the texts of errors are left alone."""
    tree = ast.parse(source)
    found = []
    for index, node in enumerate(ast.walk(tree)):
        for what in _faults(node):
            changed = copy.deepcopy(tree)
            target = next(other for place, other in enumerate(ast.walk(changed)) if place == index)
            _apply(target, what)
            found.append(Mutant(path, getattr(node, "lineno", 0), what, ast.unparse(ast.fix_missing_locations(changed))))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.what))


def _faults(node: ast.AST) -> Iterator[str]:
    """What can be made wrong about this node."""
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


def _is_union(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether it is a type, X | None."""
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
