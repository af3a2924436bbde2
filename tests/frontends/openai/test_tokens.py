"""Tokens in place of texts: for models that take them, and by the tokenizer of those that take text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpy.errors import InvalidArgument, Unsupported
from tpy.messages import DataType
from tpy_platforms.openai.models import embeddings, takes_tokens
from tpy_platforms.openai.requests import EmbeddingRequest, embedding_inputs
from tpy_platforms.openai.templates import ChatTemplate
from tpy_platforms.openai.tokens import texts_of

from .test_models import describe

WORDS = ("[UNK]", "a", "model", "of", "words")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1, 2], [3]], [[1, 2], [3]])],
)
def test_all_forms_of_input(given: object, expected: object) -> None:
    assert embedding_inputs(EmbeddingRequest(model="m", input=given)) == expected  # type: ignore[arg-type]  # any of the union


@pytest.mark.parametrize("given", [["a", 1], [1, [2]], [[1], "b"], [[]], [[1], []]])
def test_mixtures_are_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match="expected a text, texts, an array of tokens, or arrays of tokens"):
        embedding_inputs(EmbeddingRequest(model="m", input=given))  # type: ignore[arg-type]  # any of the union


def test_a_model_that_takes_a_request_gets_the_tokens() -> None:
    model = describe({"embedding_request": (DataType.BYTES, (1,))})
    assert takes_tokens(model)
    [((request,), _)] = embeddings(model, [[1, 2]], None)
    assert json.loads(request.array[0]) == {"input": [1, 2], "pooling_params": {}}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    kind = tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    tokenizers.Tokenizer(kind).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_tokenizer_makes_text_of_tokens(tokenizer: Path) -> None:
    assert texts_of("m", {"tokenizer": str(tokenizer)}, "", [[1, 2, 3, 4], [2]]) == ["a model of words", "model"]
    assert texts_of("m", {}, str(tokenizer / "tokenizer_config.json"), [[1]]) == ["a"], "the server's"
    with pytest.raises(InvalidArgument, match=r"has no token 5; they are 0 to 4$"):
        texts_of("m", {"tokenizer": str(tokenizer)}, "", [[1], [5]])


def test_a_tokenizer_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="for tokens give it the parameter 'tokenizer'"):
        texts_of("m", {}, "", [[1]])
    with pytest.raises(Unsupported, match="cannot read the tokenizer"):
        texts_of("m", {"tokenizer": str(tmp_path)}, "", [[1]])


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("{{ messages[0].content }}", False),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{% set tools = 1 %}", False),
    ],
)
def test_templates_that_take_tools(text: str, takes: bool) -> None:
    assert ChatTemplate(text=text).takes_tools() is takes
