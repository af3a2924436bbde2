"""The conventions of Triton's OpenAI frontend: the names of inputs and outputs by which a model takes text and answers.

    text_input                              the prompt; or `messages`, the chat as JSON, for models with their own templates
    stream                                  true when responses may come in pieces
    exclude_input_in_output                 true: what repeats the prompt is this frontend
    sampling_parameters                     all settings as JSON (vLLM)
    max_tokens, temperature, top_p, ...     a setting each (TensorRT-LLM); `stop_words`, `random_seed` are its `stop` and `seed`
    return_num_input_tokens, ...            true for each count that is wanted, and for logprobs if they are
    image                                   the images of a chat, in Base64

Settings that are not inputs are parameters of the request, unless sampling_parameters has them all. Of the outputs `text_output`
is read, and `num_input_tokens`, `num_output_tokens`, `finish_reason`, `logprobs`, `cumulative_logprob` where there are any. Each
choice is a separate request. Embeddings: `embedding_request` to `text_output`, both JSON (vLLM), or to `embedding` where there is
`return_embedding`; or `text_input` to `embedding`."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from tpy import limits
from tpy.errors import Internal, InvalidArgument, Unsupported
from tpy.frontends.http.codec.document import shown
from tpy.frontends.http.codec.long_json import write_long
from tpy.messages import DataType, InferenceResponse, ModelDescription, ParameterValue, Tensor, TensorDescription, held_bytes
from tpy.units import KIB

TEXT, MESSAGES, IMAGE, EMBEDDING_REQUEST = "text_input", "messages", "image", "embedding_request"
SETTINGS, _OUTPUT, _EMBEDDING = "sampling_parameters", "text_output", "embedding"
_TOKENS = "prompt_token_ids"
_LOGPROBS, _CUMULATIVE = "logprobs", "cumulative_logprob"
_WANTED = ("return_num_input_tokens", "return_num_output_tokens", "return_finish_reason")
_OTHER_NAMES = {"stop": "stop_words", "seed": "random_seed"}
_SEEDS = 2**63
NO_SETTINGS: Final[Mapping[str, Any]] = {}
_READ_BYTES = 256 * KIB
"""Of a text, what is decoded at once."""
_FINISH_REASONS = {"stop", "length", "content_filter", "tool_calls"}


def generates(description: ModelDescription) -> bool:
    """Returns True if a model takes text and gives text."""
    return _OUTPUT in description.output_by_name and not {TEXT, MESSAGES}.isdisjoint(description.input_by_name)


def embeds(description: ModelDescription) -> bool:
    """Returns True if a model takes text and gives embeddings."""
    inputs, outputs = description.input_by_name, description.output_by_name
    return (TEXT in inputs and _EMBEDDING in outputs) or (EMBEDDING_REQUEST in inputs and _OUTPUT in outputs)


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A request for text without its prompts, which are for the input `input`. Each prompt is asked `choices` times; `logprobs`
    and `cumulative_logprob` are wanted besides the text; `images` are in Base64."""

    input: str
    stream: bool
    max_tokens: int
    settings: Mapping[str, Any]
    choices: int = 1
    logprobs: bool = False
    cumulative_logprob: bool = False
    images: Sequence[str] = ()


Prompt = str | list[int]
"""A text, or its tokens."""

Ask = tuple[tuple[Tensor, ...], dict[str, ParameterValue]]
"""The inputs and parameters that ask a model for a text or an embedding."""


def generations(description: ModelDescription, asked: Generation, prompts: Sequence[Prompt]) -> list[Ask]:
    """The requests to the model, `choices` for each prompt, with the settings that they have in common. Raises InvalidArgument
    for settings that its inputs do not take, and for too many choices and prompts together."""
    # As in vLLM each choice has its own seed, or all would be the same.
    seed = asked.settings.get("seed")
    variants = [asked.settings]
    if isinstance(seed, int):
        variants = [{**asked.settings, "seed": _seed(seed, at)} for at in range(asked.choices)]
    shared = [_settings(description, asked, settings) for settings in variants]
    size = sum(_size(*each) for each in shared)
    count = len(prompts) * asked.choices
    if size // len(shared) * count > limits.OPENAI_SETTINGS_BYTES_MAX:
        raise InvalidArgument(
            f"{count} prompts with {size // len(shared)} bytes of settings each are more than "
            f"{limits.OPENAI_SETTINGS_BYTES_MAX} bytes"
        )
    described = description.input_by_name.get(asked.input)
    asks: list[Ask] = []
    of_tokens = 0
    for prompt in prompts:
        made = shared
        if not isinstance(prompt, str):
            made = [_settings(description, asked, {**settings, _TOKENS: prompt}) for settings in variants]
            of_tokens += sum(_size(*each) for each in made)
            if of_tokens > limits.OPENAI_SETTINGS_BYTES_MAX:
                raise InvalidArgument(f"the tokens of all choices are more than {limits.OPENAI_SETTINGS_BYTES_MAX} bytes")
        text = prompt if isinstance(prompt, str) else ""
        first = () if described is None else (_tensor(described, text),)
        asks += [((*first, *made[at % len(made)][0]), made[at % len(made)][1]) for at in range(asked.choices)]
    return asks


