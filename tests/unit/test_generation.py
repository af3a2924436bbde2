"""Requests to engines as values: what is asked for, what it costs, what is answered; text from tokens."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.backend.engine import Delta, Logprob
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy.messages import DataType, Tensor
from tpy_backends.openvino_genai.text import TextOfTokens, TokenTexts
from tpy_data.generation.core.answering import GeneratedAnswer
from tpy_data.generation.core.asking import RETURNS, Asked, asked_of, cost_of, with_inputs_and_outputs
from tpy_data.generation.core.cost import Cost


def inputs(**values: Any) -> dict[str, Tensor]:
    made = {}
    for name, value in values.items():
        if isinstance(value, bool):
            made[name] = Tensor(name, DataType.BOOL, np.array([value]))
            continue
        array = np.empty(1, object)
        array[0] = value if isinstance(value, bytes) else str(value).encode()
        made[name] = Tensor(name, DataType.BYTES, array)
    return made


def asked(sampling: dict[str, Any] | None = None, **values: Any) -> Asked:
    given_inputs = inputs(text_input="a prompt", sampling_parameters=json.dumps(sampling or {}), **values)
    return asked_of(1, given_inputs, {})


def outputs(answer: GeneratedAnswer, *, has_room: bool = True) -> dict[str, list[Any]] | None:
    result = answer.take(has_room=has_room)
    return None if result is None else {each.name: each.array.tolist() for each in result.outputs}


def test_inputs_and_outputs_are_those_of_vllm_backend() -> None:
    config = with_inputs_and_outputs(ModelConfig(name="m"))
    assert [each.name for each in config.input if not each.optional] == ["text_input"]
    assert {f"return_{name}" for name in RETURNS} <= {each.name for each in config.input}
    assert {"text_output", *RETURNS} == {each.name for each in config.output}
    assert config.decoupled
    assert with_inputs_and_outputs(config) == config


def test_settings_are_an_input_or_the_parameters_of_the_request() -> None:
    assert asked({"max_tokens": 3, "n": 2}).request.max_tokens == 3
    request = asked_of(1, inputs(text_input="x"), {"max_tokens": "4", "temperature": "0"}).request
    assert (request.max_tokens, request.sampling["temperature"]) == (4, "0")


@pytest.mark.parametrize("name", ["max_tokens", "n", "logprobs"])
def test_numbers_of_more_digits_than_python_reads_are_refused(name: str) -> None:
    given_inputs = inputs(text_input="x", sampling_parameters=json.dumps({name: "9" * 5000}))
    with pytest.raises(InvalidArgument, match=f"'{name}' must be an integer"):
        asked_of(1, given_inputs, {})


def test_the_prompt_is_repeated_unless_the_answer_streams_or_it_is_excluded() -> None:
    assert asked().repeats_prompt
    assert not asked(stream=True).repeats_prompt
    assert not asked(exclude_input_in_output=True).repeats_prompt
    with pytest.raises(InvalidArgument, match="When streaming"):
        asked(stream=True, exclude_input_in_output=False)


@pytest.mark.parametrize(
    ("sampling", "error"),
    [
        ({"logprobs": 21}, "'logprobs' must be an integer from 0 to 20"),
        ({"n": 129}, "'n' must be an integer from 1 to 128"),
        ({"max_tokens": 0}, "'max_tokens' must be an integer from 1"),
        ({"prompt_token_ids": []}, "'prompt_token_ids' must be a list of tokens"),
        ({"prompt_token_ids": [1, -2]}, "'prompt_token_ids' must be a list of tokens"),
    ],
)
def test_what_is_wrong_is_named(sampling: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        asked(sampling)


def test_a_prompt_must_be_text() -> None:
    with pytest.raises(InvalidArgument, match="'text_input' is not UTF-8: invalid start byte at byte 1"):
        asked_of(1, inputs(text_input=b"a\xff"), {})


def test_a_request_costs_its_prompt_and_all_that_it_may_generate() -> None:
    assert cost_of(inputs(text_input="x" * 300, sampling_parameters='{"n": 2, "max_tokens": 50}'), {}) == Cost(2, 201)
    tokens = json.dumps({"prompt_token_ids": [1, 2, 3], "max_tokens": 5})
    assert cost_of(inputs(text_input="", sampling_parameters=tokens), {}) == Cost(1, 8)
    assert cost_of(inputs(text_input="x"), {}) == Cost(1, 17)


def test_a_sequence_costs_no_more_than_the_longest_that_the_model_has() -> None:
    greedy = inputs(text_input="x", sampling_parameters='{"n": 2, "max_tokens": 1000000}')
    assert cost_of(greedy, {}, 2048) == Cost(2, 4096)
    tokens = json.dumps({"prompt_token_ids": [12345] * 30_000})
    assert cost_of(inputs(text_input="", sampling_parameters=tokens), {}, 2048) == Cost(1, 2048)


def test_deltas_are_joined_until_there_is_room() -> None:
    answer = GeneratedAnswer(asked(stream=True, return_num_output_tokens=True, return_num_input_tokens=True))
    answer.add(Delta(1, text="a", tokens=1, prompt_tokens=7))
    assert outputs(answer) == {"text_output": [b"a"], "num_output_tokens": [1], "num_input_tokens": [7]}
    assert outputs(answer) is None
    answer.add(Delta(1, text="b", tokens=1, prompt_tokens=7))
    assert outputs(answer, has_room=False) is None
    answer.add(Delta(1, text="c", tokens=1, prompt_tokens=7))
    assert outputs(answer) == {"text_output": [b"bc"], "num_output_tokens": [2], "num_input_tokens": [7]}
    answer.add(Delta(1, text="d", tokens=1, prompt_tokens=7, finish_reason="stop"))
    assert answer.is_finished
    assert outputs(answer, has_room=False) == {"text_output": [b"d"], "num_output_tokens": [1], "num_input_tokens": [7]}


def test_without_a_stream_all_sequences_come_together() -> None:
    answer = GeneratedAnswer(asked({"n": 2}, return_finish_reason=True, return_cumulative_logprob=True, return_logprobs=True))
    entry = {5: Logprob(-0.5, 1, "x")}
    answer.add(Delta(1, text="x", tokens=1, prompt_tokens=2, sequence=1, logprobs=[entry], logprob=-0.5))
    answer.add(Delta(1, text="y", tokens=1, prompt_tokens=2, sequence=0, finish_reason="length"))
    assert outputs(answer) is None
    answer.add(Delta(1, tokens=1, sequence=1, finish_reason="stop", logprob=-0.25))
    found = outputs(answer)
    assert found is not None
    assert found["text_output"] == [b"a prompty", b"a promptx"]
    assert found["finish_reason"] == [b"length", b"stop"]
    assert found["cumulative_logprob"] == [0.0, -0.75]
    assert found["logprobs"] == [b"null", b'[{"5": {"logprob": -0.5, "rank": 1, "decoded_token": "x"}}]']


def _decode(tokens: list[int]) -> str:
    """A tokenizer of bytes."""
    return bytes(tokens).decode("utf-8", "replace")


@given(st.text(max_size=30), st.data())
def test_text_comes_in_whole_characters_and_is_all_there(text: str, data: st.DataObject) -> None:
    reader = TextOfTokens(_decode)
    tokens = list(text.replace("\ufffd", "").encode())
    pieces = []
    while tokens:
        count = data.draw(st.integers(1, 4))
        part, tokens = tokens[:count], tokens[count:]
        pieces.append(reader.add(part, is_last=not tokens))
        assert "\ufffd" not in pieces[-1]
    assert "".join(pieces) == text.replace("\ufffd", "")


@given(st.text(alphabet="ab ", max_size=30), st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_stop_string_and_what_follows_is_left_out(text: str, stops: list[str]) -> None:
    reader = TextOfTokens(_decode, stops)
    tokens = list(text.encode())
    found = "".join([reader.add([token], is_last=place == len(tokens) - 1) for place, token in enumerate(tokens)])
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert found == text
        assert not reader.is_stopped
        return
    read = text[: min(ends)]  # so much was there when the first stop string was whole
    assert found == read[: min(place for stop in stops if (place := read.find(stop)) >= 0)]
    assert reader.is_stopped


@given(st.lists(st.lists(st.integers(0, 300), max_size=3), max_size=6))
def test_what_will_be_decoded_is_known_before(steps: list[list[int]]) -> None:
    """Engines decode the texts of all their sequences together."""
    decoded: list[list[int]] = []

    def decode(tokens: list[int]) -> str:
        decoded.append(tokens)
        return bytes([token % 256 for token in tokens]).decode(errors="replace")

    text = TextOfTokens(decode)
    for tokens in steps:
        expected = list(text.parts(tokens))
        decoded.clear()
        text.add(tokens)
        assert decoded == expected


_WORDS = [
    "",
    *[" " + word for word in ("a", "sea", "the", "'s")],
    *"abcdefs.,!?-'()",
    *[f"<{byte}>" for byte in "é漢".encode()],
    "<|end|>",
]


def _encode_words(text: str) -> list[int]:
    """A tokenizer of pieces with their spaces, and of bytes for what is none of them."""
    tokens: list[int] = []
    while text:
        piece = max((word for word in _WORDS if text.startswith(word)), key=len)
        tokens += (
            [_WORDS.index(piece)] if piece else [_WORDS.index(f"<{byte}>") for byte in text[0].encode() if f"<{byte}>" in _WORDS]
        )
        text = text[max(1, len(piece)) :]
    return tokens


def _decode_words(tokens: list[int], *, shows_special: bool = False) -> str:
    """The space at the beginning is left out, and so are special tokens."""
    pieces = [_WORDS[token] for token in tokens if shows_special or _WORDS[token] != "<|end|>"]
    data = b"".join([bytes([int(piece[1:-1])]) if piece[1:-1].isdigit() else piece.encode() for piece in pieces])
    return data.decode(errors="replace").removeprefix(" ")


def _show_words(texts: list[list[int]]) -> list[str]:
    return [_decode_words(text, shows_special=True) for text in texts]


def _decode_sentences(tokens: list[int]) -> str:
    """As a tokenizer that writes the first word of a sentence with a capital letter."""
    return ". ".join(part.strip().capitalize() for part in _decode_words(tokens).split("."))


@given(st.lists(st.integers(0, len(_WORDS) - 1), max_size=12))
def test_the_text_of_tokens_is_known_where_they_do_not_depend_on_each_other(tokens: list[int]) -> None:
    texts = TokenTexts(lambda parts: [_decode_words(part) for part in parts], _encode_words, len(_WORDS), _show_words)
    found = texts.text_of(tokens)
    pieces = [_WORDS[token] for token in tokens]
    is_known = "" not in pieces and all(piece == "<|end|>" or "<" not in piece for piece in pieces) and pieces[:1] != ["<|end|>"]
    assert found == (_decode_words(tokens) if is_known else None)


def test_nothing_is_known_of_a_tokenizer_whose_tokens_depend_on_each_other() -> None:
    texts = TokenTexts(lambda parts: [_decode_sentences(part) for part in parts], _encode_words, len(_WORDS), _show_words)
    assert texts.text_of([1, 2]) is None


@pytest.mark.parametrize("vocabulary", [0, len(_WORDS) + 1])
def test_nothing_is_known_of_a_tokenizer_with_fewer_tokens_than_its_model(vocabulary: int) -> None:
    texts = TokenTexts(lambda parts: [_decode_words(part) for part in parts], _encode_words, vocabulary, _show_words)
    assert texts.text_of([1, 2]) is None
    assert not texts.text_of([])


def test_nothing_is_known_of_a_tokenizer_that_cannot_give_a_part_of_a_character() -> None:
    def decode_all(texts: list[list[int]]) -> list[str]:
        return [bytes(text).decode() for text in texts]

    texts = TokenTexts(decode_all, lambda text: list(text.encode()), 256, decode_all)
    assert texts.text_of([97, 98]) is None
