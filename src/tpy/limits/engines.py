"""Bounds of engines, which generate token by token."""

from __future__ import annotations

from typing import Final

from tpy.units import MIB

ENGINE_QUEUE_MAX: Final = 4096
"""Requests that wait for room in an engine, at each priority, where the model's configuration says nothing. At 16 at a time and
two seconds each, the last one waits for eight minutes."""

ENGINE_N_MAX: Final = 128
"""Sequences of one request (`n`)."""

ENGINE_PROMPT_BYTES_MAX: Final = 16 * MIB
"""Of a prompt. A tokenizer takes about a second for it; no engine has a context of more tokens."""

ENGINE_LOGPROBS_MAX: Final = 20
"""Alternatives to a token, as OpenAI's and vLLM's default."""

ENGINE_BYTES_PER_TOKEN: Final = 3
"""Of a prompt, for the estimate of its tokens when room is looked for: English has about 4, code and other languages fewer."""