def _seed(seed: int, choice: int) -> int:
    """The seed of a choice: behind the largest one comes 0."""
    return (seed + choice) % _SEEDS if seed >= 0 else seed + choice


def _size(inputs: Sequence[Tensor], parameters: Mapping[str, ParameterValue]) -> int:
    """The bytes of settings."""
    return held_bytes(inputs, limits.OPENAI_SETTINGS_BYTES_MAX) + sum(
        limits.OPENAI_SETTING_BYTES + len(name) + (len(value) if isinstance(value, str) else 0)
        for name, value in parameters.items()
    )


def _settings(description: ModelDescription, asked: Generation, given: Mapping[str, Any]) -> Ask:
    known = description.input_by_name
    settings = {**given, "max_tokens": asked.max_tokens}
    values: dict[str, object] = {"stream": asked.stream, "exclude_input_in_output": True}
    values["return_logprobs"] = asked.logprobs
    values["return_cumulative_logprob"] = asked.cumulative_logprob
    values |= dict.fromkeys(_WANTED, True)
    if asked.images:
        values[IMAGE] = list(asked.images)
    parameters: dict[str, ParameterValue] = {}
    if SETTINGS in known:
        values[SETTINGS] = write_long(settings)
    for name, value in settings.items():
        if name in known:
            values.setdefault(name, value)
        elif (other := _OTHER_NAMES.get(name)) in known and other is not None:
            values[other] = value
        elif SETTINGS not in known:
            parameters[name] = value if isinstance(value, bool | int | float | str) else write_long(value)
    values.pop(asked.input, None)  # a setting of this name is not the prompt
    return tuple(_tensor(known[name], value) for name, value in values.items() if name in known), parameters


def takes_tokens(description: ModelDescription) -> bool:
    """Returns True if a model that embeds texts takes their tokens, too."""
    return EMBEDDING_REQUEST in description.input_by_name


def embeddings(
    description: ModelDescription,
    texts: Sequence[str] | Sequence[list[int]],
    dimensions: int | None,
    settings: Mapping[str, Any] = NO_SETTINGS,
) -> list[Ask]:
    """The requests to the model, one for each text; in place of texts, tokens for one that takes them. `settings` are for one
    that takes requests as JSON. Raises InvalidArgument for `dimensions` that cannot be chosen."""
    return [(_embedding_inputs(description, text, dimensions, settings), {}) for text in texts]


def _embedding_inputs(
    description: ModelDescription, text: str | list[int], dimensions: int | None, settings: Mapping[str, Any]
) -> tuple[Tensor, ...]:
    known = description.input_by_name
    values: dict[str, object] = dict.fromkeys((*_WANTED, "return_embedding"), True)
    if EMBEDDING_REQUEST in known:
        pooling = {**settings} if dimensions is None else {**settings, "dimensions": [dimensions]}
        values[EMBEDDING_REQUEST] = write_long({"input": text, "pooling_params": pooling})
    else:
        values[TEXT] = text
        if dimensions is not None:
            if "dimensions" not in known:
                raise InvalidArgument(f"'dimensions': model '{description.name}' has one size of embeddings")
            values["dimensions"] = dimensions
    return tuple(_tensor(known[name], value) for name, value in values.items() if name in known)


