"""Settings of a request, by the names of vLLM's SamplingParams, as OpenVINO GenAI's GenerationConfig."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import openvino_genai as genai

from tpy.backend.engine import EngineRequest
from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.limits import ENGINE_GRAMMAR_BYTES_MAX, ENGINE_GRAMMAR_DEPTH_MAX, ENGINE_GRAMMAR_GROUPS_MAX

_STOPS_MAX: Final = 16
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
    config.stop_token_ids = {*defaults.stop_token_ids, *_token_ids(given)}
    config.max_new_tokens = request.max_tokens
    config.min_new_tokens = _whole(given, "min_tokens", 0, 0, request.max_tokens)
    config.ignore_eos = _flag(given, "ignore_eos")
    temperature = _number(given, "temperature", 1.0, 0.0, 100.0)
    if temperature > 0.01:
        config.do_sample = True
        config.temperature = temperature
        config.top_p = _number(given, "top_p", 1.0, 1e-6, 1.0)
        top_k = _whole(given, "top_k", 0, -1, 2**31 - 1)
        if top_k > 0:
            config.top_k = top_k
        config.min_p = _number(given, "min_p", 0.0, 0.0, 1.0)
        seed = given.get("seed")
        if seed is not None:
            if type(seed) is not int:
                raise InvalidArgument(f"'seed' must be an integer, got {echo(str(seed))}")
            config.rng_seed = (seed + index) % 2**63
        else:
            config.rng_seed = (request.id * 1_000_003 + index) % 2**31
    config.presence_penalty = _number(given, "presence_penalty", 0.0, -2.0, 2.0)
    config.frequency_penalty = _number(given, "frequency_penalty", 0.0, -2.0, 2.0)
    config.repetition_penalty = _number(given, "repetition_penalty", 1.0, 1e-6, 100.0)
    if request.logprobs:
        if _number(given, "logprobs", 0, 0, 100) > 1:
            raise InvalidArgument(
                "'logprobs' above 1 is not supported by engine openvino_genai: it tells that of the chosen token only"
            )
        config.logprobs = 1
    structure = _structure(given)
    if structure is not None:
        config.structured_output_config = structure
    return config


def stop_strings(request: EngineRequest) -> tuple[str, ...]:
    """Raises InvalidArgument for what is not text."""
    stop = request.sampling.get("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or len(stops) > _STOPS_MAX or not all(isinstance(each, str) and each for each in stops):
        raise InvalidArgument(f"'stop' must be a text, or at most {_STOPS_MAX} of them, none empty")
    return tuple(stops)


def keeps_stop(request: EngineRequest) -> bool:
    """Returns True where a stop string is a part of the answer. Raises InvalidArgument for what is not true or false."""
    return _flag({name: value for name, value in request.sampling.items() if value is not None}, "include_stop_str_in_output")


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


def _structure(given: Mapping[str, Any]) -> genai.StructuredOutputConfig | None:
    found = given.get("structured_outputs", given.get("guided_decoding"))
    if found is None:
        return None
    if not isinstance(found, dict):
        raise InvalidArgument("'structured_outputs' must be an object")
    kinds = [name for name, value in found.items() if value not in (None, False) and name in _KINDS]
    others = [name for name, value in found.items() if value is not None and name not in _KINDS]
    if others or len(kinds) != 1:
        raise InvalidArgument(f"'structured_outputs' must have exactly one of {', '.join(_KINDS)}; got {echo(', '.join(found))}")
    _check_size(found)
    config = genai.StructuredOutputConfig()
    _KINDS[kinds[0]](config, found[kinds[0]])
    return config


def _check_size(found: Mapping[str, Any]) -> None:
    """The compiler is native code and recurses: what is too deep for it would end the process. Raises InvalidArgument."""
    _check_depth(found)
    text = json.dumps(found)
    if len(text) > ENGINE_GRAMMAR_BYTES_MAX:
        raise InvalidArgument(f"'structured_outputs' has {len(text)} bytes as JSON, at most {ENGINE_GRAMMAR_BYTES_MAX} are taken")
    groups = 0 if "choice" in found else text.count("(")
    if groups > ENGINE_GRAMMAR_GROUPS_MAX:
        raise InvalidArgument(f"'structured_outputs' has {groups} parentheses, at most {ENGINE_GRAMMAR_GROUPS_MAX} are taken")


def _check_depth(document: object) -> None:
    level: list[object] = [document]
    for _ in range(ENGINE_GRAMMAR_DEPTH_MAX):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise InvalidArgument(f"'structured_outputs' is nested more than {ENGINE_GRAMMAR_DEPTH_MAX} levels deep")


def _set_json(config: genai.StructuredOutputConfig, value: object) -> None:
    if isinstance(value, str):
        try:
            _check_depth(json.loads(value))
        except (ValueError, RecursionError):
            raise InvalidArgument("'structured_outputs.json' is not JSON") from None
    config.json_schema = value if isinstance(value, str) else json.dumps(value)


def _set_json_object(config: genai.StructuredOutputConfig, value: object) -> None:
    config.json_schema = '{"type": "object"}'


def _set_regex(config: genai.StructuredOutputConfig, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument("'structured_outputs.regex' must be a text")
    config.regex = value


def _set_choice(config: genai.StructuredOutputConfig, value: object) -> None:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise InvalidArgument("'structured_outputs.choice' must be a list of texts")
    config.grammar = "root ::= " + " | ".join([json.dumps(each, ensure_ascii=False) for each in value])


def _set_grammar(config: genai.StructuredOutputConfig, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument("'structured_outputs.grammar' must be a text")
    config.grammar = value


_KINDS: Final[Mapping[str, Callable[[genai.StructuredOutputConfig, object], None]]] = {
    "json": _set_json,
    "json_object": _set_json_object,
    "regex": _set_regex,
    "choice": _set_choice,
    "grammar": _set_grammar,
}


def _token_ids(given: Mapping[str, Any]) -> list[int]:
    ids = given.get("stop_token_ids", [])
    if not isinstance(ids, list) or not all(type(each) is int and 0 <= each < 2**31 for each in ids):
        raise InvalidArgument("'stop_token_ids' must be a list of tokens, numbers from 0 on")
    return ids


def _flag(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise InvalidArgument(f"'{name}' must be true or false, got {echo(str(value))}")
    return value


def _whole(given: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = _number(given, name, default, least, most)
    if value != int(value):
        raise InvalidArgument(f"'{name}' must be an integer from {least} to {most}, got {echo(str(given.get(name)))}")
    return int(value)


def _number(given: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    value = given.get(name, default)
    if isinstance(value, str):  # parameters of requests are often texts
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidArgument(f"'{name}' must be a number from {least:g} to {most:g}, got {echo(str(given.get(name)))}")
    return value
