"""A prompt instance whose worker is driven by the test, step by step."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence

from tests.engine.fakes import ScriptedBackend, ScriptedModel, identity
from tpy.backend import (
    ExecutionBatch,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    Outcome,
)
from tpy_data.engine.requests.batch import Batch


def first_value(batch: ExecutionBatch | Batch) -> float:
    """The value of the first request."""
    requests = batch.requests if isinstance(batch, ExecutionBatch) else batch.tickets
    return float(requests[0].inputs["IN"].array.ravel()[0])


class FakePrompt:
    """`step` has the worker execute what it has begun, and begin the next. What it has said since is `collect`ed."""

    is_prompt = True

    def __init__(self, backend: PromptBackend, name: str) -> None:
        self.backend = backend
        self.name = name
        self.open: deque[ExecutionBatch] = deque()
        self.tokens = 0
        self.taken_back = 0
        self.at_work = False
        self.dead = False
        self.unread = False
        """It never reads what it is given from now on."""
        self.declines = False
        self.asks = False
        """The next thing that it says is for the thread."""
        self.asks_then = False
        """What it says after the next thing is for the thread."""
        self.said: deque[Outcome | int] = deque()
        """What became of batches; or how many are not begun."""
        self.unsaid: deque[ExecutionBatch] = deque()
        """Open batches that the worker is not over with."""
        self.is_stuck = False
        self._ours, self._theirs = socket.socketpair()
        self._now_ns = 0
        backend.prompt.append(self)

    @property
    def open_batches(self) -> int:
        return len(self.open)

    def fileno(self) -> int:
        return self._ours.fileno()

    def begin(self, batches: Sequence[ExecutionBatch]) -> bool:
        assert not self.open
        if self.declines:
            return False
        self.open.extend(batches)
        self.unsaid.extend(batches)
        self.tokens = len(batches) - 1
        self._start()
        self.is_stuck = self.dead
        return True

    def _start(self) -> None:
        if self.unread:
            return
        self.at_work = True
        self.backend.begun.extend([_value(request) for request in self.unsaid[0].requests])

    def step(self) -> None:
        """Execute what was begun."""
        if not self.at_work or self.dead:
            return
        batch = self.unsaid.popleft()
        self.backend.batches.append(batch)
        self._say(self.backend.execute(batch))
        self.at_work = False
        if not self.unsaid:
            return
        if not self.tokens:
            self._say(len(self.unsaid))
            self.unsaid.clear()
        else:
            self.tokens -= 1
            self._start()

    def die(self) -> None:
        """The worker is gone."""
        self.dead = True
        self._theirs.send(b"x")

    def _say(self, what: Outcome | int) -> None:
        self.said.append(what)
        self._theirs.send(b"x")

    def collect(self, take: Callable[[Outcome], None]) -> None:
        assert not self.is_stuck
        self._ours.recv(1000, socket.MSG_DONTWAIT) if self._readable() else None
        if self.asks:
            self.is_stuck = True
            return
        self._hear(take)
        self.is_stuck = self.dead or self.asks_then
        self.asks_then = False

    def _readable(self) -> bool:
        try:
            return bool(self._ours.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def _hear(self, take: Callable[[Outcome], None]) -> None:
        while self.said:
            said = self.said.popleft()
            if isinstance(said, int):
                assert said == len(self.open)
                self.open.clear()
                self.taken_back = 0
                continue
            times = self.open.popleft().times
            self._now_ns += 1
            times.start_ns, times.input_end_ns, times.output_start_ns, times.end_ns = [self.backend.now_ns()] * 4
            times.start_ns -= self.backend.took_ns
            take(said)

    def take_back(self) -> int:
        count, self.tokens = self.tokens, 0
        self.taken_back += count
        return count

    def finish(self, take: Callable[[Outcome], None]) -> None:
        self.asks = False
        while self.open:
            self._hear(take)
            if self.dead:
                raise InstanceFailure("it died", begun=not self.unread)
            self.step()
        self.is_stuck = False

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        assert not self.open
        if self.dead:
            raise InstanceFailure("it died")
        self.backend.begun.extend([_value(request) for request in batch.requests])
        self.backend.batches.append(batch)
        return self.backend.execute(batch)

    def close(self) -> None:
        assert not self.open or self.dead
        self._ours.close()
        self._theirs.close()
        self.backend.prompt.remove(self)


def _value(request: object) -> float:
    return float(request.inputs["IN"].array.ravel()[0])  # type: ignore[attr-defined]  # an ExecutionRequest


class PromptBackend(ScriptedBackend):
    """`prompt`: its instances that are there; `begun`: the values of requests whose execution has begun, in order."""

    def __init__(
        self, now_ns: Callable[[], int], execute: Callable[[ExecutionBatch], Sequence[ExecutionResult]] = identity
    ) -> None:
        super().__init__(execute)
        self.now_ns = now_ns
        self.prompt: list[FakePrompt] = []
        self.begun: list[float] = []
        self.took_ns = 0
        """What each batch is said to have taken."""

    def load(self, context: ModelContext) -> LoadedModel:
        self.on_load(context)
        return _PromptModel(self, (context.name, context.version, context.generation))


class _PromptModel(ScriptedModel):
    backend: PromptBackend

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        self.backend.on_create(placement)
        return FakePrompt(self.backend, placement.name)
