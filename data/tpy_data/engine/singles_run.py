"""SinglesRun: requests that an instance executes one after the other, each as a batch of its own, for one hand-over."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from tpy.clock import Clock
from tpy.limits import RUN_SLICE_NS_MAX
from tpy_data.engine.batch_run import BatchOwner, BatchRun, InstanceSlot
from tpy_data.engine.ticket import RequestTicket


class Run(Protocol):
    """Batches that an instance was given together. Used on the Trio thread."""

    @property
    def slot(self) -> InstanceSlot: ...
    @property
    def failure(self) -> str | None:
        """Why the instance can run nothing any more, when it is over."""
        ...

    @property
    def brief(self) -> bool:
        """Whether it ended within its time slice."""
        ...

    @property
    def took_ns(self) -> int:
        """How long the instance was at what it has executed, when it is over."""
        ...

    def look(self) -> None:
        """See what is executed by now; the run may be over with that."""
        ...

    def take_finished(self) -> list[BatchRun | None]:
        """What was executed since the last call, in order; None for a request that had ended before its turn."""
        ...

    def take_waiting(self) -> int:
        """Have it begin no further request. Returns how many it has not begun, beyond those of earlier calls."""
        ...

    def holds(self, ticket: RequestTicket) -> bool:
        """Whether it would execute this request even when that ends before its turn."""
        ...


class RunOwner(BatchOwner, Protocol):
    """Who takes finished runs."""

    def run_finished(self, run: Run) -> None:
        """Called on the Trio thread."""
        ...


class SinglesRun:
    """The job that goes to the instance's thread and comes back. It ends when all was executed, when its time is over, or when
    the instance has failed.

    Both threads take tickets from `_waiting`, the instance's from the front, Trio's from the back, and each is taken once: a
    deque's operations are atomic. `failure` is as a BatchRun's. `brief`: it ended within its time slice.
    """

    __slots__ = ("_clock", "_current", "_finished", "_owner", "_waiting", "brief", "failure", "slot", "took_ns")

    def __init__(self, slot: InstanceSlot, tickets: Sequence[RequestTicket], clock: Clock, owner: RunOwner) -> None:
        self.slot = slot
        self.failure: str | None = None
        self.brief = False
        self.took_ns = 0
        self._clock = clock
        self._owner = owner
        self._waiting = deque(tickets)
        self._finished: deque[BatchRun | None] = deque()
        self._current: BatchRun | None = None

    def begin(self) -> None:
        """The instance's thread turns to this run."""
        self._current = self._next()

    def run(self) -> None:
        """Execute one request after the other."""
        batch, self._current = self._current, None
        if batch is None:
            return
        start_ns = batch.times.start_ns
        while batch is not None:
            batch.run()
            self._finished.append(batch)
            self.failure = batch.failure
            self.took_ns = batch.times.end_ns - start_ns
            self.brief = self.took_ns <= RUN_SLICE_NS_MAX
            if self.failure is not None or not self.brief:
                return
            batch = self._next()

    def look(self) -> None:
        """Nothing to be done: the instance's thread sees to it."""

    def holds(self, ticket: RequestTicket) -> bool:
        """Whether it would be executed though it has ended: never, the instance's thread looks before it begins."""
        return False

    def finished(self) -> None:
        """Back on the Trio thread."""
        self._owner.run_finished(self)

    def take_finished(self) -> list[BatchRun | None]:
        """Trio thread: what was executed since the last call, in order; None for a request that had ended before its turn."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def take_waiting(self) -> int:
        """Trio thread: have it begin no further request. Returns how many it has not begun."""
        count = 0
        try:
            while True:
                self._waiting.pop()
                count += 1
        except IndexError:
            return count

    def _next(self) -> BatchRun | None:
        try:
            while (ticket := self._waiting.popleft()).abandoned:
                self._finished.append(None)
        except IndexError:
            return None
        batch = BatchRun(self.slot, (ticket,), self._clock, self._owner)
        batch.begin()
        return batch
