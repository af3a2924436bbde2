"""The settings that a model gets, and the refusals of others."""

from __future__ import annotations

import msgspec
import pytest

from tpy.errors import Unsupported
from tpy_platforms.openai.models import Generation
from tpy_platforms.openai.supported import adapters_of, settings_for, takes_tokens

from .test_models import PLAIN, TRTLLM, VLLM

SETTINGS = {
    "temperature": 0.5,
    "logit_bias": {},
    "skip_special_tokens": False,
    "add_special_tokens": False,
    "top_k": 3,
}
LISTED = {"supported_parameters": "temperature, top_k,skip_special_tokens"}


def asked(settings: dict[str, object], **more: bool) -> Generation:
    return Generation(input="text_input", stream=False, max_tokens=1, settings=settings, **more)


def test_settings_for_each_kind_of_model() -> None:
    plain = {"temperature": 0.5, "logit_bias": {}, "top_k": 3}
    assert settings_for(VLLM, {}, asked(SETTINGS)) == plain
    assert settings_for(msgspec.structs.replace(VLLM, platform="vllm"), {}, asked(SETTINGS)) == SETTINGS
    assert settings_for(VLLM, LISTED, asked(SETTINGS)) == {"temperature": 0.5, "skip_special_tokens": False, "top_k": 3}
    assert settings_for(TRTLLM, {}, asked(SETTINGS)) == plain


@pytest.mark.parametrize(
    ("settings", "more", "problem"),
    [
        ({"min_p": 0.5}, {}, "^'min_p': model 'm' does not support 'min_p': it takes skip_special_tokens, temperature, top_k$"),
        ({"structured_outputs": {}}, {}, "'response_format' and a forced 'tool_choice': model 'm' does not support"),
        ({}, {"logprobs": True}, "it has no output 'logprobs'"),
        ({}, {"cumulative_logprob": True}, "^'best_of': .* it has no output 'cumulative_logprob'"),
    ],
)
def test_what_is_refused(settings: dict[str, object], more: dict[str, bool], problem: str) -> None:
    with pytest.raises(Unsupported, match=problem):
        settings_for(VLLM, LISTED, asked(settings, **more))


def test_models_that_get_tokens() -> None:
    names = {"supported_parameters": "prompt_token_ids"}
    found = [takes_tokens(VLLM, each, has_tokenizer=own) for each in ({}, LISTED, names) for own in (False, True)]
    assert found == [True, False, False, False, True, True]
    ours = msgspec.structs.replace(VLLM, platform="vllm")
    assert takes_tokens(ours, {}, has_tokenizer=True), "it takes them, and a text of them may have others"
    assert not takes_tokens(PLAIN, names, has_tokenizer=False)


def test_adapters() -> None:
    assert adapters_of({"lora_adapters": " sql,, poems "}) == ["sql", "poems"]
    assert adapters_of({}) == []
