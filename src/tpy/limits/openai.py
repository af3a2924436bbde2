"""Bounds of the OpenAI frontend."""

from __future__ import annotations

from typing import Final

OPENAI_TOKENS_DEFAULT: Final = 16
"""The default of --openai-default-max-tokens: OpenAI's for completions, and that of Triton's frontend."""

OPENAI_PROMPTS_MAX: Final = 2048
"""Prompts or inputs in a request: OpenAI's own bound for embeddings. Each is a request to the model."""

OPENAI_STOPS_MAX: Final = 16
"""Stop sequences of a request. OpenAI allows 4; models of others are asked with more."""

OPENAI_TEXT_CHARACTERS_MAX: Final = 16 * 1024 * 1024
"""Text of an answer that does not stream, which is collected in memory: far above what models write."""

OPENAI_TEMPLATES_MAX: Final = 64
"""Compiled chat templates that are kept: about one for each model that is served."""

OPENAI_TOOL_CALLS_CHARACTERS_MAX: Final = 128 * 1024
"""Text of calls of tools, which is held back until it is complete: the bound of Triton's frontend. Longer text is text."""
