"""Requests for embeddings, and their answers: by the names of Triton's vLLM backend, and with a tensor of numbers besides."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from tpy.backend.engine import Delta, EngineRequest
from tpy.backend.execution import ExecutionResult
from tpy.config.model_config import ModelConfig, ModelInput, ModelOutput, TransactionPolicy
from tpy.echo import echo
from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.limits import ENGINE_BYTES_PER_TOKEN, ENGINE_PROMPT_BYTES_MAX
from tpy.messages import DataType, Tensor
from tpy_data.generation.core.cost import Cost
from tpy_data.generation.core.inputs import Inputs, bytes_in, flag_in

REQUEST: Final = "embedding_request"
"""JSON: `input`, a text or its tokens, and `pooling_params`."""

_MEMBERS: Final = ("input", "pooling_params")
_RETURNS: Final = ("num_input_tokens", "num_output_tokens")
_AS_NUMBERS: Final = "return_embedding"
"""True: the answer is the output `embedding` in place of `text_output`. Writing thousands of numbers as text takes longer than
computing them."""

_OUTPUTS: Final = (
    ("text_output", DataType.BYTES, -1),
    ("embedding", DataType.FP32, -1),
    ("num_input_tokens", DataType.UINT32, 1),
    ("num_output_tokens", DataType.UINT32, 1),
)

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class EmbeddingAsked(msgspec.Struct, frozen=True, kw_only=True):
    """A request as an engine is given it, and the outputs that its caller wants."""

    request: EngineRequest
    as_numbers: bool
    returns: frozenset[str]


def with_inputs_and_outputs(config: ModelConfig) -> ModelConfig:
    """The configuration with what a model of embeddings must have, where it is missing."""
    flags = (_AS_NUMBERS, *[f"return_{name}" for name in _RETURNS])
    inputs = [
        ModelInput(name=REQUEST, data_type=DataType.BYTES, dims=(1,)),
        *[ModelInput(name=name, data_type=DataType.BOOL, dims=(1,), optional=True) for name in flags],
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


def embedding_asked_of(number: int, inputs: Inputs) -> EmbeddingAsked:
    """The request that these inputs are, under this number. Raises InvalidArgument with the name of what is wrong."""
    text = bytes_in(inputs, REQUEST)
    if not text:
        raise InvalidArgument(f"input '{REQUEST}' is missing: the model gives embeddings, and generates no text")
    if len(text) > ENGINE_PROMPT_BYTES_MAX:
        raise InvalidArgument(f"'{REQUEST}' has {len(text)} bytes, at most {ENGINE_PROMPT_BYTES_MAX} are taken")
    try:
        given = _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"'{REQUEST}' is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise InvalidArgument(f"'{REQUEST}' is not a JSON object")
    for name in given:
        if name not in _MEMBERS:
            raise InvalidArgument(f"'{REQUEST}' has '{echo(name)}'; it may have {' and '.join(_MEMBERS)}")
    pooling = given.get("pooling_params") or {}
    if not isinstance(pooling, dict):
        raise InvalidArgument(f"'pooling_params' of '{REQUEST}' must be a JSON object")
    prompt = given.get("input")
    tokens = prompt if isinstance(prompt, list) else None
    is_of_tokens = bool(tokens) and all(type(each) is int and 0 <= each < 2**31 for each in tokens or ())
    if not is_of_tokens and not isinstance(prompt, str):
        raise InvalidArgument(f"'input' of '{REQUEST}' must be a text, or a list of tokens, numbers from 0 on, and not empty")
    return EmbeddingAsked(
        request=EngineRequest(
            id=number,
            prompt=prompt if isinstance(prompt, str) else "",
            prompt_token_ids=None if tokens is None else tuple(tokens),
            pooling=pooling,
        ),
        as_numbers=flag_in(inputs, _AS_NUMBERS),
        returns=frozenset([name for name in _RETURNS if flag_in(inputs, f"return_{name}")]),
    )


def embedding_cost(inputs: Inputs, longest: int = 0) -> Cost:
    """The room that the request needs, by an estimate of its tokens, `longest` at most (0: not known)."""
    tokens = len(bytes_in(inputs, REQUEST)) // ENGINE_BYTES_PER_TOKEN + 1
    return Cost(1, min(tokens, longest) if longest else tokens)


class EmbeddingAnswer:
    """The answer to one request: as `GeneratedAnswer`, in one piece."""

    __slots__ = ("_asked", "_embedding", "error", "is_finished", "prompt_tokens")

    def __init__(self, asked: EmbeddingAsked) -> None:
        self._asked = asked
        self._embedding: np.ndarray[Any, np.dtype[np.float32]] | None = None
        self.error: TpyError | None = None
        self.is_finished = False
        self.prompt_tokens = 0

    def add(self, delta: Delta) -> None:
        """A step has brought this. What comes after the end is ignored."""
        if self.is_finished:
            return
        self.error = delta.error
        self.prompt_tokens = delta.prompt_tokens or self.prompt_tokens
        if delta.embedding is not None:
            self._embedding = np.asarray(delta.embedding, np.float32).reshape(-1)
        self.is_finished = delta.error is not None or delta.finish_reason is not None
        if self.is_finished and self.error is None and self._embedding is None:
            self.error = Internal("the engine ended the request without an embedding")

    def take(self, *, has_room: bool) -> ExecutionResult | None:
        """The response, once it is finished."""
        if self.error is not None:
            return ExecutionResult(error=self.error)
        return None if self._embedding is None else ExecutionResult(self._outputs(self._embedding))

    def _outputs(self, embedding: np.ndarray[Any, np.dtype[np.float32]]) -> list[Tensor]:
        asked = self._asked
        if asked.as_numbers:
            outputs = [Tensor("embedding", DataType.FP32, embedding)]
        else:
            text = np.empty(1, object)
            text[0] = _encode(embedding.tolist())
            outputs = [Tensor("text_output", DataType.BYTES, text)]
        for name, count in zip(_RETURNS, (self.prompt_tokens, 0), strict=True):
            if name in asked.returns:
                outputs.append(Tensor(name, DataType.UINT32, np.array([count], np.uint32)))
        return outputs
