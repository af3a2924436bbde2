"""FakeEngine: an engine without a model, whose answers are known and which takes no time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tpy.backend import BackendCapabilities, BackendSettings, InstancePlacement, ModelContext
from tpy.backend.engine import Delta, Engine, EngineLimits, EngineLoad, EngineRequest, Logprob
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import InvalidArgument

BLOCK_TOKENS = 4


def text_of(prompt: str, index: int, place: int) -> str:
    """The token that a fake engine generates after a prompt, in the sequence `index`."""
    words = prompt.split() or [""]
    return f"{words[(place + index) % len(words)]} "


EMBEDDING_SIZE = 4


def embedding_of(prompt: str, dimensions: int = EMBEDDING_SIZE) -> list[float]:
    """The embedding that a fake engine gives a prompt."""
    return [float(len(prompt) % number) for number in range(2, EMBEDDING_SIZE + 2)][:dimensions]


def with_images(prompt: str, images: Sequence[bytes]) -> str:
    """The prompt that a fake engine answers when it is given images: each is a word, of its size, in place of "<image>"."""
    for image in images:
        prompt = prompt.replace("<image>", f"image{len(image)}", 1)
    return prompt


class _Sequence:
    def __init__(self, request: EngineRequest, index: int, prompt_tokens: int) -> None:
        self.request = request
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.generated = 0

    @property
    def blocks(self) -> int:
        return -(-(self.prompt_tokens + self.generated) // BLOCK_TOKENS)


class FakeEngine:
    """An `Engine`. The answer to a prompt repeats its words, one in each step, and ends with `max_tokens`, or when it has said
    the word "stop". A prompt with the word "fail" fails in its first step, one with the word "impossible" is refused.

    Sequences wait for room in the order in which they came. Of the KV cache they have as many blocks as their tokens need now;
    when it is full, the youngest one gives its blocks up, and begins anew with what it has generated.

    A prompt has the word "<image>" for each image.

    With `pooling` a prompt gets its embedding in the step in which it runs; of `dimensions` there are at most EMBEDDING_SIZE.

    `on_step` is called at the beginning of each step, and may raise, wait, or let virtual time pass.
    """

    def __init__(
        self, *, sequences: int = 4, blocks: int = 64, context: int = 100, on_step: Callable[[], object] = lambda: None
    ) -> None:
        self._sequences_max = sequences
        self._blocks = blocks
        self._context = context
        self._on_step = on_step
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()
        self._preemptions = 0
        self.is_closed = False
        self.steps = 0

    def limits(self) -> EngineLimits:
        return EngineLimits(sequences=self._sequences_max, tokens=self._blocks * BLOCK_TOKENS)

    def add(self, request: EngineRequest) -> None:
        words = request.prompt.split()
        tokens = len(request.prompt_token_ids) if request.prompt_token_ids is not None else len(words)
        if "impossible" in words:
            raise InvalidArgument("'prompt' is impossible")
        if not tokens:
            raise InvalidArgument("the prompt is empty")
        if words.count("<image>") < len(request.images):
            raise InvalidArgument(f"the prompt has no place for each of its {len(request.images)} images")
        if tokens >= self._context:
            raise InvalidArgument(f"the prompt has {tokens} tokens, at most {self._context - 1} are taken")
        dimensions = (request.pooling or {}).get("dimensions", EMBEDDING_SIZE)
        if not 1 <= dimensions <= EMBEDDING_SIZE:
            raise InvalidArgument(f"'dimensions' must be an integer from 1 to {EMBEDDING_SIZE}, got {dimensions}")
        self._waiting.extend([_Sequence(request, index, tokens) for index in range(request.n)])

    def cancel(self, request_id: int) -> None:
        self._running = [each for each in self._running if each.request.id != request_id]
        self._waiting = deque([each for each in self._waiting if each.request.id != request_id])

    def step(self) -> Sequence[Delta]:
        self._on_step()
        self.steps += 1
        self._schedule()
        deltas = list(self._generated())
        for delta in deltas:
            if delta.error is not None:
                self.cancel(delta.id)
            elif delta.finish_reason is not None:
                self._running = [each for each in self._running if (each.request.id, each.index) != (delta.id, delta.sequence)]
        return deltas

    def load(self) -> EngineLoad:
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_blocks_used=self._used(),
            kv_blocks_total=self._blocks,
            preemptions=self._preemptions,
        )

    def close(self) -> None:
        self.is_closed = True
        self._running.clear()
        self._waiting.clear()

    def _used(self) -> int:
        return sum([each.blocks for each in self._running])

    def _schedule(self) -> None:
        while len(self._running) > 1 and self._used() + len(self._running) > self._blocks:
            self._waiting.appendleft(self._running.pop())
            self._preemptions += 1
        while self._waiting and len(self._running) < self._sequences_max:
            first = self._waiting[0]
            if self._running and self._used() + first.blocks + len(self._running) + 1 > self._blocks:
                break
            self._running.append(self._waiting.popleft())

    def _generated(self) -> Iterator[Delta]:
        for each in list(self._running):
            request = each.request
            if "fail" in request.prompt.split():
                yield Delta(request.id, error=InvalidArgument("the prompt fails"))
                continue
            if request.pooling is not None:
                vector = embedding_of(request.prompt, request.pooling.get("dimensions", EMBEDDING_SIZE))
                yield Delta(request.id, prompt_tokens=each.prompt_tokens, finish_reason="stop", embedding=vector)
                continue
            text = text_of(with_images(request.prompt, request.images), each.index, each.generated)
            each.generated += 1
            reason = "stop" if text == "stop " else None
            if each.generated >= min(request.max_tokens, self._context - each.prompt_tokens):
                reason = reason or "length"
            yield Delta(
                request.id,
                text=text,
                tokens=1,
                prompt_tokens=each.prompt_tokens,
                sequence=each.index,
                finish_reason=reason,
                logprobs=[{each.generated: Logprob(-1.0, 1, text)}] if request.logprobs else None,
                logprob=-1.0,
            )


class FakeEngineBackend:
    """An `EngineBackend` of fake engines. `make` makes one for each instance; they are kept in `engines`. A model with the
    parameter `gives_embeddings` = "true" gives embeddings, one with `takes_images` = "true" takes images."""

    def __init__(self, make: Callable[[], FakeEngine] = FakeEngine) -> None:
        self.engines: list[FakeEngine] = []
        self._make = make

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(
            name="fake_engine",
            default_model_filename="",
            devices=frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_MODEL}),
            decoupled=True,
            engine=True,
        )

    def gives_embeddings(self, context: ModelContext) -> bool:
        return context.config.parameter("gives_embeddings") == "true"

    def takes_images(self, context: ModelContext) -> bool:
        return context.config.parameter("takes_images") == "true"

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        return context.config

    def load(self, context: ModelContext) -> FakeEngineBackend:
        return self

    def create_engine(self, placement: InstancePlacement) -> Engine:
        engine = self._make()
        self.engines.append(engine)
        return engine

    def unload(self) -> None:
        pass

    def close(self) -> None:
        pass


def create(settings: BackendSettings) -> FakeEngineBackend:
    """An entry point."""
    return FakeEngineBackend()
