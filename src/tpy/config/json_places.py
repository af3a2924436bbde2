"""The places of fields in a configuration that is JSON, and a configuration read from it with its problems located."""

from __future__ import annotations

import bisect
import re
from typing import Final

import msgspec

from tpy import limits
from tpy.config.json_form import parse_json
from tpy.config.lenient_json import TOKEN
from tpy.config.pbtxt import ParsedConfig
from tpy.config.problem import ConfigError, Location, Problem, Source, entry
from tpy.config.schema import MODEL_CONFIG, Cardinality, FieldSchema, MessageSchema

_POSITION: Final = re.compile(r"line (\d+) column (\d+)")


def parse_located_json(text: str, *, path: str = "") -> ParsedConfig:
    """As `parse_json`, with the places of all fields. Raises ConfigError, whose problems have theirs."""
    places = json_places(text) if len(text) <= limits.CONFIG_BYTES_MAX else {}
    source = Source(path=path, locations=places)
    try:
        return ParsedConfig(config=parse_json(text), source=source)
    except ConfigError as error:
        raise ConfigError([_located(problem, source) for problem in error.problems], message=error.message) from None


def _located(problem: Problem, source: Source) -> Problem:
    syntax = None if problem.field else _POSITION.search(problem.message)
    place = source.locate(problem.field) if syntax is None else Location(int(syntax[1]), int(syntax[2]))
    return msgspec.structs.replace(problem, path=source.path, line=place.line, column=place.column)


class _Frame:
    """An object or a list that is open: `schema` of a message, `field` of a map or a list, neither of what is not known."""

    __slots__ = ("field", "index", "path", "schema")

    def __init__(self, path: str, schema: MessageSchema | None, field: FieldSchema | None, index: int | None) -> None:
        self.path = path
        self.schema = schema
        self.field = field
        self.index = index


def json_places(text: str) -> dict[str, Location]:
    """The places of the fields of a configuration by path, as problems name them. As far as the text is JSON."""
    begins = [0, *(match.end() for match in re.finditer("\n", text))]
    places: dict[str, Location] = {}
    frames: list[_Frame] = []
    path, field = "", None  # of the value that comes next
    named = False  # the member of an object has its name already
    at = 0
    while (match := TOKEN.match(text, at)) is not None:
        at = match.end()
        token, top = match[0], frames[-1] if frames else None
        if match.lastgroup == "space" or token == ":":
            continue
        if token in "}]":
            if frames:
                frames.pop()
            named = True
            continue
        if token == ",":
            named = False
            if top is not None and top.index is not None:
                top.index += 1
            continue
        line = bisect.bisect_right(begins, match.start())
        place = Location(line, match.start() - begins[line - 1] + 1)
        if top is not None and top.index is not None:
            path, field = f"{top.path}[{top.index}]", top.field
            places[path] = place
        elif top is not None and not named:
            path, field = _member(top, token)
            places[path] = place
            named = True
            continue
        if token == "{":
            frames.append(_opened(path, field, in_list=top is not None and (top.index is not None or top.field is not None)))
            named = False
        elif token == "[":
            frames.append(_Frame(path, None, field, 0))
    return places


def _member(top: _Frame, token: str) -> tuple[str, FieldSchema | None]:
    name = token[1:-1] if token[0] in "\"'" else token
    if top.field is not None:  # a map's entry
        return entry(top.path, int(name) if name.isdigit() else name), top.field
    field = None if top.schema is None else top.schema.by_json_name.get(name)
    if field is not None:
        name = field.name
    return (f"{top.path}.{name}" if top.path else name), field


def _opened(path: str, field: FieldSchema | None, *, in_list: bool) -> _Frame:
    """An object. `in_list`: an element of a list, or a value of a map."""
    if not path:
        return _Frame("", MODEL_CONFIG, None, None)
    if field is not None and field.cardinality is Cardinality.MAP and not in_list:
        return _Frame(path, None, field, None)
    schema = field.kind if field is not None and isinstance(field.kind, MessageSchema) else None
    return _Frame(path, schema, None, None)
