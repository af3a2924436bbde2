"""StepLoop: the requests of one engine, from the batch that brings them to their last response."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from tpy.backend import ExecutionRequest, ExecutionResult, ResponseSender
from tpy.backend.engine import Delta, Engine, EngineLoad
from tpy.backend.instances import StepHost
from tpy.errors import Internal, TpyError
from tpy_data.backends.engines.metrics import EngineMetrics, RequestTimes
from tpy_data.exception_text import exception_text
from tpy_data.generation.core.answering import GeneratedAnswer
from tpy_data.generation.core.asking import QUEUED_NS, asked_of
from tpy_data.generation.core.embedding import EmbeddingAnswer, embedding_asked_of

Answer = GeneratedAnswer | EmbeddingAnswer


class Open:
    """A request that has not ended."""

    __slots__ = ("answer", "request", "sender", "times")

    def __init__(self, request: ExecutionRequest, sender: ResponseSender, answer: Answer, started_ns: int) -> None:
        self.request = request
        self.sender = sender
        self.answer = answer
        self.times = RequestTimes(started_ns)


class NoHost:
    """A `StepHost` for an engine in the server's process."""

    def is_quiet(self) -> bool:
        """As `StepHost.is_quiet`."""
        return True

    def sending_together(self) -> AbstractContextManager[None]:
        """As `StepHost.sending_together`."""
        return contextlib.nullcontext()

    def limit_step(self, seconds: float) -> None:
        """As `StepHost.limit_step`: the process of a server is not ended."""


_NO_HOST: Final = NoHost()


class StepLoop:
    """Turns: take what has come and what was cancelled, have the engine step, send what there is room for.

    `give` may be called by any thread, `turn` by that of the engine, and `fail` by any one: nothing more is sent then by others.
    With `embeds` its requests ask for embeddings, with `takes_images` they may have images.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: EngineMetrics,
        now_ns: Callable[[], int],
        *,
        embeds: bool = False,
        takes_images: bool = False,
    ) -> None:
        self._engine = engine
        self._embeds = embeds
        self._takes_images = takes_images
        self._metrics = metrics
        self._now_ns = now_ns
        self._came: deque[tuple[ExecutionRequest, ResponseSender, int]] = deque()
        self._open: dict[int, Open] = {}
        self._numbers = itertools.count(1)
        self.failure: TpyError | None = None
        self.step_began_ns = 0
        """0 while the engine does not step."""

    @property
    def is_idle(self) -> bool:
        """True while there is nothing to do."""
        return not self._came and not self._open

    def give(self, requests: Sequence[ExecutionRequest]) -> None:
        """Requests of a decoupled model, which have senders."""
        now_ns = self._now_ns()
        for request in requests:
            sender = request.sender
            if sender is None:
                raise Internal("a request to an engine has no sender")
            queued_ns = request.parameters.get(QUEUED_NS)
            came_ns = queued_ns if isinstance(queued_ns, int) and 0 <= queued_ns <= now_ns else now_ns
            self._came.append((request, sender, came_ns))
        if self.failure is not None:  # maybe after `fail` has looked
            self._refuse_all(self.failure)

    def turn(self, host: StepHost = _NO_HOST, limit_s: float = 0) -> None:
        """One round, whose step has a limit. Raises what the engine raises when it steps: it has come to its end."""
        self._drop_cancelled()
        while self._came and self.failure is None:
            self._add(*self._came.popleft())
        if not self._open:
            self._metrics.idle(self._engine.load())
            return
        deltas: Sequence[Delta] = ()
        self.step_began_ns = self._now_ns()
        host.limit_step(limit_s)
        try:
            deltas = self._engine.step()
        finally:
            host.limit_step(0)
            self.step_began_ns = 0
        if self.failure is not None:
            return
        now_ns = self._now_ns()
        for delta in deltas:
            known = self._open.get(delta.id)
            if known is not None:
                known.answer.add(delta)
                if delta.tokens:
                    self._metrics.generated(known.times, known.answer.prompt_tokens, delta.tokens, now_ns)
                elif delta.embedding is not None:
                    self._metrics.embedded(known.answer.prompt_tokens)
        with host.sending_together():
            for number, known in list(self._open.items()):
                self._send(number, known, now_ns)
        load = self._engine.load()
        if self._open:
            self._metrics.stepped(load, now_ns)
        else:
            self._metrics.idle(load)

    def load(self) -> EngineLoad:
        """That of the engine. In its thread."""
        return self._engine.load()

    def fail(self, error: TpyError) -> None:
        """The engine is over, and so is every request that it has, with this error."""
        self.failure = error
        self._refuse_all(error)

    def _add(self, request: ExecutionRequest, sender: ResponseSender, came_ns: int) -> None:
        if request.is_cancelled():
            _end(sender, None)
            return
        number = next(self._numbers)
        answer: Answer
        try:
            if self._embeds:
                embedding = embedding_asked_of(number, request.inputs)
                answer, generation = EmbeddingAnswer(embedding), embedding.request
            else:
                asked = asked_of(number, request.inputs, request.parameters, takes_images=self._takes_images)
                answer, generation = GeneratedAnswer(asked), asked.request
            self._engine.add(generation)
        except TpyError as error:
            _end(sender, ExecutionResult(error=error))
        except Exception as error:
            _end(sender, ExecutionResult(error=Internal(f"the engine refused the request: {exception_text(error)}")))
        else:
            self._open[number] = Open(request, sender, answer, came_ns)

    def _drop_cancelled(self) -> None:
        for number, known in list(self._open.items()):
            if known.request.is_cancelled():
                self._engine.cancel(number)
                self._open.pop(number, None)
                _end(known.sender, None)

    def _send(self, number: int, known: Open, now_ns: int) -> None:
        answer = known.answer
        if answer.is_finished:
            self._open.pop(number, None)
            if answer.error is not None:
                self._engine.cancel(number)  # its other sequences
            else:
                self._metrics.finished(known.times, now_ns)
            _end(known.sender, answer.take(has_room=True))
            return
        result = answer.take(has_room=not known.sender.is_full())
        if result is not None:
            with contextlib.suppress(ValueError):
                known.sender.send(result, final=False, wait=False)

    def _refuse_all(self, error: TpyError) -> None:
        result = ExecutionResult(error=error)
        while True:
            try:
                _, known = self._open.popitem()
            except KeyError:
                break
            _end(known.sender, result)
        while True:
            try:
                _, sender, _ = self._came.popleft()
            except IndexError:
                return
            _end(sender, result)


def _end(sender: ResponseSender, result: ExecutionResult | None) -> None:
    """The last response, unless there was one."""
    with contextlib.suppress(ValueError):
        sender.send(result, final=True, wait=False)
