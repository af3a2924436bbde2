"""Bounds of the OpenAI frontend."""

from __future__ import annotations

from typing import Final

from tpy.units import MIB

OPENAI_TOKENS_DEFAULT: Final = 16
"""The default of --openai-default-max-tokens: OpenAI's for completions, and that of Triton's frontend."""

OPENAI_PROMPTS_MAX: Final = 2048
"""Prompts or inputs in a request: OpenAI's own bound for embeddings. Each is a request to the model."""

OPENAI_ELEMENTS_MAX: Final = 65_536
"""Elements of the long arrays of a large request: each is an object. Settings have some hundreds, prompts OPENAI_PROMPTS_MAX."""

OPENAI_SETTINGS_BYTES_MAX: Final = 64 * MIB
"""Settings of a request times its prompts, each of which asks the model with all of them: 32 KiB with the most prompts."""

OPENAI_SETTING_BYTES: Final = 100
"""Memory of a setting besides its content."""

OPENAI_ASKS_AT_ONCE_MAX: Final = 16
"""Prompts of a request that are given to the model before others have their turn: a millisecond or two."""

OPENAI_STOPS_MAX: Final = 16
"""Stop sequences of a request. OpenAI allows 4; models of others are asked with more."""

OPENAI_TEXT_CHARACTERS_MAX: Final = 16 * 1024 * 1024
"""Text of an answer that does not stream, which is collected in memory: far above what models write."""

OPENAI_TOKENIZER_BYTES_MAX: Final = 16 * MIB
"""A tokenizer's configuration or chat template: ten times the largest that are known."""

OPENAI_TEMPLATES_MAX: Final = 64
"""Compiled chat templates that are kept: about one for each model that is served."""

OPENAI_TOOL_CALLS_CHARACTERS_MAX: Final = 128 * 1024
"""Text of calls of tools, which is held back until it is complete: the bound of Triton's frontend. Longer text is text."""

OPENAI_TEMPLATE_S_MAX: Final = 10.0
"""Processor time of a chat template for one conversation: the longest that bodies have room for take a second."""

OPENAI_PROMPT_CHARACTERS_MAX: Final = 256 * MIB
"""Text that a chat template writes, or has in one value: above what it makes of the largest body."""

OPENAI_TEMPLATE_COUNT_MAX: Final = 10_000
"""Counts and widths that filters and methods of text get in a chat template: what they make has that many parts."""
