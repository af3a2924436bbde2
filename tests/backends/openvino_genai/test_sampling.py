"""Settings of requests as OpenVINO GenAI's: what is refused before the engine sees it, and what the engine's own refusals say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tpy.backend.engine import EngineRequest
from tpy.errors import InvalidArgument
from tpy.limits import ENGINE_GRAMMAR_BYTES_MAX, ENGINE_GRAMMAR_DEPTH_MAX, ENGINE_GRAMMAR_GROUPS_MAX

genai = pytest.importorskip("openvino_genai")

from tpy_backends.openvino_genai.sampling import generation_config, is_of_inference, keeps_stop, reason_of  # noqa: E402
from tpy_data.generation.core.values import stop_strings  # noqa: E402


def _config(**sampling: Any) -> Any:
    defaults = genai.GenerationConfig(eos_token_id=2)
    return generation_config(EngineRequest(id=1, prompt="x", sampling=sampling), defaults, 0)


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


_DEEP = _nested(ENGINE_GRAMMAR_DEPTH_MAX)
_WIDE = "(" * (ENGINE_GRAMMAR_GROUPS_MAX + 1)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"json": _DEEP}, "nested"),
        ({"json": json.dumps(_DEEP)}, "nested"),
        ({"json": "[" * 100_000}, "not JSON"),
        ({"json": {"pattern": _WIDE}}, "parentheses"),
        ({"regex": _WIDE}, "parentheses"),
        ({"grammar": f"root ::= {_WIDE}"}, "parentheses"),
        ({"regex": "a" * ENGINE_GRAMMAR_BYTES_MAX}, "bytes"),
    ],
)
def test_what_would_end_the_process_in_the_compiler_of_grammars_is_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        _config(structured_outputs=asked)


def test_ordinary_schemas_are_taken() -> None:
    assert json.loads(_config(structured_outputs={"json": _nested(50)}).structured_output_config.json_schema) == _nested(50)
    assert _config(structured_outputs={"json": '{"type": "null"}'}).structured_output_config.json_schema == '{"type": "null"}'
    assert _config(structured_outputs={"choice": ["("] * 2000}).structured_output_config.grammar.count("(") == 2000


def test_choices_beyond_the_basic_plane_are_one_character() -> None:
    assert _config(structured_outputs={"choice": ["😀"]}).structured_output_config.grammar == 'root ::= "😀"'


@pytest.mark.parametrize(
    "sampling",
    [{"min_tokens": 1.5}, {"min_tokens": 17}, {"top_k": 0.5}, {"stop_token_ids": [-1]}, {"stop_token_ids": [2**70]}],
)
def test_numbers_that_an_engine_would_round_or_refuse_are_named(sampling: dict[str, Any]) -> None:
    (name,) = sampling
    with pytest.raises(InvalidArgument, match=f"'{name}' must be"):
        _config(**sampling)


@pytest.mark.parametrize("stop", [{}, 0, False])
def test_a_stop_that_is_neither_text_nor_list_is_refused(stop: object) -> None:
    with pytest.raises(InvalidArgument, match="'stop'"):
        stop_strings({"stop": stop})


def test_keeping_the_stop_string_is_true_or_false() -> None:
    assert keeps_stop(EngineRequest(id=1, prompt="x", sampling={"include_stop_str_in_output": True}))
    assert not keeps_stop(EngineRequest(id=1, prompt="x", sampling={"include_stop_str_in_output": None}))
    with pytest.raises(InvalidArgument, match="'include_stop_str_in_output'"):
        keeps_stop(EngineRequest(id=1, prompt="x", sampling={"include_stop_str_in_output": "yes"}))


def test_a_refusal_of_the_engine_is_told_without_the_places_in_its_source() -> None:
    config = _config(min_p=1)
    with pytest.raises(RuntimeError) as refusal:
        config.validate()
    assert reason_of(refusal.value) == "When 'do_sample' is true, min_p must be in [0.0, 1.0), but got 1"


def test_memory_that_runs_out_in_a_step_is_not_blamed_on_a_grammar() -> None:
    text = "Exception from src/inference/src/cpp/infer_request.cpp:224:\nCheck 'ptr' failed at src/cpu_memory.cpp:257:\nFailed to"
    assert is_of_inference(RuntimeError(text))
    assert not is_of_inference(RuntimeError("[10:00:00] /x/json_schema_converter.cc:12: Check failed: (err.empty()) is false"))
