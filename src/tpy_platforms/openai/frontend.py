"""The implementation of the OpenAI frontend in the table: its options, and the port."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from quart_trio import QuartTrio

from tpy import limits
from tpy.flag import Value, read_values
from tpy.frontends.header_pattern import checked_pattern
from tpy.frontends.http.app import Routes, bare_app
from tpy.frontends.http.control import ControlApi
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.options import HttpOptions, PortValues, parse_restricted_apis, read_port
from tpy.frontends.http.serving import application_port, serving
from tpy.frontends.restrictions import parse_restricted
from tpy_platforms.openai.answers import error_reply, refusal_reply
from tpy_platforms.openai.api import OpenAiApi
from tpy_platforms.openai.templates import ChatTemplate, read_template, read_tokenizer


class OpenAiOptions(HttpOptions, frozen=True, kw_only=True):
    """The options of an HTTP port; a chat template, the folder of a tokenizer and a parser of tool calls for models without them;
    what separates the name of an adapter from its model's; and the default number of tokens."""

    template: ChatTemplate | None = None
    tokenizer: str = ""
    tool_call_parser: str = ""
    lora_separator: str = ""
    max_tokens: int = limits.OPENAI_TOKENS_DEFAULT


Options = OpenAiOptions


class _Values(PortValues, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    http_header_forward_pattern: str
    openai_port: int
    openai_restricted_api: tuple[str, ...]
    openai_tokenizer: str
    openai_chat_template: str
    openai_default_max_tokens: int
    openai_tool_call_parser: str
    openai_lora_separator: str


def read_options(values: Mapping[str, Value]) -> OpenAiOptions:
    """See `tpy.frontends.table.Implementation`."""
    v = read_values(values, _Values)
    template = read_tokenizer(v.openai_tokenizer, source="--openai-tokenizer") if v.openai_tokenizer else None
    if v.openai_chat_template:
        text = read_template(v.openai_chat_template, flag="openai-chat-template")
        template = ChatTemplate(text=text, tokens={} if template is None else template.tokens)
    return OpenAiOptions(
        **read_port(values, v),
        port=v.openai_port,
        header_forward_pattern=checked_pattern(v.http_header_forward_pattern, flag="http-header-forward-pattern"),
        # The later ones win: a key of this port instead of HTTP's.
        restricted=(
            *parse_restricted_apis(v.http_restricted_api),
            *parse_restricted(v.openai_restricted_api, flag="openai-restricted-api", kind="api"),
        ),
        template=template,
        tokenizer=v.openai_tokenizer,
        max_tokens=v.openai_default_max_tokens,
        lora_separator=v.openai_lora_separator,
        tool_call_parser="" if v.openai_tool_call_parser == "none" else v.openai_tool_call_parser,
    )


def create_app(endpoint: InferEndpoint, *, options: OpenAiOptions) -> QuartTrio:
    """The application with all routes of the port."""
    app = bare_app(refusal_reply)
    routes = Routes(app, endpoint, protocol="openai", refuse=error_reply)
    api = OpenAiApi(
        endpoint,
        template=options.template,
        max_tokens=options.max_tokens,
        tool_call_parser=options.tool_call_parser,
        tokenizer=options.tokenizer,
        lora_separator=options.lora_separator,
    )
    control = ControlApi(endpoint.services, threads=endpoint.threads)
    # The model is in the body: the handlers ask for the role.
    routes.add("inference", "/v1/completions", access="", POST=api.completions)
    routes.add("inference", "/v1/chat/completions", access="", POST=api.chat)
    routes.add("inference", "/v1/embeddings", access="", POST=api.embeddings)
    # For whoever may ask them, unlike an index of the repository.
    routes.add("model-repository", "/v1/models", access="metadata", GET=api.models)
    routes.add("model-repository", "/v1/models/<model>", access="metadata", GET=api.model)
    routes.add("model-repository", "/v1/models/<model>/load", POST=control.load)
    routes.add("model-repository", "/v1/models/<model>/unload", POST=control.unload)
    routes.add("health", "/health/ready", GET=control.ready)
    routes.add("statistics", "/metrics", GET=api.metrics)
    return app


serve = serving(partial(application_port, create_app, name="OpenAI", refuse=refusal_reply))
