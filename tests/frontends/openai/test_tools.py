"""Calls of tools in texts: the forms of Triton's parsers, in one piece and in many."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy import limits
from tpy.errors import Unsupported
from tpy.frontends.openai.tools import FORMS, ToolCallReader, form_of

LLAMA = '{"name": "weather", "parameters": {"city": "Zürich; {}"}}'
TWO = LLAMA + '; {"name": "time", "arguments": {}}'
MISTRAL = '[{"name": "weather", "arguments": {"city": "Zürich; {}"}}, {"name": "time", "arguments": "{}"}]'
WEATHER, TIME = ("weather", {"city": "Zürich; {}"}), ("time", {})

TEXTS = [
    ("llama3", LLAMA, "", [WEATHER]),
    ("llama3", f"<|python_tag|>{LLAMA}", "", [WEATHER]),
    ("llama3", f"\n\n{TWO} ", "", [WEATHER, TIME]),
    ("llama3", f"{LLAMA}assistant\n\nI have asked.", "", [WEATHER]),
    ("llama3", "It is sunny {today}.", "It is sunny {today}.", []),
    ("llama3", '{"temperature": 20}', '{"temperature": 20}', []),
    ("llama3", '{"name": "cut off", "parameters": {"ci', '{"name": "cut off", "parameters": {"ci', []),
    ("llama3", '{"name": "x", "parameters": {"a": "\\ud800"}}', "", [("x", {"a": "\ud800"})]),
    ("llama3", '{"name": "\\ud800", "parameters": {}}', '{"name": "\\ud800", "parameters": {}}', []),
    ("mistral", f"[TOOL_CALLS]{MISTRAL}", "", [WEATHER, TIME]),
    ("mistral", MISTRAL, "", [WEATHER, TIME]),
    ("mistral", f"Let me see. [TOOL_CALLS] {MISTRAL}", "Let me see. ", [WEATHER, TIME]),
    ("mistral", "[TOOL_CALLS][1, 2]", "[TOOL_CALLS][1, 2]", []),
    ("mistral", "A list: [1, 2] [TOOL_CALL", "A list: [1, 2] [TOOL_CALL", []),
    ("mistral", "[" * 5000, "[" * 5000, []),
]


def read(form: str, pieces: list[str]) -> tuple[str, list[tuple[str, object]]]:
    reader = ToolCallReader(FORMS[form])
    text = "".join(map(reader.add, pieces))
    rest, calls = reader.end()
    assert len({call.id for call in calls}) == len(calls)
    assert all(len(call.id) == 9 and call.id.isalnum() for call in calls), "as Mistral's templates want them"
    return text + rest, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize(("form", "whole", "text", "calls"), TEXTS)
def test_texts(form: str, whole: str, text: str, calls: list[tuple[str, object]]) -> None:
    assert read(form, [whole]) == (text, calls)
    assert read(form, list(whole)) == (text, calls)


@given(st.sampled_from(sorted(FORMS)), st.lists(st.text("[{<|TOOL_CALLS]}; a\n")))
def test_pieces_are_as_the_whole_and_nothing_is_lost(form: str, pieces: list[str]) -> None:
    assert read(form, pieces) == read(form, ["".join(pieces)]) == ("".join(pieces), [])


def test_text_that_is_no_call_goes_out_at_once() -> None:
    reader = ToolCallReader(FORMS["mistral"])
    assert [reader.add(piece) for piece in ("The ", "answer [", "TOOL", "_BOX] is [TOOL_CALLS]", "[")] == [
        "The ",
        "answer ",
        "",
        "[TOOL_BOX] is ",
        "",
    ]
    assert reader.end() == ("[TOOL_CALLS][", [])


def test_what_is_held_back_is_bounded() -> None:
    reader = ToolCallReader(FORMS["llama3"])
    assert reader.add("{" * limits.OPENAI_TOOL_CALLS_CHARACTERS_MAX) == ""
    assert len(reader.add("x")) == limits.OPENAI_TOOL_CALLS_CHARACTERS_MAX + 1
    assert reader.add(LLAMA) == LLAMA


def test_the_parser_of_a_model() -> None:
    assert form_of("m", {}, "") is None
    assert form_of("m", {}, "llama3") is FORMS["llama3"]
    assert form_of("m", {"tool_call_parser": "mistral"}, "llama3") is FORMS["mistral"]
    with pytest.raises(Unsupported, match="model 'm': parameter 'tool_call_parser': expected llama3 or mistral, got 'x'"):
        form_of("m", {"tool_call_parser": "x"}, "")
