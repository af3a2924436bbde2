"""The conventions by which models take text: which inputs a request gives to which model, and how answers are read."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from tpy import limits
from tpy.errors import Internal, InvalidArgument
from tpy.messages import DataType, InferenceResponse, ModelDescription, Tensor, TensorDescription
from tpy_platforms.openai.models import (
    Generation,
    Prompt,
    ResponseReader,
    embedding_of,
    embeddings,
    embeds,
    generates,
    generations,
)


def describe(
    inputs: dict[str, tuple[DataType, tuple[int, ...]]], outputs: tuple[str, ...] = ("text_output",)
) -> ModelDescription:
    given = tuple(TensorDescription(name=name, datatype=kind, shape=shape) for name, (kind, shape) in inputs.items())
    found = tuple(TensorDescription(name=name, datatype=DataType.BYTES, shape=(-1,)) for name in outputs)
    return ModelDescription(
        name="m",
        version=1,
        platform="",
        max_batch_size=0,
        decoupled=True,
        inputs=given,
        outputs=found,
        input_by_name={each.name: each for each in given},
        output_by_name={each.name: each for each in found},
    )


VLLM = describe(
    {
        "text_input": (DataType.BYTES, (1,)),
        "stream": (DataType.BOOL, (1,)),
        "sampling_parameters": (DataType.BYTES, (1,)),
        "exclude_input_in_output": (DataType.BOOL, (1,)),
        "return_logprobs": (DataType.BOOL, (1,)),
        "return_num_input_tokens": (DataType.BOOL, (1,)),
        "return_num_output_tokens": (DataType.BOOL, (1,)),
    }
)
TRTLLM = describe(
    {
        "text_input": (DataType.BYTES, (-1, 1)),
        "max_tokens": (DataType.INT32, (-1, 1)),
        "stream": (DataType.BOOL, (-1, 1)),
        "stop_words": (DataType.BYTES, (-1, -1)),
        "temperature": (DataType.FP32, (-1, 1)),
        "random_seed": (DataType.UINT64, (-1, 1)),
        "ignore_eos": (DataType.BOOL, (-1, 1)),
    }
)
PLAIN = describe({"text_input": (DataType.BYTES, (1,))})
SETTINGS = {"temperature": 0.5, "seed": 7, "stop": ["a", "b"], "top_k": 3}


def asked(description: ModelDescription, **changes: object) -> tuple[dict[str, list[object]], dict[str, object]]:
    values = {"input": "text_input", "text": "é", "stream": True, "max_tokens": 9, "settings": SETTINGS, **changes}
    text = str(values.pop("text"))
    [(inputs, parameters)] = generations(description, Generation(**values), [text])  # type: ignore[arg-type]
    return {tensor.name: tensor.array.tolist() for tensor in inputs}, dict(parameters)


def test_settings_as_one_input() -> None:
    inputs, parameters = asked(VLLM)
    assert json.loads(inputs.pop("sampling_parameters")[0]) == {**SETTINGS, "max_tokens": 9}  # type: ignore[arg-type]
    assert inputs == {
        "text_input": ["é".encode()],
        "stream": [True],
        "exclude_input_in_output": [True],
        "return_logprobs": [False],
        "return_num_input_tokens": [True],
        "return_num_output_tokens": [True],
    }
    assert parameters == {}
    assert asked(VLLM, logprobs=True)[0]["return_logprobs"] == [True]


def test_each_choice_has_its_own_seed_and_tokens_are_a_setting() -> None:
    def settings(prompts: list[Prompt], **changes: object) -> list[dict[str, object]]:
        made = generations(VLLM, Generation(input="text_input", stream=False, max_tokens=9, settings=changes, choices=2), prompts)
        found = [{tensor.name: tensor.array[0] for tensor in inputs} for inputs, _ in made]
        return [{"text": each["text_input"], **json.loads(each["sampling_parameters"])} for each in found]

    assert [(each["text"], each["seed"]) for each in settings(["a", "b"], seed=7)] == [(b"a", 7), (b"a", 8), (b"b", 7), (b"b", 8)]
    assert [each["seed"] for each in settings(["a"], seed=2**63 - 1)] == [2**63 - 1, 0]
    assert [each["seed"] for each in settings(["a"], seed=-1)] == [-1, 0]
    assert settings(["a"])[1] == {"text": b"a", "max_tokens": 9}
    tokens = settings([[1, 2], [3]])
    assert [(each["text"], each["prompt_token_ids"]) for each in tokens] == [(b"", [1, 2])] * 2 + [(b"", [3])] * 2


def test_an_input_for_each_setting() -> None:
    inputs, parameters = asked(TRTLLM)
    assert inputs == {
        "text_input": [["é".encode()]],
        "stream": [[True]],
        "max_tokens": [[9]],
        "temperature": [[0.5]],
        "random_seed": [[7]],
        "stop_words": [[b"a", b"b"]],
    }
    assert parameters == {"top_k": 3}


def test_settings_as_parameters() -> None:
    inputs, parameters = asked(PLAIN)
    assert inputs == {"text_input": ["é".encode()]}
    assert parameters == {**SETTINGS, "stop": '["a", "b"]', "max_tokens": 9}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"temperature": "warm"}, "'temperature': \"warm\" is not"),
        ({"temperature": "0.5"}, "'temperature': \"0.5\" is not"),
        ({"temperature": [None]}, "'temperature': an array is not"),
        ({"seed": -1}, "'random_seed': -1 is not"),
        ({"seed": 1.5}, "'random_seed': 1.5 is not"),
        ({"ignore_eos": "no"}, "'ignore_eos': \"no\" is not"),
    ],
)
def test_settings_that_an_input_does_not_take(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        asked(TRTLLM, settings=settings)


def test_settings_times_prompts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made once for all prompts, and no more prompts have them than the bound allows."""
    asked = Generation(input="text_input", stream=False, max_tokens=9, settings={"guided": "x" * 1000})
    monkeypatch.setattr(limits, "OPENAI_SETTINGS_BYTES_MAX", 20_000)
    many: list[Prompt] = [[7] * 100] * 100
    with pytest.raises(InvalidArgument, match="the tokens of all choices are more than"):
        generations(VLLM, msgspec.structs.replace(asked, settings={}), many)
    for description in (VLLM, PLAIN):
        made = generations(description, asked, ["a"] * 8)
        assert len({id(tensor) for inputs, _ in made for tensor in inputs[1:]}) == len(made[0][0]) - 1
        assert len({id(parameters) for _, parameters in made}) == 1
        with pytest.raises(InvalidArgument, match=r"^40 prompts with [0-9]+ bytes of settings each are more than 20000 bytes"):
            generations(description, asked, ["a"] * 40)