def _tensor(described: TensorDescription, value: object) -> Tensor:
    """`value`, or each element of a list, as an input: the last dimension counts them, all others are 1."""
    elements: Sequence[object] = value if isinstance(value, list) else [value]
    shape = [1] * max(len(described.shape) - 1, 0) + [len(elements)] if described.shape else []
    if len(shape) != len(described.shape) or any(dim not in (-1, size) for dim, size in zip(described.shape, shape, strict=True)):
        raise InvalidArgument(f"input '{described.name}' has shape {list(described.shape)} and cannot take {shape}")
    try:
        if described.datatype is DataType.BYTES:
            array = np.empty(len(elements), object)
            array[:] = [
                (each if isinstance(each, str) else write_long(each)).encode("utf-8", "surrogatepass") for each in elements
            ]
        else:
            if not all(_is_value(each, described.datatype) for each in elements):
                raise ValueError
            array = np.array(elements, described.datatype.numpy)
        return Tensor(described.name, described.datatype, array.reshape(shape))
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"'{described.name}': {shown(value)} is not a value of type {described.datatype.value}") from None


def _is_value(value: object, datatype: DataType) -> bool:
    """Returns False for what NumPy would take and make something else of: half a number, a text, null."""
    if datatype is DataType.BOOL:
        return isinstance(value, bool)
    if isinstance(value, float) and np.issubdtype(datatype.numpy, np.integer):
        return value.is_integer()
    return isinstance(value, int | float)


class ResponseReader:
    """Reads the responses to one request, in order: the text of each, and what they say all together."""

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.finish_reason = "stop"
        self.cumulative_logprob = 0.0
        """Of the text so far."""
        self.logprobs: list[bytes] = []
        """As the model writes them, one after another; whoever reads them takes them away."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may be cut in two

    def text(self, response: InferenceResponse) -> str:
        """The text of a response. Raises its error, and Internal for one without text."""
        if response.error is not None:
            raise response.error
        outputs = {tensor.name: tensor for tensor in response.outputs}
        if self.prompt_tokens is None:  # each response says it again
            self.prompt_tokens = _count(outputs.get("num_input_tokens"))
        if (count := _count(outputs.get("num_output_tokens"))) is not None:
            self.completion_tokens = count + (self.completion_tokens or 0)
        if (reason := _words(outputs.get("finish_reason"))) and (said := reason[-1].decode(errors="replace")) in _FINISH_REASONS:
            self.finish_reason = said
        self.logprobs += _words(outputs.get(_LOGPROBS))
        if (cumulative := outputs.get(_CUMULATIVE)) is not None and cumulative.array.size == 1:
            self.cumulative_logprob = float(cumulative.array.reshape(-1)[0])
        if not response.outputs:
            return ""
        if _OUTPUT not in outputs or outputs[_OUTPUT].datatype is not DataType.BYTES:
            raise Internal(f"model '{response.model_name}' sent a response without the text '{_OUTPUT}'")
        data = b"".join(_words(outputs[_OUTPUT]))
        return "".join([self._decoder.decode(data[at : at + _READ_BYTES]) for at in range(0, len(data), _READ_BYTES)])

    def rest(self) -> str:
        """Returns the sign for a character that was never finished, "" without one."""
        return self._decoder.decode(b"", final=True)


def embedding_of(response: InferenceResponse) -> tuple[np.ndarray[Any, np.dtype[np.float32]], int]:
    """The embedding in a response, and how many tokens the text had (0: the model does not tell). Raises its error, and Internal
    for a response without an embedding."""
    if response.error is not None:
        raise response.error
    outputs = {tensor.name: tensor for tensor in response.outputs}
    try:
        if _EMBEDDING in outputs:
            found = outputs[_EMBEDDING].array.astype(np.float32).reshape(-1)
        else:
            found = np.asarray(json.loads(b"".join(_words(outputs[_OUTPUT]))), np.float32).reshape(-1)
    except (KeyError, TypeError, ValueError):
        raise Internal(f"model '{response.model_name}' sent a response without an embedding") from None
    return found, _count(outputs.get("num_input_tokens")) or 0


def require(description: ModelDescription, *, embeddings: bool) -> None:
    """Raise Unsupported unless the model can be asked this."""
    if not (embeds if embeddings else generates)(description):
        wanted = f"'{TEXT}' and '{_EMBEDDING}'" if embeddings else f"'{TEXT}' and '{_OUTPUT}'"
        what = "embeddings" if embeddings else "text"
        raise Unsupported(f"model '{description.name}' does not give {what}: it lacks the input and output {wanted}")


def _count(tensor: Tensor | None) -> int | None:
    if tensor is None or tensor.datatype is DataType.BYTES or tensor.array.size != 1:
        return None
    return int(tensor.array.reshape(-1)[0])


def _words(tensor: Tensor | None) -> list[bytes]:
    if tensor is None or tensor.datatype is not DataType.BYTES:
        return []
    return [bytes(each) for each in tensor.array.reshape(-1)]
