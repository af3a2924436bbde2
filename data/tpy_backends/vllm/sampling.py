"""Settings of a request as the arguments of vLLM's SamplingParams. Without vLLM: its own class takes values of any type, and a
wrong one would end the engine in a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from tpy.backend.engine import EngineRequest
from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy_data.generation.core.values import flag, number, seed, stop_strings, token_ids, whole

_INT32_MAX: Final = 2**31 - 1
_BIAS_MAX: Final = 100.0
"""As in OpenAI's API; vLLM cuts what is beyond it."""

_WORDS_MAX: Final = 1024
"""Of `bad_words`."""

_WITHOUT_EFFECT: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "detokenize": (True,),
}
"""Settings of vLLM's, or of its earlier versions, that cannot be done here, with the values that change nothing (None never
does)."""

Read = Callable[[Mapping[str, Any], str], Any]


def _number(default: float, least: float, most: float) -> Read:
    return lambda given, name: number(given, name, default, least, most)


def _whole(default: int, least: int, most: int) -> Read:
    return lambda given, name: whole(given, name, default, least, most)


def _flag(*, default: bool) -> Read:
    return lambda given, name: flag(given, name, default=default)


_READ: Final[Mapping[str, Read]] = {
    "temperature": _number(1.0, 0.0, 2.0),
    "top_p": _number(1.0, 1e-6, 1.0),
    "top_k": _whole(0, -1, _INT32_MAX),
    "min_p": _number(0.0, 0.0, 1.0),
    "presence_penalty": _number(0.0, -2.0, 2.0),
    "frequency_penalty": _number(0.0, -2.0, 2.0),
    "repetition_penalty": _number(1.0, 1e-6, 100.0),
    "min_tokens": _whole(0, 0, _INT32_MAX),
    "logprobs": _whole(0, 0, _INT32_MAX),
    "ignore_eos": _flag(default=False),
    "skip_special_tokens": _flag(default=True),
    "spaces_between_special_tokens": _flag(default=True),
    "include_stop_str_in_output": _flag(default=False),
    "stop_token_ids": token_ids,
    "allowed_token_ids": token_ids,
}

_OTHERS: Final = ("seed", "stop", "bad_words", "logit_bias", "structured_outputs", "guided_decoding", "lora_name")
_ELSEWHERE: Final = ("n", "max_tokens", "output_kind", "add_special_tokens", "truncate_prompt_tokens")
"""In the request itself, of its prompt, or the server's affair."""


def sampling_arguments(request: EngineRequest) -> dict[str, Any]:
    """All arguments except instances of vLLM's classes. Raises InvalidArgument with the name of a setting that is wrong or not
    supported."""
    given = {name: value for name, value in request.sampling.items() if value is not None}
    for name, value in given.items():
        if name in _READ or name in _OTHERS or name in _ELSEWHERE or value in _WITHOUT_EFFECT.get(name, ()):
            continue
        raise InvalidArgument(f"'{echo(name)}' is not supported by backend vllm")
    made: dict[str, Any] = {name: read(given, name) for name, read in _READ.items() if name in given}
    made["max_tokens"] = request.max_tokens
    if made.get("min_tokens", 0) > request.max_tokens:
        raise InvalidArgument(f"'min_tokens' must be at most 'max_tokens', {request.max_tokens}, got {made['min_tokens']}")
    if not request.logprobs:
        made.pop("logprobs", None)
    elif "logprobs" not in made:
        made["logprobs"] = 0
    stops = stop_strings(given)
    if stops:
        made["stop"] = list(stops)
    chosen = seed(given)
    if chosen is not None:
        made["seed"] = chosen
    if "bad_words" in given:
        made["bad_words"] = _words(given["bad_words"])
    if "logit_bias" in given:
        made["logit_bias"] = _bias(given["logit_bias"])
    return made


def adapter_of(request: EngineRequest, adapters: Mapping[str, str]) -> str | None:
    """The LoRA adapter that the request names. Raises InvalidArgument, with Triton's texts, for one that there is not."""
    name = request.sampling.get("lora_name")
    if name is None:
        return None
    if not adapters:
        raise InvalidArgument("LoRA feature is not enabled.")
    if not isinstance(name, str) or name not in adapters:
        raise InvalidArgument(f"LoRA {echo(str(name))} is not supported, we currently support {echo(str(list(adapters)))}")
    return name


def _words(value: object) -> list[str]:
    if not isinstance(value, list) or len(value) > _WORDS_MAX or not all(isinstance(each, str) and each for each in value):
        raise InvalidArgument(f"'bad_words' must be a list of at most {_WORDS_MAX} texts, none empty")
    return value


def _bias(value: object) -> dict[int, float]:
    if not isinstance(value, dict):
        raise InvalidArgument("'logit_bias' must be an object of numbers by token")
    found = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10) or int(token) > _INT32_MAX:
            raise InvalidArgument(f"'logit_bias' has '{echo(token)}', which is not a token")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not math.isfinite(bias):
            raise InvalidArgument(f"'logit_bias' must have numbers, got {echo(str(bias))} for token {token}")
        found[int(token)] = min(_BIAS_MAX, max(-_BIAS_MAX, float(bias)))
    return found
