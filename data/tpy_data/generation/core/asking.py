"""The inputs and outputs of engines' models, which are those of Triton's vLLM backend, and what a request asks for by them.

Source: triton-inference-server/vllm_backend, src/utils/request.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tpy.backend.engine import EngineRequest
from tpy.config.model_config import ModelConfig, ModelInput, ModelOutput, TransactionPolicy
from tpy.echo import echo
from tpy.errors import InvalidArgument
from tpy.limits import (
    ENGINE_BYTES_PER_TOKEN,
    ENGINE_LOGPROBS_MAX,
    ENGINE_N_MAX,
    ENGINE_PROMPT_BYTES_MAX,
    ENGINE_TOKENS_PER_IMAGE,
)
from tpy.messages import DataType, ParameterValue
from tpy.units import KIB
from tpy_data.generation.core.cost import Cost
from tpy_data.generation.core.embedding import REQUEST, embedding_cost
from tpy_data.generation.core.images import IMAGE, INPUT, count_of, images_of
from tpy_data.generation.core.inputs import Inputs, bytes_in, flag_in

MAX_TOKENS_DEFAULT: Final = 16
"""vLLM's."""

QUEUED_NS: Final = "tpy_queued_ns"
"""The parameter by which an instance of an engine is told when a request came, on the clock of the machine."""

_PARSED_AT_ONCE: Final = 64 * KIB
"""Settings that are longer are not parsed for the sake of an estimate."""

_DIGITS_MAX: Final = 20
"""Of an integer as text: more than any of them has. Python's own limit is an exception."""

RETURNS: Final = (
    "finish_reason",
    "cumulative_logprob",
    "logprobs",
    "num_input_tokens",
    "num_output_tokens",
    "num_token_ids",
)
"""Outputs that are made where `return_<name>` is true."""

_FLAGS: Final = ("stream", "exclude_input_in_output", *[f"return_{name}" for name in RETURNS])
_OUTPUTS: Final = (
    ("text_output", DataType.BYTES, -1),
    ("finish_reason", DataType.BYTES, -1),
    ("cumulative_logprob", DataType.FP32, -1),
    ("logprobs", DataType.BYTES, -1),
    ("num_input_tokens", DataType.UINT32, 1),
    ("num_output_tokens", DataType.UINT32, -1),
    ("num_token_ids", DataType.UINT32, -1),
)

_decode = msgspec.json.Decoder().decode

