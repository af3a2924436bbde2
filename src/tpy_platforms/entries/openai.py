"""The OpenAI frontend's entry in the table."""

from __future__ import annotations

from tpy import limits
from tpy.flag import PORT_MAX, new_flag
from tpy.frontends.table import Frontend

_FLAGS = (
    new_flag("OpenAI", "allow-openai", False, "Serve OpenAI's API, at the address of HTTP."),
    new_flag("OpenAI", "openai-port", 9000, "Port to listen on; 0 takes a free one.", minimum=0, maximum=PORT_MAX),
    new_flag(
        "OpenAI",
        "openai-restricted-api",
        (),
        "Serve these APIs only to requests that carry the header; others as --http-restricted-api says.",
        metavar="API[,API]:HEADER=VALUE",
        secret=True,
    ),
    new_flag(
        "OpenAI",
        "openai-tokenizer",
        "",
        "Tokenizer (or GGUF file), whose chat template is for models without one.",
        metavar="FOLDER",
    ),
    new_flag("OpenAI", "openai-chat-template", "", "Jinja template in place of the tokenizer's.", metavar="FILE"),
    new_flag(
        "OpenAI",
        "openai-default-max-tokens",
        limits.OPENAI_TOKENS_DEFAULT,
        "Tokens to generate for requests that do not say how many.",
        minimum=1,
    ),
    new_flag(
        "OpenAI",
        "openai-tool-call-parser",
        "none",
        "Format of tool calls in the text of models without the parameter tool_call_parser.",
        choices=("none", "llama3", "mistral", "hermes", "granite", "deepseek"),
    ),
    new_flag(
        "OpenAI",
        "openai-lora-separator",
        "_lora_",
        "Text between the names of a model and its LoRA adapter in the name that clients ask for; empty: adapters have no names.",
    ),
)

FRONTEND = Frontend(
    name="OpenAI",
    service="OpenAI HTTPService",
    module="tpy_platforms.openai.frontend",
    switch="allow-openai",
    flags=_FLAGS,
    checks_access=True,
)