def test_which_models_are_meant() -> None:
    other = describe({"INPUT0": (DataType.BYTES, (1,))})
    vllm_embeddings = describe({"embedding_request": (DataType.BYTES, (1,))})
    ours = describe({"embedding_request": (DataType.BYTES, (1,)), "return_embedding": (DataType.BOOL, (1,))})
    plain_embeddings = describe({"text_input": (DataType.BYTES, (1,))}, ("embedding",))
    chat = describe({"messages": (DataType.BYTES, (1,))})
    models = (VLLM, TRTLLM, PLAIN, chat, other, vllm_embeddings, plain_embeddings)
    assert [generates(each) for each in models] == [True, True, True, True, False, False, False]
    assert [embeds(each) for each in models] == [False, False, False, False, False, True, True]
    [((request,), _)] = embeddings(vllm_embeddings, ["a"], 8)
    assert json.loads(request.array[0]) == {"input": "a", "pooling_params": {"dimensions": [8]}}
    [((numbers, request), _)] = embeddings(ours, ["a"], None, {"use_activation": False})
    assert json.loads(request.array[0]) == {"input": "a", "pooling_params": {"use_activation": False}}
    assert (numbers.name, numbers.array.tolist()) == ("return_embedding", [True])
    with pytest.raises(InvalidArgument, match="one size"):
        embeddings(plain_embeddings, ["a"], 8)


def response(**outputs: list[bytes] | int) -> InferenceResponse:
    tensors = [
        Tensor(name, DataType.UINT32, np.array([value], np.uint32))
        if isinstance(value, int)
        else Tensor(name, DataType.BYTES, np.array(value, object))
        for name, value in outputs.items()
    ]
    return InferenceResponse(model_name="m", model_version=1, outputs=tuple(tensors), final=False)


def test_characters_that_are_cut_in_two() -> None:
    reader = ResponseReader()
    first, second = "é".encode()[:1], "é".encode()[1:]
    assert [reader.text(response(text_output=[piece])) for piece in (b"a" + first, second + b"b", first)] == ["a", "éb", ""]
    assert reader.rest() == "\N{REPLACEMENT CHARACTER}"
    assert (reader.prompt_tokens, reader.completion_tokens) == (None, None)


def test_counts_and_reasons() -> None:
    reader = ResponseReader()
    for reason in (b"none", b"none", b"length"):
        reader.text(response(text_output=[b"a"], num_input_tokens=5, num_output_tokens=2, finish_reason=[reason]))
    assert (reader.prompt_tokens, reader.completion_tokens) == (5, 6)
    assert reader.finish_reason == "length"


def test_answers_that_are_none() -> None:
    with pytest.raises(Internal, match="without the text 'text_output'"):
        ResponseReader().text(response(OTHER=[b"a"]))
    for broken in (response(OTHER=[b"a"]), response(text_output=[b"no JSON"]), response(text_output=[b'["a"]'])):
        with pytest.raises(Internal, match="without an embedding"):
            embedding_of(broken)
    vector, count = embedding_of(response(text_output=[b"[0.5, 1]"], num_input_tokens=3))
    assert vector.tolist() == [0.5, 1.0]
    assert count == 3