Parameters = Mapping[str, ParameterValue]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request as an engine is given it, and how its caller wants the answer: in pieces with `stream`, with the prompt before
    the text, with further outputs."""

    request: EngineRequest
    stream: bool
    repeats_prompt: bool
    returns: frozenset[str]


def with_inputs_and_outputs(config: ModelConfig, *, images: bool = False) -> ModelConfig:
    """The configuration with what an engine's model must have, where it is missing; Triton's backend adds the same. `images`: the
    model takes them."""
    inputs = [
        ModelInput(name="text_input", data_type=DataType.BYTES, dims=(1,)),
        ModelInput(name="sampling_parameters", data_type=DataType.BYTES, dims=(1,), optional=True),
        *[ModelInput(name=name, data_type=DataType.BOOL, dims=(1,), optional=True) for name in _FLAGS],
        *([INPUT] if images else []),
    ]
    outputs = [ModelOutput(name=name, data_type=datatype, dims=(count,)) for name, datatype, count in _OUTPUTS]
    known_inputs = {each.name for each in config.input}
    known_outputs = {each.name for each in config.output}
    return msgspec.structs.replace(
        config,
        max_batch_size=0,
        input=(*config.input, *[each for each in inputs if each.name not in known_inputs]),
        output=(*config.output, *[each for each in outputs if each.name not in known_outputs]),
        model_transaction_policy=TransactionPolicy(decoupled=True),
    )


def asked_of(number: int, inputs: Inputs, parameters: Parameters, *, takes_images: bool = False) -> Asked:
    """The request that these inputs are, under this number. Raises InvalidArgument with the name of what is wrong."""
    # A configuration may have all inputs of Triton's vLLM backend.
    for name in (REQUEST,) if takes_images else (IMAGE, REQUEST):
        if name in inputs and inputs[name].array.size:
            from_what = "text and images" if takes_images else "text"
            raise InvalidArgument(f"input '{name}' is not supported by the model's engine: it generates text from {from_what}")
    settings = _settings(inputs, parameters)
    stream = flag_in(inputs, "stream")
    repeats_prompt = not flag_in(inputs, "exclude_input_in_output", default=stream)
    if stream and repeats_prompt:
        raise InvalidArgument("When streaming, `exclude_input_in_output` = False is not allowed.")
    prompt = bytes_in(inputs, "text_input")
    if len(prompt) > ENGINE_PROMPT_BYTES_MAX:
        raise InvalidArgument(f"'text_input' has {len(prompt)} bytes, at most {ENGINE_PROMPT_BYTES_MAX} are taken")
    try:
        text = prompt.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"'text_input' is not UTF-8: {error.reason} at byte {error.start}") from None
    returns = frozenset([name for name in RETURNS if flag_in(inputs, f"return_{name}")])
    token_ids = settings.pop("prompt_token_ids", None)
    logprobs = _integer(settings, "logprobs", 0, ENGINE_LOGPROBS_MAX, None)
    if logprobs is None and returns & {"logprobs", "cumulative_logprob"}:
        logprobs = settings["logprobs"] = 0
    return Asked(
        request=EngineRequest(
            id=number,
            prompt=text,
            prompt_token_ids=None if token_ids is None else _token_ids(token_ids),
            n=_integer(settings, "n", 1, ENGINE_N_MAX, 1) or 1,
            max_tokens=_integer(settings, "max_tokens", 1, 2**31 - 1, MAX_TOKENS_DEFAULT) or MAX_TOKENS_DEFAULT,
            sampling=settings,
            logprobs=logprobs is not None,
            images=images_of(inputs) if takes_images else (),
        ),
        stream=stream,
        repeats_prompt=repeats_prompt,
        returns=returns,
    )


def cost_of(inputs: Inputs, parameters: Parameters, longest: int = 0) -> Cost:
    """The room that the request needs, by an estimate of the tokens of its prompt and images, and `max_tokens` of each sequence,
    which has `longest` at most (0: not known). Quick, whatever the request is. Raises InvalidArgument for settings that are
    wrong."""
    if bytes_in(inputs, REQUEST):
        return embedding_cost(inputs, longest)
    of_images = count_of(inputs) * ENGINE_TOKENS_PER_IMAGE
    given = inputs.get("sampling_parameters")
    size = 0 if given is None else len(bytes_in(inputs, "sampling_parameters"))
    if size > _PARSED_AT_ONCE:  # tokens as numbers, mostly
        tokens = size // ENGINE_BYTES_PER_TOKEN + MAX_TOKENS_DEFAULT + of_images
        return Cost(1, min(tokens, longest) if longest else tokens)
    settings = _settings(inputs, parameters)
    sequences = _integer(settings, "n", 1, ENGINE_N_MAX, 1) or 1
    generated = _integer(settings, "max_tokens", 1, 2**31 - 1, MAX_TOKENS_DEFAULT) or MAX_TOKENS_DEFAULT
    token_ids = settings.get("prompt_token_ids")
    prompt = len(token_ids) if isinstance(token_ids, list) else len(bytes_in(inputs, "text_input")) // ENGINE_BYTES_PER_TOKEN + 1
    tokens = prompt + of_images + sequences * generated
    return Cost(sequences, min(tokens, sequences * longest) if longest else tokens)


def _settings(inputs: Inputs, parameters: Parameters) -> dict[str, Any]:
    """`sampling_parameters`, or without that input the parameters of the request. Raises InvalidArgument."""
    if "sampling_parameters" not in inputs:
        return {name: value for name, value in parameters.items() if name != QUEUED_NS}
    try:
        found = _decode(bytes_in(inputs, "sampling_parameters") or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"'sampling_parameters' is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument("'sampling_parameters' is not a JSON object")
    return found


def _integer(settings: Mapping[str, Any], name: str, least: int, most: int, default: int | None) -> int | None:
    value = settings.get(name)
    if value is None:
        return default
    if (
        isinstance(value, str) and len(value) <= _DIGITS_MAX and value.isascii() and value.isdigit()
    ):  # parameters of requests are often texts
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"'{name}' must be an integer from {least} to {most}, got {echo(str(value))}")
    return value


def _token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(each) is int and 0 <= each < 2**31 for each in value):
        raise InvalidArgument("'prompt_token_ids' must be a list of tokens, numbers from 0 on, and not empty")
    return tuple(value)
