"""Tools of a chat: which a model may or must call, and how its calls are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from tpy.echo import echo
from tpy.errors import InvalidArgument, Unsupported
from tpy_platforms.openai.core.tool_calls import FORMS, LIST, CallForm, CallReader, FormReader, NoCalls, OneCall

PARAMETER: Final = "tool_call_parser"
"""The parameter of a model's configuration that names its parser."""

_OF_VLLM: Final[Mapping[str, str]] = {"llama3_json": "llama3", "deepseek_v3": "deepseek", "deepseek_v31": "deepseek"}
"""vLLM's names of parsers that are called otherwise here."""

Json = dict[str, Any]


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of tools in a chat. `offered`: the tools that the template shows to the model. `function`: the only tool, which it
    has to call; `form`: the form of its calls, None where none are looked for. `schema`: that of the whole answer, where it has
    to be calls."""

    offered: list[Json] | None = None
    form: CallForm | None = None
    function: str = ""
    schema: Json | None = None
    one_call: bool = False

    def reader(self) -> CallReader:
        """A reader of one answer."""
        if self.function:
            return OneCall(self.function)
        return NoCalls() if self.form is None else FormReader(self.form)

    def settings(self) -> Json:
        """The settings by which the model writes nothing else, or does not hide the signs of its calls."""
        if self.schema is not None:
            return {"structured_outputs": {"json": self.schema}}
        return {"skip_special_tokens": False} if self.form is not None and self.form.has_special_tokens else {}


def tool_use(
    model: str,
    parameters: Mapping[str, str],
    default_parser: str,
    tools: list[Json] | None,
    choice: str | Json | None,
    parallel: bool | None,
) -> ToolUse:
    """The use of tools that a chat asks for. The parser is that of the model's parameter, or else `default_parser`. Raises
    InvalidArgument for a choice that cannot be, and Unsupported for a parser that does not exist."""
    one_call = parallel is False
    if choice is None or choice == "auto":
        form = _form_of(model, parameters, default_parser) if tools else None
        return ToolUse(offered=tools, form=form, one_call=one_call)
    if choice == "none":
        return ToolUse()
    if choice == "required":
        named = _functions(tools)
        calls = [
            {
                "type": "object",
                "properties": {"name": {"type": "string", "enum": [name]}, "parameters": schema},
                "required": ["name", "parameters"],
            }
            for name, schema in named
        ]
        schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
        return ToolUse(offered=tools, form=LIST, schema=schema | ({"maxItems": 1} if one_call else {}), one_call=one_call)
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidArgument(
            '\'tool_choice\': expected none, auto, required, or {"type": "function", "function": {"name": ...}}'
        )
    for name, schema in _functions(tools):
        if name == function["name"]:
            return ToolUse(offered=tools, function=name, schema=schema, one_call=True)
    raise InvalidArgument(f"'tool_choice': there is no function '{echo(function['name'])}' among the tools")


def _functions(tools: Sequence[Json] | None) -> list[tuple[str, Json]]:
    """The names of the functions, and the schemas of their arguments. Raises InvalidArgument."""
    found = []
    for at, tool in enumerate(tools or ()):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise InvalidArgument(f"expected a function with a name - at `$.tools[{at}]`")
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(schema, dict):
            raise InvalidArgument(f"expected a JSON schema - at `$.tools[{at}].function.parameters`")
        found.append((name, schema))
    if not found:
        raise InvalidArgument("'tool_choice' needs 'tools'")
    return found


def _form_of(model: str, parameters: Mapping[str, str], default: str) -> CallForm | None:
    """The form of a model's calls; None where neither its parameter nor `default` names one."""
    given = parameters.get(PARAMETER) or default
    name = _OF_VLLM.get(given, given)
    if name and name not in FORMS:
        known = " or ".join(FORMS)
        raise Unsupported(f"model '{model}': parameter '{PARAMETER}': expected {known}, got '{echo(name)}'")
    return FORMS[name] if name else None
