"""The form that an answer must have (`structured_outputs`), as a request names it. Compilers of grammars are native code and
recurse: what is too large or too deep for them would end the process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.limits import ENGINE_GRAMMAR_BYTES_MAX, ENGINE_GRAMMAR_DEPTH_MAX, ENGINE_GRAMMAR_GROUPS_MAX

KINDS: Final = ("json", "json_object", "regex", "choice", "grammar")


def structure_of(given: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The kind and its value: of `json` a schema, an object or as text; of `json_object` true; of `choice` a list of texts; of
    the others a text. None: any text will do. Raises InvalidArgument."""
    found = given.get("structured_outputs", given.get("guided_decoding"))
    if found is None:
        return None
    if not isinstance(found, dict):
        raise InvalidArgument("'structured_outputs' must be an object")
    kinds = [name for name, value in found.items() if value not in (None, False) and name in KINDS]
    others = [name for name, value in found.items() if value is not None and name not in KINDS]
    if others or len(kinds) != 1:
        raise InvalidArgument(f"'structured_outputs' must have exactly one of {', '.join(KINDS)}; got {echo(', '.join(found))}")
    _check_size(found)
    kind = kinds[0]
    value = found[kind]
    if kind == "json":
        _check_schema(value)
    elif kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise InvalidArgument("'structured_outputs.choice' must be a list of texts")
    elif kind != "json_object" and not isinstance(value, str):
        raise InvalidArgument(f"'structured_outputs.{kind}' must be a text")
    return kind, value


def _check_size(found: Mapping[str, Any]) -> None:
    _check_depth(found)
    text = json.dumps(found)
    if len(text) > ENGINE_GRAMMAR_BYTES_MAX:
        raise InvalidArgument(f"'structured_outputs' has {len(text)} bytes as JSON, at most {ENGINE_GRAMMAR_BYTES_MAX} are taken")
    groups = 0 if "choice" in found else text.count("(")
    if groups > ENGINE_GRAMMAR_GROUPS_MAX:
        raise InvalidArgument(f"'structured_outputs' has {groups} parentheses, at most {ENGINE_GRAMMAR_GROUPS_MAX} are taken")


def _check_depth(document: object) -> None:
    level: list[object] = [document]
    for _ in range(ENGINE_GRAMMAR_DEPTH_MAX):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise InvalidArgument(f"'structured_outputs' is nested more than {ENGINE_GRAMMAR_DEPTH_MAX} levels deep")


def _check_schema(value: object) -> None:
    if isinstance(value, str):
        try:
            _check_depth(json.loads(value))
        except (ValueError, RecursionError):
            raise InvalidArgument("'structured_outputs.json' is not JSON") from None
