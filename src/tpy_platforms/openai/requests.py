"""The documents that clients of OpenAI's API send. Members that have no meaning here are settings for the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.cutting import load_in_pieces
from tpy.frontends.http.codec.document import shown
from tpy.frontends.http.codec.pieces import ArraySizes, LongArray, LongString
from tpy.units import KIB

_Number = Annotated[float, Meta(ge=-2, le=2)]
_Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """Of a request that streams. `include_usage`: an event with the counts comes last; with `continuous_usage_stats`, which is
    vLLM's, each event has those of its choice so far."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Sampling(msgspec.Struct, kw_only=True):
    """The members of both kinds of generation. Members that the model reads are checked here, and given to it by `settings`."""

    model: str
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    frequency_penalty: _Number | None = None
    presence_penalty: _Number | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=limits.OPENAI_STOPS_MAX)] | None = None
    n: Annotated[int, Meta(ge=1, le=limits.OPENAI_CHOICES_MAX)] | None = 1
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None

    @property
    def choices(self) -> int:
        """The number of answers that the client gets for a prompt."""
        return self.n or 1


class CompletionRequest(Sampling, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    echo: bool | None = False
    best_of: Annotated[int, Meta(ge=1, le=limits.OPENAI_CHOICES_MAX)] | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=limits.OPENAI_LOGPROBS_MAX)] | None = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message of a chat. Templates see its members as they were sent, but arguments of tool calls as objects."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(Sampling, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: _Count | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=limits.OPENAI_LOGPROBS_MAX)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = False
    reasoning_effort: str | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None

    @property
    def template_variables(self) -> dict[str, Any]:
        """The variables of the chat template that the client sets."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        asks = not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
        return {**effort, "add_generation_prompt": asks, **(self.chat_template_kwargs or {})}


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """The body of `/v1/embeddings`."""

    model: str
    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: _Count | None = None


# msgspec resolves a class when it is first used, and two threads that do so at once crash the process: do it here, once.
for _kind in (CompletionRequest, ChatRequest, EmbeddingRequest):
    msgspec.json.Decoder(_kind)

_NO_SETTINGS = frozenset(
    {
        *(
            "model",
            "messages",
            "prompt",
            "stream",
            "stream_options",
            "echo",
            "n",
            "best_of",
            "suffix",
            "logprobs",
            "top_logprobs",
        ),
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format", "user", "store"),
        *("metadata", "service_tier", "modalities", "prediction", "reasoning_effort", "verbosity", "safety_identifier"),
        *("prompt_cache_key", "max_tokens", "max_completion_tokens", "chat_template_kwargs"),
        *("add_generation_prompt", "continue_final_message"),
    }
)
"""Members that are not given to the model as they are: they mean something here, to OpenAI's service, or to the template."""

_SIZES = ArraySizes(string=KIB)
"""Of long documents: what is not text of this length is bounded."""

_Request = TypeVar("_Request", bound=msgspec.Struct)


