"""The routes of OpenAI's API: from a request to the reply.

A handler's task waits for the responses, as those of generate do. Texts of a stream go out as they come; when the client is gone
the task is cancelled, and with it the request to the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import msgspec
import orjson
import trio

from tpy import limits
from tpy.echo import echo
from tpy.errors import InvalidArgument, NotFound, TpyError, Unavailable
from tpy.frontends.access import INFER, submit
from tpy.frontends.http.codec import is_heavy, is_large
from tpy.frontends.http.codec.long_json import write_long
from tpy.frontends.http.control import ControlApi
from tpy.frontends.http.generate import Responses, StreamReply
from tpy.frontends.http.infer import InferEndpoint, open_record, unexpected_error
from tpy.frontends.http.message import PIECE_BYTES_MAX, HttpReply, HttpRequest, json_reply
from tpy.frontends.http.parser import BODIES_FULL
from tpy.frontends.metrics_http import metrics_reply
from tpy.frontends.openai import answers, models, requests
from tpy.frontends.openai.answers import Answer
from tpy.frontends.openai.models import Ask, Generation, Reader
from tpy.frontends.openai.templates import ChatTemplate, template_of
from tpy.frontends.openai.tokens import texts_of
from tpy.frontends.openai.tools import ToolCallForm, ToolCallReader, form_of
from tpy.frontends.threads import run_in_thread
from tpy.messages import InferenceRequest, InferenceResponse, ModelState, ParameterValue, Tensor, held_bytes
from tpy.services import ResolvedModel, held, offered
from tpy.units import KIB

_Request = TypeVar("_Request", bound=msgspec.Struct)
_Made = TypeVar("_Made")

_EVENT_CHARACTERS = 64 * KIB
"""A longer text of a stream is several events."""


class OpenAiApi:
    """The handlers. `template`, `tokenizer` and `tool_call_parser` are for models that have none; `max_tokens` for requests that
    do not say."""

    def __init__(
        self,
        endpoint: InferEndpoint,
        *,
        template: ChatTemplate | None,
        max_tokens: int,
        tool_call_parser: str,
        tokenizer: str = "",
    ) -> None:
        self._endpoint = endpoint
        self._tokenizer = tokenizer
        self._template = template
        self._max_tokens = max_tokens
        self._tool_call_parser = tool_call_parser
        self._created = endpoint.clock.wall_ms() // 1000
        self._control = ControlApi(endpoint.services, threads=endpoint.threads)

    # Models

    async def models(self, request: HttpRequest) -> HttpReply:
        """The models that can be asked here."""
        caller = request.caller
        names = {entry.name for entry in await self._endpoint.services.repository.index() if entry.state is ModelState.READY}
        if caller is not None:
            names = {name for name in names if caller.grant.allows(INFER, name)}
        data = [answers.model_document(name, self._created) for name in sorted(names) if self._can_be_asked(name)]
        return json_reply(orjson.dumps({"object": "list", "data": data}))

    async def model(self, request: HttpRequest, *, model: str) -> HttpReply:
        """One of them. Raises NotFound."""
        if not self._can_be_asked(model):
            raise NotFound(f"The model '{echo(model)}' does not exist")
        return json_reply(orjson.dumps(answers.model_document(model, self._created)))

    async def ready(self, request: HttpRequest) -> HttpReply:
        """200 when the server is ready, as on the HTTP port."""
        return await self._control.ready(request)

    def _can_be_asked(self, name: str) -> bool:
        try:
            description = self._endpoint.services.inference.resolve(name).description
        except TpyError:
            return False
        return models.generates(description) or models.embeds(description)

    # Text

    async def completions(self, request: HttpRequest) -> HttpReply | StreamReply:
        """Goes on with a text, or with several. Raises TpyError."""
        body, settings = await self._read(request, requests.CompletionRequest)
        requests.check(body)
        model = self._resolve(request, body.model, embeddings=False)
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        asked = Generation(
            input=models.TEXT,
            stream=bool(body.stream),
            max_tokens=body.max_tokens or self._max_tokens,
            settings=settings,
            echo=body.echo,
        )
        return await self._generate(request, body, model, asked, prompts)

    async def chat(self, request: HttpRequest) -> HttpReply | StreamReply:
        """Answers the last message of a conversation. Raises TpyError."""
        body, settings = await self._read(request, requests.ChatRequest)
        requests.check(body)
        model = self._resolve(request, body.model, embeddings=False)
        tools = None if body.tool_choice == "none" else body.tools
        form = form_of(model.description.name, self._parameters(model), self._tool_call_parser) if tools else None
        takes_tools = True
        takes_chat = models.MESSAGES in model.description.input_by_name
        if takes_chat:

            def write() -> str:
                messages = requests.conversation_of(body.messages)
                return write_long({"messages": messages, "tools": tools} if tools else messages)

            with held(model):
                text = await self._made(request, write)
        else:
            text, takes_tools = await self._prompt(model, body.messages, tools)
            model = self._resolve(request, body.model, embeddings=False)  # there was time for another copy
        asked = Generation(
            input=models.MESSAGES if takes_chat else models.TEXT,
            stream=bool(body.stream),
            max_tokens=body.max_completion_tokens or body.max_tokens or self._max_tokens,
            settings=settings,
        )
        reply = await self._generate(request, body, model, asked, [text], form)
        if tools and not takes_tools:
            warning = '299 tpy "the chat template of the model takes no tools: they are ignored"'
            reply = msgspec.structs.replace(reply, headers=(*reply.headers, ("Warning", warning)))
        return reply

    async def _prompt(
        self, model: ResolvedModel, messages: list[requests.Message], tools: list[dict[str, object]] | None
    ) -> tuple[str, bool]:
        """The messages as the model's template writes them, and whether it takes tools. In a thread: a template is a program, and
        reads files at first."""
        parameters = self._parameters(model)

        def render() -> tuple[str, bool]:
            with requests.bounded_depth():
                conversation = requests.conversation_of(messages)
            template = template_of(model.description.name, parameters, self._template)
            text = template.render(conversation, tools, trio.from_thread.check_cancelled)
            return text, not tools or template.takes_tools()

        with held(model):
            return await run_in_thread(render, limiter=self._endpoint.threads)

    def _parameters(self, model: ResolvedModel) -> dict[str, str]:
        """The parameters of a model's configuration."""
        config = self._endpoint.services.inference.config(model.description.name, model.description.version)
        return {name: value.string_value for name, value in config.parameters.items()}

    async def _generate(
        self,
        request: HttpRequest,
        body: requests.CompletionRequest | requests.ChatRequest,
        model: ResolvedModel,
        asked: Generation,
        prompts: list[str],
        tools: ToolCallForm | None = None,
    ) -> HttpReply | StreamReply:
        chat = isinstance(body, requests.ChatRequest)
        answer = Answer(model=body.model, created=self._endpoint.clock.wall_ms() // 1000, chat=chat)
        with ExitStack() as counted, ExitStack() as stack:
            begun = await self._begin_all(
                request, model, counted, stack, lambda: models.generations(model.description, asked, prompts)
            )
            if not body.stream:
                texts, usage = await self._whole(begun, tools)
                long = sum(len(text.text) for text in texts) > limits.INLINE_STRING_OUTPUT_BYTES_MAX
                return await self._reply(lambda: answer.whole(texts, usage, long=long), long=long)
            include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
            events = TextEvents(
                begun[0], answer, ToolCallReader(tools), request.path, include_usage=include_usage, threads=self._endpoint.threads
            )
            await events.begin()
            stack.pop_all()
        return StreamReply(body=events)

    # Embeddings

    async def embeddings(self, request: HttpRequest) -> HttpReply:
        """The embeddings of one or more texts. Raises TpyError."""
        body, _ = await self._read(request, requests.EmbeddingRequest)
        model = self._resolve(request, body.model, embeddings=True)
        texts = requests.embedding_inputs(body)
        if not isinstance(texts[0], str) and not models.takes_tokens(model.description):
            texts = await self._detokenized(model, texts)
            model = self._resolve(request, body.model, embeddings=True)  # there was time for another copy
        found, tokens = [], 0
        with ExitStack() as counted, ExitStack() as stack:
            begun = await self._begin_all(
                request, model, counted, stack, lambda: models.embeddings(model.description, texts, body.dimensions)
            )
            for responses in begun:
                await trio.lowlevel.checkpoint()
                lot = await responses.wait()
                if not lot:
                    raise NotFound(f"model '{echo(body.model)}' sent no embedding")
                vector, count = models.embedding_of(lot[0])
                found.append(vector)
                tokens += count
        text = body.encoding_format == "base64"
        long = sum(vector.size for vector in found) > limits.HTTP_INLINE_JSON_ELEMENTS_MAX
        return await self._reply(lambda: answers.embeddings_document(body.model, found, tokens, text=text), long=long)

    async def _detokenized(self, model: ResolvedModel, tokens: Sequence[Any]) -> list[str]:
        """The texts of tokens. In a thread: a tokenizer is read from its file at first."""
        name, parameters = model.description.name, self._parameters(model)
        with held(model):
            return await run_in_thread(
                partial(texts_of, name, parameters, self._tokenizer, tokens), limiter=self._endpoint.threads
            )

    # Metrics

    async def metrics(self, request: HttpRequest) -> HttpReply:
        """The metrics page, as on the port for metrics."""
        service = offered(self._endpoint.services.metrics)
        return await metrics_reply(service.page, request.fields.get(b"accept", b"").decode("latin-1"))

    # Parts

    async def _read(self, request: HttpRequest, kind: type[_Request]) -> tuple[_Request, dict[str, object]]:
        """The request in the body, and the settings for the model. Raises InvalidArgument."""
        if request.fields.get(b"content-encoding", b"identity") not in (b"identity", b""):
            raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
        body, request.body, request.sent_bytes = request.body, b"", len(request.body)

        def read() -> tuple[_Request, dict[str, object]]:
            document = requests.load(body)
            return requests.read(document, kind), requests.settings_of(document)

        request.is_heavy = is_heavy(body)
        return await self._made(request, read)

    async def _made(self, request: HttpRequest, make: Callable[[], _Made]) -> _Made:
        """Returns what `make` does, in a thread for a large request. Raises InvalidArgument for too deep nesting, and
        what `make` raises."""

        def bounded() -> _Made:
            with requests.bounded_depth():
                return make()

        return await run_in_thread(bounded, limiter=self._endpoint.threads) if request.is_heavy else bounded()

    async def _reply(self, write: Callable[[], Sequence[bytes]], *, long: bool) -> HttpReply:
        parts = await run_in_thread(write, limiter=self._endpoint.threads) if long else write()
        return HttpReply(parts=parts, content_length=sum(map(len, parts)))

    def _resolve(self, request: HttpRequest, name: str, *, embeddings: bool) -> ResolvedModel:
        if request.caller is not None:
            request.caller.require(INFER, name)
        try:
            model = self._endpoint.services.inference.resolve(name)
        except NotFound:
            raise NotFound(f"The model '{echo(name)}' does not exist or is not loaded") from None
        models.require(model.description, embeddings=embeddings)
        return model

    async def _begin_all(
        self,
        request: HttpRequest,
        model: ResolvedModel,
        counted: ExitStack,
        stack: ExitStack,
        make: Callable[[], list[Ask]],
    ) -> list[Responses]:
        """Submit the requests that `make` returns, which count in the budget of bodies until `counted` is left, and are cancelled
        when `stack` is. Raises Unavailable where the budget has no room, and what `make` and `submit` raise."""
        with held(model):
            asks = await self._made(request, make)
            size = sum([held_bytes(inputs[:1], limits.REQUEST_BODIES_BYTES_MAX) for inputs, _ in asks])
            size += len(asks) * held_bytes(asks[0][0][1:], limits.REQUEST_BODIES_BYTES_MAX)
            bodies = self._endpoint.bodies
            if not bodies.take(size):
                raise Unavailable(BODIES_FULL)
            counted.callback(bodies.give, size)
            # All prompts share one mapping: 300 settings copied for each of 2,048 would take 37 MiB, and the collector's time.
            parameters = {**asks[0][1], **(self._endpoint.policy.forwarded(request.headers) or {})}
            begun: list[Responses] = []
            for inputs, _ in asks:
                if len(begun) % limits.OPENAI_ASKS_AT_ONCE_MAX == limits.OPENAI_ASKS_AT_ONCE_MAX - 1:
                    await trio.lowlevel.checkpoint()
                responses = self._begin(request, model, inputs, parameters)
                stack.callback(responses.cancel)
                begun.append(responses)
        return begun

    def _begin(
        self, request: HttpRequest, model: ResolvedModel, inputs: tuple[Tensor, ...], parameters: dict[str, ParameterValue]
    ) -> Responses:
        """Submit a request to the model. Raises what `submit` raises."""
        endpoint, description = self._endpoint, model.description
        now_ns = endpoint.clock.now_ns()
        record = open_record(endpoint.services.observers, request, "openai", description.name, now_ns)
        if request.record is None:
            request.record = record
        elif record is not None:
            request.further_records += (record,)
        responses = Responses(decoupled=description.decoupled, record=record)
        inference = InferenceRequest(
            model_name=description.name,
            inputs=inputs,
            parameters=parameters,
            received_ns=now_ns,
            record=record,
        )
        request.submitted = True
        responses.begin(lambda sink: submit(request.caller, model, inference, sink, now_ns))
        return responses

    async def _whole(
        self, begun: list[Responses], tools: ToolCallForm | None
    ) -> tuple[list[answers.Text], dict[str, int] | None]:
        """All texts, and the counts if the model tells them. Raises the first error."""
        texts: list[answers.Text] = []
        size = 0
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        counted = True
        for responses in begun:
            reader = Reader()
            pieces = []
            while lot := await responses.wait():
                await trio.lowlevel.checkpoint()
                for response in lot:
                    pieces.append(await _text(reader, response, self._endpoint.threads))
                    size += len(pieces[-1])
                    if size > limits.OPENAI_TEXT_CHARACTERS_MAX:
                        raise InvalidArgument(
                            f"the answer exceeds {limits.OPENAI_TEXT_CHARACTERS_MAX} characters: ask for a stream"
                        )
            calls = ToolCallReader(tools)
            text = calls.add("".join([*pieces, reader.rest()]))
            rest, found = calls.end()
            texts.append(answers.Text(text=text + rest, finish_reason=reader.finish_reason, calls=found))
            told = reader.usage()
            counted = counted and told is not None
            for name, count in (told or {}).items():
                usage[name] += count
        return texts, usage if counted else None


async def _text(reader: Reader, response: InferenceResponse, threads: trio.CapacityLimiter) -> str:
    """The text of a response; a long one is read in a thread. Raises what the reader raises."""
    return await run_in_thread(reader.text, response, limiter=threads) if is_large(response.outputs) else reader.text(response)


class TextEvents:
    """The events of one generation. `begin` waits for the first response, whose error is the status of the reply."""

    def __init__(
        self,
        responses: Responses,
        answer: Answer,
        calls: ToolCallReader,
        path: str,
        *,
        include_usage: bool,
        threads: trio.CapacityLimiter,
    ) -> None:
        self._responses = responses
        self._answer = answer
        self._reader = Reader()
        self._calls = calls
        self._path = path
        self._include_usage = include_usage
        self._threads = threads
        self._waiting: deque[bytes | str] = deque()
        """Events, and texts that are no events yet."""
        self._ended = False

    async def begin(self) -> None:
        """Wait for the first response. Raises its error."""
        lot = await self._responses.wait()
        if lot and lot[0].error is not None:
            raise lot[0].error
        self._waiting.append(self._answer.begun())
        if lot:
            await self._take(lot)
        else:
            self._end()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            lot = await self._responses.wait()
            if lot:
                await self._take(lot)
            else:
                self._end()
        events, size = [], 0
        while self._waiting and size < PIECE_BYTES_MAX:
            event = self._waiting.popleft()
            events.append(self._answer.piece(event) if isinstance(event, str) else event)
            size += len(events[-1])
        return b"".join(events)

    def _add(self, text: str) -> None:
        self._waiting += [text[at : at + _EVENT_CHARACTERS] for at in range(0, len(text), _EVENT_CHARACTERS)]

    def close(self) -> None:
        """Nobody reads any more."""
        self._responses.cancel()

    async def _take(self, lot: list[InferenceResponse]) -> None:
        """Queue the events of some responses. An error is the last event."""
        try:
            for response in lot:
                self._add(self._calls.add(await _text(self._reader, response, self._threads)))
        except TpyError as error:
            self._fail(error)
        except Exception:
            self._fail(unexpected_error(self._path))

    def _fail(self, error: TpyError) -> None:
        self._waiting.append(answers.error_event(error))
        self._ended = True
        self._responses.cancel()

    def _end(self) -> None:
        text = self._calls.add(self._reader.rest())
        rest, calls = self._calls.end()
        self._add(text + rest)
        if calls:
            self._waiting.append(self._answer.called(calls))
        self._waiting.append(self._answer.finished(answers.TOOL_CALLS if calls else self._reader.finish_reason))
        if self._include_usage:
            self._waiting.append(self._answer.counted(self._reader.usage()))
        self._waiting.append(answers.DONE)
        self._ended = True
