"""Bounds of engines, which generate token by token."""

from __future__ import annotations

from typing import Final

from tpy.units import KIB, MIB

ENGINE_QUEUE_MAX: Final = 4096
"""Requests that wait for an engine at each priority. At 16 at a time of two seconds, the last one waits for eight minutes."""

ENGINE_N_MAX: Final = 128
"""Sequences of one request (`n`)."""

ENGINE_PROMPT_BYTES_MAX: Final = 16 * MIB
"""Of a prompt. A tokenizer takes about a second for it."""

ENGINE_LOGPROBS_MAX: Final = 20
"""Alternatives to a token, as OpenAI's and vLLM's default."""

ENGINE_BYTES_PER_TOKEN: Final = 3
"""Of a prompt, for the estimate of its tokens when room is looked for: English has about 4, code and other languages fewer."""

ENGINE_IMAGES_MAX: Final = 32
"""Images of a request. A model may take fewer: most were trained with one to eight."""

ENGINE_IMAGES_BYTES_MAX: Final = 32 * MIB
"""Of the files of a request's images together. Photographs have 2 to 8 MiB."""

ENGINE_PIXELS_MAX: Final = 50_000_000
"""Of a request's images together: 150 MB as RGB. The sensor of a camera has 12 to 50 million; models scale images down to one
million or two."""

ENGINE_TOKENS_PER_IMAGE: Final = 576
"""For the estimate of a prompt's tokens: those of LLaVA 1.5. Other models make 64 to some thousands."""

GGUF_HEADER_BYTES_MAX: Final = 64 * MIB
"""The header of a GGUF file: vocabularies of 256,000 tokens with their merges take 20 MiB."""

GGUF_ITEMS_MAX: Final = 2_000_000
"""Keys, texts and tensors in the header of a GGUF file: two for each token, and more than the largest vocabularies have."""

ENGINE_GRAMMAR_BYTES_MAX: Final = 128 * KIB
"""Of a schema, expression, grammar or list of choices, as JSON. OpenAI's schemas have at most 120,000 characters."""

ENGINE_GRAMMAR_DEPTH_MAX: Final = 200
"""Of objects and arrays in a schema. Compilers of grammars recurse, and take memory by the square of the depth: 20,000 levels
end a process."""

ENGINE_GRAMMAR_GROUPS_MAX: Final = 1000
"""Opening parentheses in expressions and grammars, which may all be nested: 30,000 end a process."""