def load(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The JSON object in a body: a long one is parsed in pieces. Raises InvalidArgument."""
    document = _parsed(body, "the body is not JSON")
    if type(document) is not dict:
        raise InvalidArgument("the body must be a JSON object")
    return document


def _parsed(text: bytes | bytearray | memoryview, refusal: str) -> Any:
    """The JSON value in a text. Raises InvalidArgument that begins with `refusal`."""
    try:
        return msgspec.json.decode(text) if len(text) <= limits.JSON_WHOLE_BYTES_MAX else _settled(load_in_pieces(text, _SIZES))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, InvalidArgument) as error:
        raise InvalidArgument(f"{refusal}: {error}") from None


def _settled(document: object) -> object:
    """The document with its long strings, and the elements of its long arrays, as far as those may have. Raises
    InvalidArgument."""
    top = [document]
    pending: list[Any] = [top]
    room = limits.OPENAI_ELEMENTS_MAX
    while pending:
        container = pending.pop()
        for key, value in list(container.items() if type(container) is dict else enumerate(container)):
            if type(value) is LongString:
                container[key] = value.decode()
            elif type(value) is LongArray:
                found = value.elements(room)
                if found is None:
                    raise InvalidArgument(f"its arrays have more than {limits.OPENAI_ELEMENTS_MAX} elements")
                container[key], count = found
                room -= count
            elif type(value) is dict or type(value) is list:
                pending.append(value)
    return top[0]


def read(document: dict[str, Any], kind: type[_Request]) -> _Request:
    """The request in a document. Raises InvalidArgument, with the path of the member that cannot be."""
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidArgument(str(error)) from None


Tokens = list[int]


def embedding_inputs(request: EmbeddingRequest) -> list[str] | list[Tokens]:
    """The texts, or the tokens of texts, to embed. Raises InvalidArgument for a mixture, and for too many."""
    return _texts_or_tokens("input", request.input)


def embedding_settings(members: dict[str, Any]) -> dict[str, Any]:
    """The members of a request for embeddings that are for the model."""
    return {name: value for name, value in members.items() if name not in ("input", "encoding_format", "dimensions")}


def prompts_of(request: CompletionRequest) -> list[str] | list[Tokens]:
    """The prompts, or their tokens. Raises InvalidArgument for a mixture, and for more choices than there may be."""
    return _texts_or_tokens("prompt", request.prompt)


def _texts_or_tokens(member: str, value: str | list[str | int | list[int]]) -> list[str] | list[Tokens]:
    given = [value] if isinstance(value, str) else value
    texts = [each for each in given if isinstance(each, str)]
    tokens = [each for each in given if isinstance(each, int)]
    lists = [each for each in given if isinstance(each, list)]
    if max(len(texts), len(tokens), len(lists)) < len(given) or not all(lists):
        raise InvalidArgument(f"'{member}': expected a text, texts, an array of tokens, or arrays of tokens")
    found: list[str] | list[Tokens] = texts or lists or [tokens]
    if len(found) > limits.OPENAI_PROMPTS_MAX:
        raise InvalidArgument(f"Expected `array` of length <= {limits.OPENAI_PROMPTS_MAX} - at `$.{member}`")
    return found


def check(request: CompletionRequest | ChatRequest) -> None:
    """Raise InvalidArgument for what is asked for and not offered: better than an answer without it."""
    if request.stream_options is not None and not request.stream:
        raise InvalidArgument("'stream_options' can only be used when 'stream' is true")
    if isinstance(request, ChatRequest):
        if request.top_logprobs and not request.logprobs:
            raise InvalidArgument("'top_logprobs' can only be used when 'logprobs' is true")
        if request.continue_final_message and request.add_generation_prompt:
            raise InvalidArgument("'continue_final_message' and 'add_generation_prompt' exclude each other")
        if request.functions:
            raise InvalidArgument("'functions' is not supported: use 'tools'")
        if request.function_call not in (None, "none"):
            raise InvalidArgument("'function_call' is not supported: use 'tool_choice'")
        if not {"text"}.issuperset(request.modalities or ()):
            raise InvalidArgument(f"'modalities': only text is supported, got {shown(request.modalities)}")
        return
    if request.suffix:
        raise InvalidArgument("'suffix' is not supported")
    if request.best_of is not None and request.best_of < request.choices:
        raise InvalidArgument(f"'best_of' has to be at least 'n', got {request.best_of} and {request.choices}")
    if request.stream and (request.best_of or 0) > request.choices:
        raise InvalidArgument("'best_of' above 'n' is not possible in a stream: the best are known at the end")
    if request.echo and request.logprobs is not None:
        raise InvalidArgument("'echo' with 'logprobs' is not supported: models give those of what they write")


def answer_form(request: ChatRequest) -> dict[str, Any]:
    """The settings by which an answer has the form that `response_format` says. Raises InvalidArgument."""
    form = request.response_format or {}
    match form.get("type", "text"):
        case "text":
            return {}
        case "json_object":
            return {"structured_outputs": {"json_object": True}}
        case "json_schema":
            given = form.get("json_schema")
            schema = given.get("schema") if isinstance(given, dict) else None
            if not isinstance(schema, dict):
                raise InvalidArgument("expected a JSON schema - at `$.response_format.json_schema.schema`")
            return {"structured_outputs": {"json": schema}}
        case other:
            raise InvalidArgument(f"'response_format': expected text, json_object or json_schema, got {shown(other)}")


def settings_of(document: dict[str, Any]) -> dict[str, Any]:
    """The members for the model: those of OpenAI's API and any others."""
    return {name: value for name, value in document.items() if name not in _NO_SETTINGS and value is not None}


@contextmanager
def bounded_depth() -> Iterator[None]:
    """Raises InvalidArgument for documents that are nested too deeply to be handled within the block."""
    try:
        yield
    except RecursionError:
        raise InvalidArgument("the body is nested too deeply") from None
