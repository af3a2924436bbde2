"""Requests for embeddings as values: what is asked for, what it costs, what is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.test_generation import inputs
from tpy.backend import BackendSettings, ModelContext
from tpy.backend.engine import Delta
from tpy.config import ModelConfig
from tpy.config.model_config import ModelParameter
from tpy.errors import Internal, InvalidArgument
from tpy.limits import ENGINE_PROMPT_BYTES_MAX
from tpy.testing.fake_engine import create
from tpy_data.backends.engines import ServedEngines
from tpy_data.generation.core.asking import cost_of
from tpy_data.generation.core.cost import Cost
from tpy_data.generation.core.embedding import EmbeddingAnswer, EmbeddingAsked, embedding_asked_of


def asked(document: object, **flags: bool) -> EmbeddingAsked:
    text = document if isinstance(document, str | bytes) else json.dumps(document)
    return embedding_asked_of(1, inputs(embedding_request=text, **flags))


def outputs(answer: EmbeddingAnswer) -> dict[str, Any]:
    result = answer.take(has_room=True)
    assert result is not None
    return {each.name: each.array.tolist() for each in result.outputs}


def completed(**parameters: str) -> ModelConfig:
    config = ModelConfig(name="m", parameters={name: ModelParameter(string_value=value) for name, value in parameters.items()})
    here = Path()
    context = ModelContext(name="m", version=1, generation=1, config=config, model_directory=here, version_directory=here)
    return ServedEngines(create(BackendSettings(name="fake"))).auto_complete(context)


def test_a_model_of_embeddings_has_no_prompt_and_no_settings() -> None:
    config = completed(gives_embeddings="true")
    assert {each.name: each.optional for each in config.input} == {
        "embedding_request": False,
        "return_embedding": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    assert [each.name for each in config.output] == ["text_output", "embedding", "num_input_tokens", "num_output_tokens"]
    assert config.decoupled
    assert "embedding_request" not in {each.name for each in completed().input}


def test_the_input_is_a_text_or_its_tokens() -> None:
    request = asked({"input": "a text", "pooling_params": {"dimensions": [2]}}).request
    assert (request.prompt, request.prompt_token_ids, request.pooling) == ("a text", None, {"dimensions": [2]})
    request = asked({"input": [3, 4]}).request
    assert (request.prompt, request.prompt_token_ids, request.pooling) == ("", (3, 4), {})


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ("", "input 'embedding_request' is missing: the model gives embeddings"),
        ("{", "'embedding_request' is not JSON"),
        (b'{"input": "\xff"}', "'embedding_request' is not JSON"),
        ("[" * 100_000, "'embedding_request' is not JSON"),
        ([1], "'embedding_request' is not a JSON object"),
        ({"input": "a", "pooling": {}}, "'embedding_request' has 'pooling'; it may have input and pooling_params"),
        ({"input": "a", "pooling_params": [1]}, "'pooling_params' of 'embedding_request' must be a JSON object"),
        ({}, "'input' of 'embedding_request' must be a text, or a list of tokens"),
        ({"input": []}, "'input' of 'embedding_request' must be a text, or a list of tokens"),
        ({"input": [1, True]}, "'input' of 'embedding_request' must be a text, or a list of tokens"),
        ({"input": [-1]}, "'input' of 'embedding_request' must be a text, or a list of tokens"),
        ({"input": ["a", "b"]}, "'input' of 'embedding_request' must be a text, or a list of tokens"),
        ("x" * (ENGINE_PROMPT_BYTES_MAX + 1), "'embedding_request' has 16777217 bytes, at most 16777216 are taken"),
    ],
)
def test_what_is_wrong_is_named(document: object, error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        asked(document)


def test_a_request_costs_its_prompt_and_no_more_than_the_longest_that_the_model_has() -> None:
    given = inputs(embedding_request=json.dumps({"input": "x" * 287}))
    assert cost_of(given, {}) == Cost(1, 101)
    assert cost_of(given, {}, 50) == Cost(1, 50)


def test_an_embedding_is_answered_as_text_from_which_the_same_numbers_are_read() -> None:
    vector = np.array([0.1, -2.5e-8, 3], np.float32)
    answer = EmbeddingAnswer(asked({"input": "a"}))
    assert answer.take(has_room=True) is None
    answer.add(Delta(1, prompt_tokens=2, finish_reason="stop", embedding=vector))  # type: ignore[arg-type]  # an array serves, too
    assert answer.is_finished
    (said,) = outputs(answer)["text_output"]
    assert np.array(json.loads(said), np.float32).tolist() == vector.tolist()


def test_an_engine_that_gives_no_embedding_is_named() -> None:
    answer = EmbeddingAnswer(asked({"input": "a"}))
    answer.add(Delta(1, text="a", tokens=1, finish_reason="stop"))
    assert isinstance(answer.error, Internal)
    assert answer.error.message == "the engine ended the request without an embedding"
