"""Settings of requests as arguments of vLLM's SamplingParams. vLLM is not needed."""

from __future__ import annotations

from typing import Any

import pytest

from tpy.backend.engine import EngineRequest
from tpy.errors import InvalidArgument
from tpy_backends.vllm.sampling import adapter_of, sampling_arguments


def asking(**sampling: Any) -> EngineRequest:
    return EngineRequest(id=1, prompt="x", max_tokens=8, sampling=sampling, logprobs="logprobs" in sampling)


def test_settings_keep_their_names_and_get_their_types() -> None:
    found = sampling_arguments(
        asking(
            temperature="0.5", top_k=4, seed=3, stop="end", logit_bias={"7": 900}, logprobs=2, ignore_eos=True, n=3, max_tokens=8,
            best_of=1, use_beam_search=False, stop_token_ids=[5], bad_words=["no"], top_p=None,
        )
    )  # fmt: skip
    assert found == {
        "temperature": 0.5,
        "top_k": 4,
        "seed": 3,
        "stop": ["end"],
        "logit_bias": {7: 100.0},
        "logprobs": 2,
        "ignore_eos": True,
        "max_tokens": 8,
        "stop_token_ids": [5],
        "bad_words": ["no"],
    }


def test_logprobs_that_only_an_output_asks_for_are_those_of_the_chosen_tokens() -> None:
    request = EngineRequest(id=1, prompt="x", max_tokens=8, logprobs=True)
    assert sampling_arguments(request) == {"max_tokens": 8, "logprobs": 0}


@pytest.mark.parametrize(
    ("sampling", "error"),
    [
        ({"prompt_logprobs": 1}, "'prompt_logprobs' is not supported by backend vllm"),
        ({"use_beam_search": True}, "'use_beam_search' is not supported by backend vllm"),
        ({"temperture": 1}, "'temperture' is not supported by backend vllm"),
        ({"temperature": "hot"}, "'temperature' must be a number from 0 to 2, got hot"),
        ({"temperature": True}, "'temperature' must be a number"),
        ({"top_k": 1.5}, "'top_k' must be an integer"),
        ({"seed": 2**64}, "'seed' must be an integer"),
        ({"min_tokens": 9}, "'min_tokens' must be at most 'max_tokens', 8, got 9"),
        ({"logit_bias": {"one": 1}}, "'logit_bias' has 'one', which is not a token"),
        ({"logit_bias": {"1": "2"}}, "'logit_bias' must have numbers, got 2 for token 1"),
        ({"logit_bias": [1]}, "'logit_bias' must be an object"),
        ({"stop": [""]}, "'stop' must be a text, or at most 16 of them, none empty"),
        ({"bad_words": "a"}, "'bad_words' must be a list"),
        ({"allowed_token_ids": ["a"]}, "'allowed_token_ids' must be a list of tokens"),
        ({"ignore_eos": 1}, "'ignore_eos' must be true or false"),
    ],
)
def test_what_is_wrong_or_not_done_is_named(sampling: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        sampling_arguments(asking(**sampling))


def test_adapters_are_found_by_name_with_tritons_texts() -> None:
    assert adapter_of(asking(lora_name="a"), {"a": "/a"}) == "a"
    assert adapter_of(asking(), {}) is None
    with pytest.raises(InvalidArgument, match=r"^LoRA feature is not enabled\.$"):
        adapter_of(asking(lora_name="a"), {})
    with pytest.raises(InvalidArgument, match=r"^LoRA b is not supported, we currently support \['a'\]$"):
        adapter_of(asking(lora_name="b"), {"a": "/a"})
