"""The calling convention of an AOTInductor package: what it takes and gives, as trees of tensors in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from tpy.errors import Internal, Unsupported
from tpy_data.backends.pytorch.signature import Argument, Result, Signature


def read_call_spec(inputs: str, outputs: str) -> Signature:
    """The signature in what a package says of its calling convention. Raises Internal for a version that is not known,
    Unsupported for anything but tuples, lists and dicts of tensors."""
    (args, kwargs), results = _tree(inputs)["children_spec"], _tree(outputs)
    paths = [("ARGS", path) for path in _paths(args)] + [("KWARGS", path) for path in _paths(kwargs)]
    arguments = tuple(
        Argument(name=_argument_name(word, path, position), path=word + _text(path))
        for position, (word, path) in enumerate(paths)
    )
    gives = results.get("type") == "builtins.dict"
    return Signature(
        inputs=arguments,
        outputs=tuple(
            Result(path=f"RESULT{_text(path)}", key=path[0] if gives and len(path) == 1 else "") for path in _paths(results)
        ),
    )


def _argument_name(word: str, path: Sequence[str], position: int) -> str:
    """A keyword's own name. Others have lost theirs."""
    return path[0] if word == "KWARGS" and len(path) == 1 else f"INPUT__{position}"


def _tree(text: str) -> dict[str, Any]:
    try:
        version, tree = orjson.loads(text)
    except (ValueError, TypeError) as error:
        raise Internal(f"the package's call specification cannot be read: {error}") from error
    if version != 1 or not isinstance(tree, dict):
        raise Internal(f"the package's call specification has version {version}, expected 1")
    return tree


def _paths(tree: dict[str, Any]) -> list[tuple[str, ...]]:
    """The places of all tensors in a tree, in order."""
    kind = tree.get("type")
    if kind is None:
        return [()]
    children = tree["children_spec"]
    if kind in ("builtins.tuple", "builtins.list"):
        keys = [str(number) for number in range(len(children))]
    elif kind == "builtins.dict":
        context = tree["context"]
        keys = [str(key) for key in (orjson.loads(context) if isinstance(context, str) else context)]
    else:
        raise Unsupported(
            f"the package takes or gives values of type '{kind}': only dicts, tuples and lists of tensors are supported"
        )
    return [(key, *rest) for key, child in zip(keys, children, strict=True) for rest in _paths(child)]


def _text(path: Sequence[str]) -> str:
    return "".join(f"[{key}]" for key in path)
