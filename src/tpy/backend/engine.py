"""The contract of engines: backends whose models generate token by token, many sequences at a time.

A backend executes a batch and returns; an engine takes sequences in and out at every step. It says so with
`BackendCapabilities.engine`, and its `load` returns an `EngineModel`. Who waits, and who may go first, is the server's: it gives
an engine no more than `Engine.limits` says. What is computed in a step is the engine's. Inputs and outputs are the server's, too
(those of Triton's vLLM backend), so that a model moves between engines by one line of its configuration.

Threads: `load` runs in a loader thread, `unload` in another or in an unloader thread. Everything of an Engine runs in the thread
of its loop, one call at a time, but `limits`, which is called once, before the first `add`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from tpy.backend.contract import BackendCapabilities, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.errors import TpyError


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The room of an engine: the number of sequences at a time, and of their tokens together, prompts and what is generated (0:
    any number)."""

    sequences: int
    tokens: int = 0


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """An engine now. `running` sequences take part in a step, `waiting` ones do not yet. Of its KV cache, blocks. The last four
    count since it was made: tokens of prompts that were looked up in the prefix cache, those of them that were found there,
    sequences that had to give up their blocks for others, and tokens of prompts that were computed."""

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to generate. `id` is the server's, and new. The prompt is text, or tokens if `prompt_token_ids` is there.
    `sampling` has the names and meanings of vLLM's SamplingParams; there is always `max_tokens`, and `n` sequences are asked for.
    `logprobs`: those of the tokens are wanted.

    `images` are files (PNG, JPEG, WebP, GIF, BMP), in the order of their places in the prompt. Only an `ImageBackend` gets such
    requests. Their contents are not checked: a small file may have any number of pixels.

    With `pooling` the embedding of the prompt is asked for, and nothing is generated: its settings have the names and meanings of
    vLLM's PoolingParams. Only an `EmbeddingBackend` gets such requests."""

    id: int
    prompt: str
    prompt_token_ids: tuple[int, ...] | None = None
    sampling: Mapping[str, Any] = {}
    n: int = 1
    max_tokens: int = 16
    logprobs: bool = False
    pooling: Mapping[str, Any] | None = None
    images: tuple[bytes, ...] = ()


class Logprob(NamedTuple):
    """Of one token that could have been next: `rank` 1 is the likeliest."""

    logprob: float
    rank: int | None
    text: str | None


class Delta(NamedTuple):
    """The tokens that a step has added to the sequence `sequence` of the request `id`. A `finish_reason` ("stop", "length", ...)
    or an `error` says that it was its last; an error ends all sequences of the request. `prompt_tokens` is the length of the
    prompt.

    `logprobs` has an entry for each token, the token that was chosen among them, by token; None if they were not asked for.
    `logprob` is the sum over the tokens.

    A request with `pooling` has one delta, without tokens: the `embedding` with a `finish_reason`, or an error.
    """

    id: int
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    sequence: int = 0
    finish_reason: str | None = None
    logprobs: Sequence[Mapping[int, Logprob]] | None = None
    logprob: float = 0.0
    error: TpyError | None = None
    embedding: Sequence[float] | None = None


class Engine(Protocol):
    """One engine, with its weights, KV cache and device."""

    def limits(self) -> EngineLimits:
        """Its room."""
        ...

    def add(self, request: EngineRequest) -> None:
        """Take part in the next steps with this request. Raises TpyError for one that it cannot run, InvalidArgument with the
        name of what is wrong where it is the caller's fault; then it knows nothing of it."""
        ...

    def cancel(self, request_id: int) -> None:
        """Nobody waits for it any more: its blocks are free when this returns, or with the next step. No delta of it follows.
        No-op for a request that has ended."""
        ...

    def step(self) -> Sequence[Delta]:
        """Compute the next tokens of the sequences that it has. It is called while there is any request that has not ended; an
        exception ends the engine, and every request that it has."""
        ...

    def load(self) -> EngineLoad:
        """Its state. Called after each step: cheap."""
        ...

    def close(self) -> None:
        """Release everything, also of requests that have not ended. Called once."""
        ...


class EngineModel(Protocol):
    """A loaded version: what its engines share."""

    def create_engine(self, placement: InstancePlacement) -> Engine:
        """Make an engine. Called in the thread that it will run in. Raises TpyError with the reason when it cannot."""
        ...

    def unload(self) -> None:
        """Release what is shared. Called once, after every engine was closed."""
        ...


class EngineBackend(Protocol):
    """One backend of engines. As `Backend`, and made by the same kind of entry point; `capabilities.engine` is true."""

    @property
    def capabilities(self) -> BackendCapabilities: ...

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        """As `Backend.auto_complete`. Inputs, outputs and the transaction policy are filled in already."""
        ...

    def load(self, context: ModelContext) -> EngineModel:
        """As `Backend.load`."""
        ...

    def close(self) -> None:
        """As `Backend.close`."""
        ...


@runtime_checkable
class EmbeddingBackend(Protocol):
    """An EngineBackend may have this as well: one with models that give embeddings in place of text."""

    def gives_embeddings(self, context: ModelContext) -> bool:
        """Returns True for a model whose requests all have `pooling`. Called before `auto_complete` and before `load`. Raises
        TpyError."""
        ...


@runtime_checkable
class ImageBackend(Protocol):
    """An EngineBackend may have this as well: one with models that generate text from text and images."""

    def takes_images(self, context: ModelContext) -> bool:
        """Returns True for a model whose requests may have `images`. Called before `auto_complete` and before `load`. Raises
        TpyError."""
        ...
