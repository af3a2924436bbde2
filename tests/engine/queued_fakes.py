"""A queued instance whose worker is driven by the test, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import trio

from tests.engine.fakes import ScriptedBackend, ScriptedModel, identity
from tpy.backend import (
    BatchListener,
    ExecutionBatch,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
    Outcome,
)
from tpy.backend.engine import EngineLimits
from tpy_data.engine.requests.batch import Batch


def first_value(batch: ExecutionBatch | Batch) -> float:
    """The value by which its first request is known."""
    requests = batch.requests if isinstance(batch, ExecutionBatch) else batch.tickets
    return float(requests[0].inputs["IN"].array.ravel()[0])


class FakeQueued:
    """`step` has the worker execute what it has started, and start the next. What it says is read in the loop's next turn."""

    end_reason = "it died"
    engine_limits: EngineLimits | None = None

    def __init__(self, backend: QueuedBackend, name: str) -> None:
        self.backend = backend
        self.name = name
        self.held: deque[ExecutionBatch] = deque()
        self.revoked = 0
        """Batches that it has not confirmed."""
        self.tokens = 0
        self.at_work = False
        self.dead = False
        self.unread = False
        """It never reads what it is given from now on."""
        self.takes = 100
        """Batches at a time."""
        self.checks = 0
        self.hangs = False
        """The next check finds that."""
        self.tells_apart = False
        """True: it tells of what it has not started by itself, after the end of the batch before."""
        self._listener: BatchListener | None = None
        self._events: deque[Outcome | int] = deque()
        """The ends of batches; or the number of those that are not started."""
        self._unsaid: deque[ExecutionBatch] = deque()
        """Open batches that the worker is not over with."""
        self._token = trio.lowlevel.current_trio_token()
        backend.living.append(self)

    @property
    def is_busy(self) -> bool:
        return bool(self.held or self.revoked)

    def begin(self, batches: Sequence[ExecutionBatch], listener: BatchListener) -> int:
        assert not self.is_busy or self.engine_limits is not None
        if self.dead:
            return 0
        batches = batches[: self.takes]
        self._listener = listener
        is_idle = not self._unsaid
        self.held.extend(batches)
        self._unsaid.extend(batches)
        self.tokens += len(batches) - is_idle
        if is_idle:
            self._start()
        return len(batches)

    def _start(self) -> None:
        if self.unread:
            return
        self.at_work = True
        self.backend.begun.extend([_value(request) for request in self._unsaid[0].requests])

    def step(self) -> None:
        """Execute what was started."""
        if not self.at_work or self.dead:
            return
        batch = self._unsaid.popleft()
        self.backend.batches.append(batch)
        self._say(self.backend.execute(batch))
        self.at_work = False
        if not self._unsaid:
            return
        if not self.tokens:
            self._say(len(self._unsaid))
            self._unsaid.clear()
        else:
            self.tokens -= 1
            self._start()

    def die(self) -> None:
        """The worker is gone."""
        self.dead = True
        self._token.run_sync_soon(self._lose)

    def _say(self, what: Outcome | int) -> None:
        self._events.append(what)
        self._token.run_sync_soon(self._read)

    def _read(self) -> None:
        while self._events:
            assert self._listener is not None
            event = self._events.popleft()
            if isinstance(event, int):
                assert not self.held
                assert event == self.revoked
                self.revoked = 0
            else:
                batch = self.held.popleft()
                times = batch.times
                times.start_ns, times.input_end_ns, times.output_start_ns, times.end_ns = [self.backend.now_ns()] * 4
                times.start_ns -= self.backend.took_ns
                self._complete(batch, event)
            if self.tells_apart:
                break
        if self._listener is not None:
            self._listener.settled()

    def _complete(self, batch: ExecutionBatch, outcome: Outcome) -> None:
        assert self._listener is not None
        self._listener.completed(batch, outcome, self.held[0] if self.held else None)

    def step_unnoticed(self) -> None:
        """Execute what was started. A thread reads it at once, as with large answers; the loop takes notice after `notice`.
        Batches begin where the one before ended, as in a worker's process."""
        batch = self.held.popleft()
        self._unsaid.popleft()
        times, now_ns = batch.times, self.backend.now_ns()
        times.start_ns = times.start_ns or now_ns
        times.input_end_ns = times.output_start_ns = times.end_ns = now_ns
        self._complete(batch, self.backend.execute(batch))
        if self._unsaid:
            self._start()

    def notice(self) -> None:
        """Have the loop take notice of all that was executed."""
        assert self._listener is not None
        self._listener.settled()

    def _lose(self) -> None:
        self._read()
        was_busy, held = self.is_busy, list(self.held)
        self.held.clear()
        self.revoked = self.tokens = 0
        if was_busy and self._listener is not None:
            self._listener.failed(InstanceFailure("it died", begun=bool(held) and not self.unread), held)
            self._listener.settled()

    def revoke(self) -> Sequence[ExecutionBatch]:
        count, self.tokens = self.tokens, 0
        self.revoked += count
        return [self.held.pop() for _ in range(count)][::-1]

    def check(self) -> float:
        self.checks += 1
        if self.hangs:
            self.dead = True
            self._lose()
        return 1.0

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        assert not self.is_busy
        if self.dead:
            raise InstanceFailure("it died")
        self.backend.begun.extend([_value(request) for request in batch.requests])
        self.backend.batches.append(batch)
        return self.backend.execute(batch)

    def close(self) -> None:
        while self.is_busy and not self.dead:
            self.step()
            self._read()
        self.backend.living.remove(self)


def _value(request: object) -> float:
    return float(request.inputs["IN"].array.ravel()[0])  # type: ignore[attr-defined]  # an ExecutionRequest


class QueuedBackend(ScriptedBackend):
    """`living`: its instances that are there; `begun`: the values of requests whose execution has begun, in order."""

    def __init__(
        self, now_ns: Callable[[], int], execute: Callable[[ExecutionBatch], Sequence[ExecutionResult]] = identity
    ) -> None:
        super().__init__(execute)
        self.now_ns = now_ns
        self.living: list[FakeQueued] = []
        self.begun: list[float] = []
        self.took_ns = 0
        """The time that each batch reports to have taken."""

    def load(self, context: ModelContext) -> LoadedModel:
        self.on_load(context)
        return _QueuedModel(self, (context.name, context.version, context.generation))


class _QueuedModel(ScriptedModel):
    backend: QueuedBackend

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        self.backend.on_create(placement)
        return FakeQueued(self.backend, placement.name)
