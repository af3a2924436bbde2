"""Calls of tools in the text of a model, by the names of Triton's parsers.

    llama3      <|python_tag|>{"name": ..., "parameters": {...}}; {"name": ...}      all of the text; the tag may be missing
    mistral     text [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]            without the sign all of the text

`arguments` and `parameters` mean the same. What begins like a call is held back until the text ends, and is text if it is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec

from tpy import limits
from tpy.echo import echo
from tpy.errors import Unsupported

PARAMETER: Final = "tool_call_parser"
"""The parameter of a model's configuration that names its parser."""

_ID_CHARACTERS: Final = 9
"""Mistral's templates take no other ids."""

_DECODER: Final = json.JSONDecoder()
_BETWEEN: Final = re.compile(r"\s*(?:;\s*)?")

_TRAILER: Final = "assistant\n\n"
"""TensorRT-LLM's models may begin another turn behind their calls."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call; `arguments` are JSON."""

    id: str
    name: str
    arguments: str

    def document(self) -> dict[str, Any]:
        """The call as clients get it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class ToolCallForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of calls. `first`: beginnings of a text that may be calls; `sign`: the beginning of calls anywhere, which is cut
    off. Calls are a list in JSON, or objects with ";" between them."""

    first: tuple[str, ...]
    sign: str
    is_list: bool


FORMS: Final[Mapping[str, ToolCallForm]] = {
    "llama3": ToolCallForm(first=("<|python_tag|>", "{"), sign="<|python_tag|>", is_list=False),
    "mistral": ToolCallForm(first=("[",), sign="[TOOL_CALLS]", is_list=True),
}


def form_of(model: str, parameters: Mapping[str, str], default: str) -> ToolCallForm | None:
    """The form of a model's calls, by its parameter or else `default`; None where neither names one. Raises Unsupported for a
    parser that there is not."""
    name = parameters.get(PARAMETER) or default
    if name and name not in FORMS:
        known = " or ".join(FORMS)
        raise Unsupported(f"model '{model}': parameter '{PARAMETER}': expected {known}, got '{echo(name)}'")
    return FORMS[name] if name else None


class ToolCallReader:
    """Takes the calls out of a text that comes in pieces. Without a form there are none."""

    def __init__(self, form: ToolCallForm | None) -> None:
        self._form = form
        self._held = ""
        self._is_first = True
        """Nothing of the text has been returned."""

    def add(self, text: str) -> str:
        """Returns what is certain to be no call."""
        if self._form is None:
            return text
        held = self._held + text
        may_begin = self._is_first and _may_begin(held.lstrip(), self._form.first)
        free = 0 if may_begin else _free(held, self._form.sign)
        if len(held) - free > limits.OPENAI_TOOL_CALLS_CHARACTERS_MAX:
            self._form, self._held = None, ""
            return held
        self._is_first = self._is_first and not free
        self._held = held[free:]
        return held[:free]

    def end(self) -> tuple[str, list[ToolCall]]:
        """Returns the rest of the text, and the calls."""
        held, self._held = self._held, ""
        if self._form is None or not held:
            return held, []
        calls = _calls(held.strip().removeprefix(self._form.sign), self._form)
        return ("", calls) if calls else (held, [])


def _may_begin(text: str, signs: tuple[str, ...]) -> bool:
    """Returns True for a text that begins with one of the signs, or will, as far as it goes."""
    return any(text.startswith(sign) or sign.startswith(text) for sign in signs)


def _free(text: str, sign: str) -> int:
    """The number of characters before the sign, or before what may become one at the end."""
    found = text.find(sign)
    if found >= 0:
        return found
    return next(
        (len(text) - size for size in range(min(len(sign) - 1, len(text)), 0, -1) if sign.startswith(text[-size:])), len(text)
    )


def _calls(text: str, form: ToolCallForm) -> list[ToolCall]:
    """The calls that a text is; none if it is anything else."""
    try:
        found = json.loads(text) if form.is_list else _each(text.partition(_TRAILER)[0])
    except (ValueError, RecursionError):
        return []
    calls = []
    for each in found if isinstance(found, list) else ():
        if not isinstance(each, dict):
            return []
        name, arguments = each.get("name"), each.get("arguments", each.get("parameters"))
        if not isinstance(name, str) or not name or not isinstance(arguments, dict | str):
            return []
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        if any("\ud800" <= character <= "\udfff" for character in name + written):  # UTF-8 cannot say them
            return []
        calls.append(ToolCall(id=uuid4().hex[:_ID_CHARACTERS], name=name, arguments=written))
    return calls


def _each(text: str) -> list[Any]:
    """The JSON documents of a text, with ";" between them. Raises ValueError."""
    found, at = [], 0
    text = text.strip()
    while at < len(text):
        document, end = _DECODER.raw_decode(text, at)
        found.append(document)
        between = _BETWEEN.match(text, end)
        at = end if between is None else between.end()
    return found
