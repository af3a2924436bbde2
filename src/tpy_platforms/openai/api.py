"""The routes of OpenAI's API: from a request to the reply.

A handler's task waits for the responses, as those of generate do. Texts of a stream go out as they come; when the client is gone
the task is cancelled, and with it the request to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import orjson
import trio

from tpy import limits
from tpy.echo import echo
from tpy.errors import InvalidArgument, NotFound, TpyError, Unavailable
from tpy.frontends.access import INFER, submit
from tpy.frontends.http.codec import is_heavy
from tpy.frontends.http.codec.long_json import write_long
from tpy.frontends.http.control import ControlApi
from tpy.frontends.http.generate import Arrival, GenerateResponses, StreamReply
from tpy.frontends.http.infer import InferEndpoint, open_record
from tpy.frontends.http.message import HttpReply, HttpRequest, json_reply
from tpy.frontends.http.parser import BODIES_FULL
from tpy.frontends.metrics_http import metrics_reply
from tpy.frontends.threads import run_in_thread
from tpy.messages import InferenceRequest, ModelState, ParameterValue, Tensor, held_bytes
from tpy.services import ResolvedModel, held, offered
from tpy_platforms.openai import answers, contents, models, requests, supported
from tpy_platforms.openai.answers import AnswerMembers
from tpy_platforms.openai.models import Ask, Generation, Prompt
from tpy_platforms.openai.streams import AnswerEvents, AnswerForm, size_of, whole_answer
from tpy_platforms.openai.templates import ChatTemplate, template_of
from tpy_platforms.openai.tokens import texts_of
from tpy_platforms.openai.tools import ToolUse, tool_use

_Request = TypeVar("_Request", bound=msgspec.Struct)
_Made = TypeVar("_Made")


class AskedModel(NamedTuple):
    """The model that a request names, and its adapter if it names one."""

    model: ResolvedModel
    adapter: str = ""


class OpenAiApi:
    """The handlers. `template`, `tokenizer` and `tool_call_parser` are for models without their own; `max_tokens` for requests
    that do not say; `lora_separator` is between the names of a model and its adapter."""

    def __init__(
        self,
        endpoint: InferEndpoint,
        *,
        template: ChatTemplate | None,
        max_tokens: int,
        tool_call_parser: str,
        tokenizer: str = "",
        lora_separator: str = "",
    ) -> None:
        self._endpoint = endpoint
        self._tokenizer = tokenizer
        self._template = template
        self._max_tokens = max_tokens
        self._tool_call_parser = tool_call_parser
        self._lora_separator = lora_separator
        self._created = endpoint.clock.wall_ms() // 1000
        self._control = ControlApi(endpoint.services, threads=endpoint.threads)

    # Models

    async def models(self, request: HttpRequest) -> HttpReply:
        """The models that can be asked here, and their adapters."""
        caller = request.caller
        names = {entry.name for entry in await self._endpoint.services.repository.index() if entry.state is ModelState.READY}
        if caller is not None:
            names = {name for name in names if caller.grant.allows(INFER, name)}
        data = []
        for name in sorted(names):
            if (found := self._found(name)) is not None:
                data.append(answers.model_document(name, self._created))
                for adapter in supported.adapters_of(self._parameters(found.model)):
                    data.append(answers.model_document(f"{name}{self._lora_separator}{adapter}", self._created, parent=name))
        return json_reply(orjson.dumps({"object": "list", "data": data}))

    async def model(self, request: HttpRequest, *, model: str) -> HttpReply:
        """One of them. Raises NotFound."""
        found = self._found(model)
        if found is None:
            raise NotFound(f"The model '{echo(model)}' does not exist")
        parent = found.model.description.name if found.adapter else ""
        return json_reply(orjson.dumps(answers.model_document(model, self._created, parent=parent)))

    async def ready(self, request: HttpRequest) -> HttpReply:
        """200 when the server is ready, as on the HTTP port."""
        return await self._control.ready(request)

    def _found(self, name: str) -> AskedModel | None:
        """The model of that name, or the one whose adapter it names; None for one that cannot be asked here."""
        try:
            asked = self._asked(name)
        except TpyError:
            return None
        description = asked.model.description
        return asked if models.generates(description) or models.embeds(description) else None

    def _asked(self, name: str) -> AskedModel:
        """As `_found`. Raises NotFound, and what `resolve` raises."""
        inference = self._endpoint.services.inference
        try:
            return AskedModel(inference.resolve(name))
        except NotFound:
            base, separator, adapter = name.rpartition(self._lora_separator) if self._lora_separator else ("", "", "")
            if not separator:
                raise
        model = inference.resolve(base)
        if adapter not in supported.adapters_of(self._parameters(model)):
            raise NotFound(f"model '{echo(base)}' has no adapter '{echo(adapter)}'")
        return AskedModel(model, adapter)

    # Text

    async def completions(self, request: HttpRequest) -> HttpReply | StreamReply:
        """Goes on with a text, or with several. Raises TpyError."""
        body, settings = await self._read(request, requests.CompletionRequest)
        requests.check(body)
        asked = self._resolve(request, body.model, embeddings=False)
        prompts: Sequence[Prompt] = requests.prompts_of(body)
        texts: Sequence[str] = [each for each in prompts if isinstance(each, str)]
        parameters = self._parameters(asked.model)
        has_tokenizer = bool(parameters.get("tokenizer") or self._tokenizer)
        takes_tokens = supported.takes_tokens(asked.model.description, parameters, has_tokenizer=has_tokenizer)
        if not texts and (body.echo or not takes_tokens):
            texts = await self._detokenized(asked.model, prompts)
            asked = self._resolve(request, body.model, embeddings=False)  # there was time for another copy
        ranked = body.best_of is not None and body.best_of > body.choices
        generation = Generation(
            input=models.TEXT,
            stream=bool(body.stream),
            max_tokens=body.max_tokens or self._max_tokens,
            settings=settings if body.logprobs is None else {**settings, "logprobs": body.logprobs},
            choices=body.best_of or body.choices,
            logprobs=body.logprobs is not None,
            cumulative_logprob=ranked,
        )
        form = AnswerForm(
            choices=body.choices,
            asks=generation.choices,
            top_logprobs=body.logprobs,
            before=texts if body.echo else (),
            tools=ToolUse(),
        )
        return await self._generate(request, body, asked, generation, prompts if takes_tokens else texts, form)

    async def chat(self, request: HttpRequest) -> HttpReply | StreamReply:
        """Answers the last message of a conversation. Raises TpyError."""
        body, settings = await self._read(request, requests.ChatRequest)
        requests.check(body)
        asked = self._resolve(request, body.model, embeddings=False)
        takes_chat = models.MESSAGES in asked.model.description.input_by_name
        text, images, tools, takes_tools = await self._prompt(asked.model, body, takes_chat=takes_chat)
        asked = self._resolve(request, body.model, embeddings=False)  # there was time for another copy
        # A template writes them, as in vLLM's own server.
        special = {} if takes_chat else {"add_special_tokens": False}
        settings = {**special, **requests.answer_form(body), **settings, **tools.settings()}
        top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        generation = Generation(
            input=models.MESSAGES if takes_chat else models.TEXT,
            stream=bool(body.stream),
            max_tokens=body.max_completion_tokens or body.max_tokens or self._max_tokens,
            settings=settings if top_logprobs is None else {**settings, "logprobs": top_logprobs},
            choices=body.choices,
            logprobs=top_logprobs is not None,
            images=images,
        )
        form = AnswerForm(choices=body.choices, asks=body.choices, top_logprobs=top_logprobs, tools=tools)
        reply = await self._generate(request, body, asked, generation, [text], form)
        if tools.offered and not takes_tools:
            warning = '299 tpy "the chat template of the model takes no tools: they are ignored"'
            reply = msgspec.structs.replace(reply, headers=(*reply.headers, ("Warning", warning)))
        return reply

    async def _prompt(
        self, model: ResolvedModel, body: requests.ChatRequest, *, takes_chat: bool
    ) -> tuple[str, list[str], ToolUse, bool]:
        """The messages as the model's template writes them, or as it takes them itself; their images; the use of tools, and
        whether the template does something with them. In a thread: a template is a program, and reads files at first; and tools
        may be many."""
        name, parameters = model.description.name, self._parameters(model)
        images = models.IMAGE in model.description.input_by_name
        parser, parallel = self._tool_call_parser, body.parallel_tool_calls

        def render() -> tuple[str, list[str], ToolUse, bool]:
            tools = tool_use(name, parameters, parser, body.tools, body.tool_choice, parallel)
            with requests.bounded_depth():
                conversation = contents.conversation_of(body.messages, name, images=images)
                messages = conversation.messages
                if takes_chat:
                    if body.continue_final_message:
                        raise InvalidArgument(f"'continue_final_message': model '{name}' writes the prompt of a chat itself")
                    document = {"messages": messages, "tools": tools.offered} if tools.offered else messages
                    return write_long(document), conversation.images, tools, True
            template = template_of(name, parameters, self._template)
            advice = ""
            if images:
                parts, placeholder = template.takes_parts(), parameters.get(contents.PLACEHOLDER, "")
                messages = contents.for_template(messages, parts=parts, placeholder=placeholder)
                if conversation.images and not parts and not placeholder:
                    advice = f". If it takes only text, the model needs the parameter '{contents.PLACEHOLDER}'"
            check = trio.from_thread.check_cancelled
            if body.continue_final_message:
                messages = contents.marked(messages)
            text = template.render(messages, tools.offered, check, body.template_variables, advice=advice)
            if body.continue_final_message:
                text = contents.open_ended(text)
            return text, conversation.images, tools, not tools.offered or template.takes_tools()

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
        asked: AskedModel,
        generation: Generation,
        prompts: Sequence[Prompt],
        form: AnswerForm,
    ) -> HttpReply | StreamReply:
        if len(prompts) * form.asks > limits.OPENAI_PROMPTS_MAX:
            raise InvalidArgument(
                f"{len(prompts)} prompts with {form.asks} choices each are more than {limits.OPENAI_PROMPTS_MAX} choices"
            )
        description = asked.model.description
        settings = supported.settings_for(description, self._parameters(asked.model), generation)
        if asked.adapter:
            settings["lora_name"] = asked.adapter
        generation = msgspec.structs.replace(generation, settings=settings)
        options = body.stream_options or requests.StreamOptions()
        answer = AnswerMembers(
            model=body.model,
            created=self._endpoint.clock.wall_ms() // 1000,
            chat=isinstance(body, requests.ChatRequest),
            says_usage=bool(options.include_usage),
            says_counts=bool(options.include_usage and options.continuous_usage_stats),
        )
        threads = self._endpoint.threads
        arrival = Arrival()
        with ExitStack() as counted, ExitStack() as stack:
            begun = await self._begin_all(
                request, asked.model, counted, stack, lambda: models.generations(description, generation, prompts), arrival
            )
            if not body.stream:
                choices, usage = await whole_answer(begun, form, threads)
                long = sum(size_of(choice) for choice in choices) > limits.INLINE_STRING_OUTPUT_BYTES_MAX
                return await self._reply(lambda: answer.whole(choices, usage, long=long), long=long)
            events = AnswerEvents(begun, arrival, answer, form, request.path, threads)
            await events.begin()
            stack.pop_all()
        return StreamReply(body=events)

    # Embeddings

    async def embeddings(self, request: HttpRequest) -> HttpReply:
        """The embeddings of one or more texts. Raises TpyError."""
        body, members = await self._read(request, requests.EmbeddingRequest)
        model = self._resolve(request, body.model, embeddings=True).model
        settings = requests.embedding_settings(members)
        texts = requests.embedding_inputs(body)
        if not isinstance(texts[0], str) and not models.takes_tokens(model.description):
            texts = await self._detokenized(model, texts)
            model = self._resolve(request, body.model, embeddings=True).model  # there was time for another copy
        found, tokens = [], 0
        with ExitStack() as counted, ExitStack() as stack:
            make = partial(models.embeddings, model.description, texts, body.dimensions, settings)
            begun = await self._begin_all(request, model, counted, stack, make, None)
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

    def _resolve(self, request: HttpRequest, name: str, *, embeddings: bool) -> AskedModel:
        caller = request.caller
        try:
            asked = self._asked(name)
        except NotFound:
            if caller is not None:
                caller.require(INFER, name)
            raise NotFound(f"The model '{echo(name)}' does not exist or is not loaded") from None
        if caller is not None:
            caller.require(INFER, asked.model.description.name if asked.adapter else name)
        models.require(asked.model.description, embeddings=embeddings)
        return asked

    async def _begin_all(
        self,
        request: HttpRequest,
        model: ResolvedModel,
        counted: ExitStack,
        stack: ExitStack,
        make: Callable[[], list[Ask]],
        arrival: Arrival | None,
    ) -> list[GenerateResponses]:
        """Submit the requests that `make` returns, which count in the budget of bodies until `counted` is left, and are cancelled
        when `stack` is. With `arrival` one task waits there for all of them. Raises Unavailable where the budget has no room, and
        what `make` and `submit` raise."""
        with held(model):
            asks = await self._made(request, make)
            size = sum([held_bytes(inputs[:1], limits.REQUEST_BODIES_BYTES_MAX) for inputs, _ in asks])
            size += len(asks) * held_bytes(asks[0][0][1:], limits.REQUEST_BODIES_BYTES_MAX)
            bodies = self._endpoint.bodies
            if not bodies.take(size):
                raise Unavailable(BODIES_FULL)
            counted.callback(bodies.give, size)
            # Prompts share their mapping: 300 settings copied for each of 2,048 would take 37 MiB, and the collector's time.
            forwarded = self._endpoint.policy.forwarded(request.headers) or {}
            shared = {id(parameters): {**parameters, **forwarded} for parameters in {id(each): each for _, each in asks}.values()}
            begun: list[GenerateResponses] = []
            for inputs, parameters in asks:
                if len(begun) % limits.OPENAI_ASKS_AT_ONCE_MAX == limits.OPENAI_ASKS_AT_ONCE_MAX - 1:
                    await trio.lowlevel.checkpoint()
                responses = self._begin(request, model, inputs, shared[id(parameters)], arrival)
                stack.callback(responses.cancel)
                begun.append(responses)
        return begun

    def _begin(
        self,
        request: HttpRequest,
        model: ResolvedModel,
        inputs: tuple[Tensor, ...],
        parameters: dict[str, ParameterValue],
        arrival: Arrival | None,
    ) -> GenerateResponses:
        """Submit a request to the model. Raises what `submit` raises."""
        endpoint, description = self._endpoint, model.description
        now_ns = endpoint.clock.now_ns()
        record = open_record(endpoint.services.observers, request, "openai", description.name, now_ns)
        if request.record is None:
            request.record = record
        elif record is not None:
            request.further_records += (record,)
        responses = GenerateResponses(decoupled=description.decoupled, record=record, arrival=arrival)
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
