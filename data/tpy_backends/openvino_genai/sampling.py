"""Settings of a request, by the names of vLLM's SamplingParams, as OpenVINO GenAI's GenerationConfig."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import openvino_genai as genai

from tpy.backend.engine import EngineRequest
from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy_data.generation.core.structure import structure_of
from tpy_data.generation.core.values import flag, number, seed, token_ids, whole

_DEFAULTS: Final[Mapping[str, tuple[object, ...]]] = {
    "best_of": (1,),
    "logit_bias": ({},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    "lora_name": (),
    "prompt_logprobs": (),
    "bad_words": ([],),
}
"""Settings that this engine does not have, with the values that change nothing (None never does)."""

_READ: Final = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "n", "seed", "max_tokens", "min_tokens", "ignore_eos", "logprobs"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "stop", "stop_token_ids", "include_stop_str_in_output"),
        *("structured_outputs", "guided_decoding", "output_kind"),
    }
)


def generation_config(request: EngineRequest, defaults: genai.GenerationConfig, index: int) -> genai.GenerationConfig:
    """That of the sequence `index`; `defaults` has the model's tokens of the end. Raises InvalidArgument with the name of what is
    wrong, or what this engine does not do."""
    given = {name: value for name, value in request.sampling.items() if value is not None}
    for name, value in given.items():
        if name not in _READ and value not in _DEFAULTS.get(name, ()):
            raise InvalidArgument(f"'{name}' is not supported by engine openvino_genai")
    config = genai.GenerationConfig()
    config.set_eos_token_id(defaults.eos_token_id)
    config.stop_token_ids = {*defaults.stop_token_ids, *token_ids(given, "stop_token_ids")}
    config.max_new_tokens = request.max_tokens
    config.min_new_tokens = whole(given, "min_tokens", 0, 0, request.max_tokens)
    config.ignore_eos = flag(given, "ignore_eos")
    temperature = number(given, "temperature", 1.0, 0.0, 100.0)
    if temperature > 0.01:
        config.do_sample = True
        config.temperature = temperature
        config.top_p = number(given, "top_p", 1.0, 1e-6, 1.0)
        top_k = whole(given, "top_k", 0, -1, 2**31 - 1)
        if top_k > 0:
            config.top_k = top_k
        config.min_p = number(given, "min_p", 0.0, 0.0, 1.0)
        chosen = seed(given)
        if chosen is not None:
            config.rng_seed = (chosen + index) % 2**63
        else:
            config.rng_seed = (request.id * 1_000_003 + index) % 2**31
    config.presence_penalty = number(given, "presence_penalty", 0.0, -2.0, 2.0)
    config.frequency_penalty = number(given, "frequency_penalty", 0.0, -2.0, 2.0)
    config.repetition_penalty = number(given, "repetition_penalty", 1.0, 1e-6, 100.0)
    if request.logprobs:
        if number(given, "logprobs", 0, 0, 100) > 1:
            raise InvalidArgument(
                "'logprobs' above 1 is not supported by engine openvino_genai: it tells that of the chosen token only"
            )
        config.logprobs = 1
    structure = structure_of(given)
    if structure is not None:
        config.structured_output_config = genai.StructuredOutputConfig()
        _set_structure(config.structured_output_config, *structure)
    return config


def keeps_stop(request: EngineRequest) -> bool:
    """Returns True where a stop string is a part of the answer. Raises InvalidArgument for what is not true or false."""
    return flag({name: value for name, value in request.sampling.items() if value is not None}, "include_stop_str_in_output")


def grammar_of(request: EngineRequest) -> str:
    """The grammar that the answer has to follow, which the first step compiles; "" for none."""
    found = request.sampling.get("structured_outputs", request.sampling.get("guided_decoding"))
    return "" if found is None else json.dumps(found, sort_keys=True)


def reason_of(error: Exception) -> str:
    """Returns what the engine says, without the condition and the place in its source that it says first."""
    return echo(
        re.sub(r"^(Exception from \S+:\d+:\s*)?Check '.*?' failed at \S+:\d+:\s*", "", str(error).strip(), flags=re.DOTALL)
    )


def refusal_of(error: Exception) -> InvalidArgument:
    """Returns the engine's reason why it cannot compile a grammar, without the places in its source."""
    text = re.sub(r"^\[[0-9:]+\]\s+\S+:\d+:\s+", "", str(error).strip())
    return InvalidArgument(f"'structured_outputs' cannot be compiled: {echo(text)}")


def is_of_inference(error: Exception) -> bool:
    """Returns True for what OpenVINO says of an inference that failed, as when memory runs out: no grammar is the reason."""
    return "Exception from src/inference/" in str(error)


def _set_structure(config: genai.StructuredOutputConfig, kind: str, value: Any) -> None:
    match kind:
        case "json":
            config.json_schema = value if isinstance(value, str) else json.dumps(value)
        case "json_object":
            config.json_schema = '{"type": "object"}'
        case "regex":
            config.regex = value
        case "choice":
            config.grammar = "root ::= " + " | ".join([json.dumps(each, ensure_ascii=False) for each in value])
        case _:
            config.grammar = value
