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
        """How long the instance was at the last batch that it executed, when it is over."""
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

    def run_progressed(self, run: Run) -> None:
        """A request of a steady run is over, another one was begun. Called on the Trio thread; the run may be over by then."""
        ...


class SinglesRun:
    """The job that goes to the instance's thread and comes back. It ends when all was executed, when its time is over, or when
    the instance has failed.

    Both threads take tickets from `_waiting`, the instance's from the front, Trio's from the back, and each is taken once: a
    deque's operations are atomic. `failure` is as a BatchRun's. `brief`: it ended within its time slice. One that is `steady`
    goes on when its time is over, and tells its owner of each request that is over: the next may take long.
    """

    __slots__ = (
        "_clock",
        "_current",
        "_finished",
        "_owner",
        "_slice_end_ns",
        "_waiting",
        "brief",
        "failure",
        "slot",
        "steady",
        "took_ns",
    )

    def __init__(
        self, slot: InstanceSlot, tickets: Sequence[RequestTicket], clock: Clock, owner: RunOwner, *, steady: bool = False
    ) -> None:
        self.slot = slot
        self.failure: str | None = None
        self.brief = False
        self.took_ns = 0
        self.steady = steady
        self._slice_end_ns = 0
        self._clock = clock
        self._owner = owner
        self._waiting = deque(tickets)
        self._finished: deque[BatchRun | None] = deque()
        self._current: BatchRun | None = None

    def begin(self) -> None:
        """The instance's thread turns to this run."""
        batch = self._current = self._next()
        if batch is not None:
            self._slice_end_ns = batch.times.start_ns + RUN_SLICE_NS_MAX

    def run(self) -> None:
        """Execute one request after the other."""
        while self.step():
            pass

    def step(self) -> bool:
        """Execute the next request. Whether there is another one, which was begun."""
        batch, self._current = self._current, None
        if batch is None:
            return False
        batch.run()
        self.failure = batch.failure
        if not batch.begun:
            self._waiting.appendleft(batch.tickets[0])
            return False
        self._finished.append(batch)
        self.took_ns = batch.took_ns
        self.brief = batch.times.end_ns <= self._slice_end_ns
        if self.failure is not None or not (self.brief or self.steady):
            return False
        self._current = self._next()
        if self._current is None:
            return False
        if self.steady:
            self.slot.worker.tell(self._progressed)
        return True

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

    def _progressed(self) -> None:
        self._owner.run_progressed(self)

    def _next(self) -> BatchRun | None:
        try:
            while (ticket := self._waiting.popleft()).abandoned:
                self._finished.append(None)
        except IndexError:
            return None
        batch = BatchRun(self.slot, (ticket,), self._clock, self._owner)
        batch.begin()
        return batch
