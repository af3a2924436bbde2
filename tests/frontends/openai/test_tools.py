"""Calls of tools in texts: the forms of five families of models, in one piece and in many; and the choice of tools."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tpy import limits
from tpy.errors import InvalidArgument, Unsupported
from tpy_platforms.openai.core.tool_calls import FORMS, LIST, CallBegun, FormReader, Found, NoCalls, OneCall, ToolCallArguments
from tpy_platforms.openai.tools import ToolUse, tool_use

LLAMA = '{"name": "weather", "parameters": {"city": "Zürich; {}"}}'
TWO = LLAMA + '; {"name": "time", "arguments": {}}'
MISTRAL = '[{"name": "weather", "arguments": {"city": "Zürich; {}"}}, {"name": "time", "arguments": "{}"}]'
HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich; {}"}}\n</tool_call>'
DEEPSEEK = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Zürich; {}"}\n```'
    "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
DEEPSEEK_31 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
WEATHER, TIME = ("weather", {"city": "Zürich; {}"}), ("time", {})

TEXTS: list[tuple[str, str, str, list[tuple[str, object]]]] = [
    ("llama3", LLAMA, "", [WEATHER]),
    ("llama3", f"<|python_tag|>{LLAMA}", "", [WEATHER]),
    ("llama3", f"\n\n{TWO} ", "", [WEATHER, TIME]),
    ("llama3", f"{LLAMA}assistant\n\nI have asked.", "", [WEATHER]),
    ("llama3", f"{LLAMA} I ask.", "I ask.", [WEATHER]),
    ("llama3", "It is sunny {today}.", "It is sunny {today}.", []),
    ("llama3", '{"temperature": 20}', '{"temperature": 20}', []),
    ("llama3", '{"name": "cut off", "par', '{"name": "cut off", "par', []),
    ("llama3", '{"parameters": {"a": 1}, "name": "x"}', "", [("x", {"a": 1})]),
    ("llama3", '{"name": "x", "parameters": {"a": "\\ud800"}}', "", [("x", {"a": "\ud800"})]),
    ("llama3", '{"name": "\\ud800", "parameters": {}}', '{"name": "\\ud800", "parameters": {}}', []),
    ("llama3", '{"name": "x", "parameters": {}, "id": "}"}; {"name": "time", "parameters": {}', "", [("x", {}), TIME]),
    ("mistral", f"[TOOL_CALLS]{MISTRAL}", "", [WEATHER, TIME]),
    ("mistral", MISTRAL, "", [WEATHER, TIME]),
    ("mistral", f"Let me see. [TOOL_CALLS] {MISTRAL}", "Let me see. ", [WEATHER, TIME]),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Zürich; {}"}[TOOL_CALLS]time{}', "", [WEATHER, TIME]),
    ("mistral", "[TOOL_CALLS][1, 2]", "[TOOL_CALLS][1, 2]", []),
    ("mistral", "A list: [1, 2] [TOOL_CALL", "A list: [1, 2] [TOOL_CALL", []),
    ("mistral", "[" * 5000, "[" * 5000, []),
    ("hermes", f"I ask.\n{HERMES}\n<tool_call>{TWO[len(LLAMA) + 2 :]}</tool_call>", "I ask.\n", [WEATHER, TIME]),
    ("hermes", f"{HERMES}\nDone.", "Done.", [WEATHER]),
    ("hermes", "<tool_call>not so</tool_call>", "<tool_call>not so</tool_call>", []),
    ("granite", f"<|tool_call|>{MISTRAL}", "", [WEATHER, TIME]),
    ("granite", f"<tool_call>{MISTRAL}", "", [WEATHER, TIME]),
    ("deepseek", f"I ask. {DEEPSEEK}", "I ask. ", [WEATHER, TIME]),
    ("deepseek", DEEPSEEK_31, "", [TIME]),
    ("deepseek", "<｜tool▁calls▁begin｜> no {call}", "<｜tool▁calls▁begin｜> no {call}", []),
]


def joined(found: list[Found]) -> tuple[str, list[tuple[str, str]]]:
    text, calls = "", []
    for each in found:
        match each:
            case CallBegun(name):
                calls.append((name, ""))
            case ToolCallArguments(more):
                calls[-1] = (calls[-1][0], calls[-1][1] + more)
            case _:
                text += each
    return text, calls


@pytest.mark.parametrize(("form", "whole", "text", "calls"), TEXTS)
def test_texts(form: str, whole: str, text: str, calls: list[tuple[str, object]]) -> None:
    for pieces in ([whole], list(whole)):
        reader = FormReader(FORMS[form])
        said, found = joined([*(each for piece in pieces for each in reader.add(piece)), *reader.end()])
        assert (said, [(name, json.loads(arguments)) for name, arguments in found]) == (text, calls)


def test_text_that_is_no_call_goes_out_at_once() -> None:
    reader = FormReader(FORMS["mistral"])
    pieces = ("The ", "answer [", "TOOL", "_BOX] is [TOOL_CALLS]", "[")
    assert [reader.add(piece) for piece in pieces] == [["The "], ["answer "], [], ["[TOOL_BOX] is "], []]
    assert reader.end() == ["[TOOL_CALLS]["]


def test_arguments_go_out_as_they_come() -> None:
    reader = FormReader(FORMS["hermes"])
    pieces = ('<tool_call>{"name": "f', '", "arguments": {"a"', ": [1", "]}", "}</tool_call>")
    assert [reader.add(piece) for piece in pieces] == [
        [],
        [CallBegun("f"), ToolCallArguments('{"a"')],
        [ToolCallArguments(": [1")],
        [ToolCallArguments("]}")],
        [],
    ]


def test_what_is_held_back_is_bounded() -> None:
    reader = FormReader(FORMS["llama3"])
    assert reader.add("{" * limits.OPENAI_TOOL_CALLS_CHARACTERS_MAX) == []
    assert joined(reader.add("x"))[0] == "{" * limits.OPENAI_TOOL_CALLS_CHARACTERS_MAX + "x"
    assert reader.add(LLAMA) == [LLAMA]
    for sign in ("<tool_call>", "<tool_call>{"):
        reader = FormReader(FORMS["hermes"])
        count = 2 * limits.OPENAI_TOOL_CALLS_CHARACTERS_MAX // len(sign)
        assert len(joined(reader.add(sign * count))[0]) >= limits.OPENAI_TOOL_CALLS_CHARACTERS_MAX


def test_a_long_text_that_begins_many_calls_takes_time_for_its_length() -> None:
    """Five times as long takes about five times as much, not 25: whole answers may have 16 Mi characters."""

    def read(count: int) -> float:
        reader = FormReader(FORMS["mistral"])
        begun = time.process_time()
        reader.add("[TOOL_CALLS]a " * count)
        return time.process_time() - begun

    assert min(read(50_000) for _ in range(3)) < 12 * min(read(10_000) for _ in range(3))


WEATHER_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER_SCHEMA}},
    {"type": "function", "function": {"name": "time"}},
]


def use(choice: str | dict[str, Any] | None, tools: list[dict[str, Any]] | None = TOOLS, parallel: bool | None = None) -> ToolUse:
    return tool_use("m", {"tool_call_parser": "hermes"}, "", tools, choice, parallel)


def test_a_choice_of_tools() -> None:
    assert use("none") == ToolUse()
    assert use("auto") == use(None) == ToolUse(offered=TOOLS, form=FORMS["hermes"])
    assert use("auto").settings() == {"skip_special_tokens": False}
    assert isinstance(use("none").reader(), NoCalls)
    named = use({"type": "function", "function": {"name": "weather"}})
    assert named.settings() == {"structured_outputs": {"json": WEATHER_SCHEMA}}
    assert isinstance(named.reader(), OneCall)
    required = use("required", parallel=False)
    assert required.form is LIST
    assert required.one_call
    schema = required.settings()["structured_outputs"]["json"]
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 1)
    assert [each["properties"]["name"]["enum"] for each in schema["items"]["anyOf"]] == [["weather"], ["time"]]
    assert schema["items"]["anyOf"][0]["properties"]["parameters"] == WEATHER_SCHEMA


@pytest.mark.parametrize(
    ("choice", "tools", "problem"),
    [
        ("required", None, "'tool_choice' needs 'tools'"),
        ("always", TOOLS, "'tool_choice': expected none, auto, required, or"),
        ({"type": "function"}, TOOLS, "'tool_choice': expected none, auto, required, or"),
        ({"type": "function", "function": {"name": "x"}}, TOOLS, "there is no function 'x' among the tools"),
        ("required", [{"type": "function"}], r"expected a function with a name - at `\$.tools\[0\]`"),
        ("required", [{"function": {"name": "x", "parameters": 1}}], r"expected a JSON schema - at `\$.tools\[0\]"),
    ],
)
def test_choices_that_cannot_be(choice: str | dict[str, Any], tools: list[dict[str, Any]] | None, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        use(choice, tools)


def test_the_parser_of_a_model() -> None:
    def form_of(parameters: dict[str, str], default: str) -> object:
        return tool_use("m", parameters, default, TOOLS, None, None).form

    assert form_of({}, "") is None
    assert form_of({}, "llama3") is FORMS["llama3"]
    assert form_of({"tool_call_parser": "mistral"}, "llama3") is FORMS["mistral"]
    assert form_of({"tool_call_parser": "deepseek_v3"}, "") is FORMS["deepseek"], "vLLM's name"
    with pytest.raises(Unsupported, match=r"parameter 'tool_call_parser': expected llama3 or mistral or .*, got 'x'"):
        form_of({"tool_call_parser": "x"}, "")
