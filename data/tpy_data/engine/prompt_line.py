"""PromptLine and PromptRun: batches on an instance that needs no thread of the server's to wait for it.

Trio thread       begins a run, waits until its instance's descriptor is readable, collects what is over
instance's thread has nothing to do, unless the instance is stuck, or silent for long: then it sees to the rest of the run
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence

import trio

from tpy.backend import ExecutionBatch, InstanceFailure, ModelInstance, Outcome, PhaseTimes, PromptInstance
from tpy.limits import PROMPT_SILENCE_S_MAX, RUN_SLICE_NS_MAX
from tpy_data.engine.batch_run import BatchRun
from tpy_data.engine.exception_text import exception_text
from tpy_data.engine.executor import Worker
from tpy_data.engine.singles_run import RunOwner
from tpy_data.engine.ticket import RequestTicket

_log = logging.getLogger(__name__)

_ENDLESS_NS = 1 << 62
"""The time slice of steady runs."""


def open_line(instance: ModelInstance, worker: Worker) -> PromptLine | None:
    """The line to an instance that nobody uses yet, whose thread `worker` is; None for one that is not prompt."""
    if not isinstance(instance, PromptInstance) or not instance.is_prompt:
        return None
    try:
        # A descriptor of its own: nobody closes this one while it is waited for.
        descriptor = os.dup(instance.fileno())
    except OSError:
        return None  # too many are open: its thread can do without
    return PromptLine(instance, worker, descriptor)


class PromptLine:
    """To one instance. `run` is a task of whoever gives work to it; `close` it in any case."""

    def __init__(self, instance: PromptInstance, worker: Worker, descriptor: int) -> None:
        """From `open_line`."""
        self._instance = instance
        self._worker = worker
        self._descriptor = descriptor
        self._run: PromptRun | None = None
        self._runs_begun = 0
        self._reading = False
        self._closed = False
        self._scope = trio.CancelScope()
        self._begun: trio.Event | None = None
        self._watched: trio.Event | None = None

    async def run(self) -> None:
        """Collect what is over, and leave to the thread what takes long."""
        if self._closed:
            return
        self._reading = True
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch)
                    await self._read()
        finally:
            self._reading = False
            self.close()

    def close(self) -> None:
        """Begin nothing more; the thread sees to what is begun. Idempotent."""
        if self._run is not None:
            self._hand_over(self._run)
        if self._reading:
            self._scope.cancel()
        elif not self._closed:
            self._closed = True
            os.close(self._descriptor)

    def begin(self, batches: Sequence[BatchRun], owner: RunOwner, *, steady: bool = False) -> PromptRun | None:
        """Have these executed, one after the other, or None: they are for the thread."""
        slice_ns = _ENDLESS_NS if steady else RUN_SLICE_NS_MAX
        instance = self._instance
        if not self._reading or self._scope.cancel_called:
            return None
        try:
            if not instance.begin([ExecutionBatch(batch.tickets, batch.times) for batch in batches], slice_ns):
                return None
        except Exception as error:
            if not instance.open_batches:
                return None  # whatever it is, execute will say it
            _log.exception("an instance could not begin a batch", extra={"context": {"error": exception_text(error)}})
        run = self._run = PromptRun(instance, batches, self, owner, steady=steady)
        self._runs_begun += 1
        if instance.is_stuck:
            self._hand_over(run)
        if self._begun is not None:
            self._begun.set()
        if self._watched is not None:
            self._watched.set()
        return run

    def look(self) -> None:
        """Collect what is over now."""
        run, instance = self._run, self._instance
        if run is None:
            return
        instance.collect(run.take)
        if instance.is_stuck:
            self._hand_over(run)
        elif not instance.open_batches:
            self._run = None
            run.finished()
            return
        if run.steady:
            run.progressed()

    def _hand_over(self, run: PromptRun) -> None:
        self._run = None
        self._worker.put(run)

    async def _read(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            if self._run is not None:
                self.look()
            else:
                # What comes is for the thread, or the end.
                self._begun = trio.Event()
                await self._begun.wait()
                self._begun = None

    async def _watch(self) -> None:
        # Without a reference to the run, which would keep the tensors of one that is over.
        while True:
            if self._run is None:
                self._watched = trio.Event()
                await self._watched.wait()
                self._watched = None
            number = self._runs_begun
            await trio.sleep(PROMPT_SILENCE_S_MAX)
            if self._run is not None and self._runs_begun == number:
                self._hand_over(self._run)


class PromptRun:
    """Batches that were begun, and a Job for the instance's thread when it must see to the rest of them. `failure`, `brief` and
    `steady` are as a SinglesRun's."""

    __slots__ = (
        "_finished",
        "_first_times",
        "_instance",
        "_last_times",
        "_line",
        "_open",
        "_over",
        "_owner",
        "_returned",
        "failure",
        "slot",
        "steady",
    )

    def __init__(
        self,
        instance: PromptInstance,
        batches: Sequence[BatchRun],
        line: PromptLine,
        owner: RunOwner,
        *,
        steady: bool = False,
    ) -> None:
        self.slot = batches[0].slot
        self.failure: str | None = None
        self.steady = steady
        self._instance = instance
        self._open = deque(batches)  # without those that are over, which hold tensors: a steady run may last
        self._first_times = batches[0].times
        self._last_times: PhaseTimes | None = None
        self._line = line
        self._owner = owner
        self._returned = 0
        self._over = False
        self._finished: deque[BatchRun | None] = deque()

    def take(self, outcome: Outcome) -> None:
        """The oldest that is not over yet is over."""
        batch = self._open.popleft()
        batch.conclude(outcome)
        self._last_times = batch.times
        self._finished.append(batch)

    def begin(self) -> None:
        """It has begun long since."""

    def run(self) -> None:
        """In the instance's thread: wait for the rest."""
        try:
            self._instance.finish(self._take_and_tell if self.steady else self.take)
        except InstanceFailure as failure:
            self._fail(failure)
        except BaseException as error:
            text = f"Failed to process the request(s) for model '{self.slot.name}', message: {exception_text(error)}"
            self._fail(InstanceFailure(text))

    def progressed(self) -> None:
        """On the Trio thread: some of it is over."""
        self._owner.run_progressed(self)

    def finished(self) -> None:
        """On the Trio thread: it is over."""
        self._over = True
        self._owner.run_finished(self)

    def look(self) -> None:
        """See what is executed by now; the run may be over with that."""
        self._line.look()

    def holds(self, ticket: RequestTicket) -> bool:
        """Whether this request is one of those behind the first that is not over."""
        batches = list(self._open)
        return any(ticket in batch.tickets for batch in batches[1 : len(batches) - self._returned])

    def take_finished(self) -> list[BatchRun | None]:
        """As a SinglesRun's."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def take_waiting(self) -> int:
        """As a SinglesRun's."""
        # While its thread is at it, only the instance can tell what is not begun: `_open` lags behind.
        if not self._over:
            count = self._instance.take_back()
            self._returned += count
            return count
        not_begun = list(self._open)[: len(self._open) - self._returned]
        self._returned += len(not_begun)
        return sum([len(batch.tickets) for batch in not_begun])

    @property
    def brief(self) -> bool:
        """Whether it ended within its time slice, by the instance's times."""
        last = self._last_times
        return last is not None and last.end_ns - self._first_times.start_ns <= RUN_SLICE_NS_MAX

    @property
    def took_ns(self) -> int:
        """As a SinglesRun's, by the instance's times."""
        last = self._last_times
        return 0 if last is None else last.end_ns - last.start_ns

    def _take_and_tell(self, outcome: Outcome) -> None:
        self.take(outcome)
        self.slot.worker.tell(self.progressed)

    def _fail(self, failure: InstanceFailure) -> None:
        self.failure = str(failure)
        if self._open:
            batch = self._open[0]
            batch.fail_now(failure)
            if batch.begun:
                self._open.popleft()
                self._last_times = batch.times
                self._finished.append(batch)
