"""ProcessChannel: batches on an instance that executes them elsewhere, without a thread of the server's that waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import trio

from tpy.backend import InstanceFailure, LimitedInstance, Outcome, QueuedInstance
from tpy.clock import Clock
from tpy_data.engine.channels.channel import Report, ReportRule, not_opened
from tpy_data.engine.requests.batch import Batch
from tpy_data.executors.executor import Worker

_Completed = tuple[Batch, Outcome, Batch | None]
_Failed = tuple[InstanceFailure, Sequence[Batch]]


class ProcessChannel:
    """An `InstanceChannel`, and the `BatchListener` of its instance: a way through begins with `give`, which has the instance
    begin the batch, and comes back with `completed` and `settled`, which lead to the report.

    The instance holds what it was given at once; the others are in `_waiting` until it is idle, but an engine is given them at
    once: it takes requests between two of its steps, and what waits for an answer from it would miss a step. Its events are
    queued by `completed` and `failed`, and taken on the Trio thread.
    """

    def __init__(self, instance: QueuedInstance, worker: Worker, clock: Clock) -> None:
        """Of an instance that nobody uses yet, whose thread `worker` is. `close` it in any case."""
        self._instance = instance
        self._is_engine = isinstance(instance, LimitedInstance) and instance.engine_limits is not None
        self._worker = worker
        self._clock = clock
        self._report: Report = not_opened
        self._thread = threading.get_ident()
        self._waiting: deque[Batch] = deque()
        self._events: deque[_Completed | _Failed] = deque()
        self._finished: list[Batch] = []
        self._rule = ReportRule()
        self._is_report_due = False
        self._has_failed = False
        self._failure: str | None = None  # that was not reported yet
        self._was_begun: trio.Event | None = None
        self._scope = trio.CancelScope()

    def open(self, report: Report) -> None:
        """As `InstanceChannel.open`."""
        self._report = report

    async def run(self) -> None:
        """Look at an instance that is silent, now and then."""
        with self._scope:
            while True:
                if not self._instance.is_busy:
                    self._was_begun = trio.Event()
                    await self._was_begun.wait()
                    self._was_begun = None
                await trio.sleep(self._instance.check())

    def close(self) -> None:
        """As `InstanceChannel.close`: the instance is over with what it has before it is closed."""
        self._scope.cancel()

    def give(self, batches: Sequence[Batch]) -> None:
        """As `InstanceChannel.give`."""
        self._waiting.extend(batches)
        self._begin()

    def revoke(self) -> Sequence[Batch]:
        """As `InstanceChannel.revoke`."""
        self._take_events()
        self.report()
        revoked = [*self._instance.revoke(), *self._waiting]
        self._waiting.clear()
        return revoked

    def report(self) -> None:
        """Report what is over."""
        self._is_report_due = False
        failure, self._failure = self._failure, None
        batches, self._finished = self._finished, []
        if batches or failure is not None:
            self._report(batches, failure)

    # Events of the instance

    def completed(self, batch: Batch, outcome: Outcome, following: Batch | None) -> None:
        """As `BatchListener.completed`. The instance began with the one behind it then, not when the Trio thread takes notice."""
        if following is not None and following.notes_begin:
            following.begin(batch.times.end_ns)
        self._events.append((batch, outcome, following))

    def failed(self, failure: InstanceFailure, held: Sequence[Batch]) -> None:
        """As `BatchListener.failed`."""
        self._events.append((failure, held))

    def settled(self) -> None:
        """As `BatchListener.settled`."""
        if threading.get_ident() == self._thread:
            self._go_on()
        else:
            self._worker.run_sync_soon(self._go_on)

    # On the Trio thread

    def _go_on(self) -> None:
        self._take_events()
        if self._is_report_due:
            self.report()
        if self._waiting:
            self._begin()

    def _begin(self) -> None:
        """Give the instance what waits, if it is idle or an engine. Not while events are queued: one may be its failure, and what
        that gives back goes before what waits."""
        while self._waiting and not self._has_failed and not self._events and (self._is_engine or not self._instance.is_busy):
            if self._waiting[0].notes_begin:  # responses of a decoupled model are counted from now on
                self._waiting[0].begin(self._clock.now_ns())
            count = self._instance.begin(tuple(self._waiting), self)
            if not count:
                self._fail(InstanceFailure(self._instance.end_reason, begun=False), ())
                self._worker.run_sync_soon(self.report)  # no report inside of `give`
                return
            for _ in range(count):
                self._waiting.popleft()
            if self._was_begun is not None:
                self._was_begun.set()

    def _take_events(self) -> None:
        """Take the events that were queued."""
        while self._events:
            event = self._events.popleft()
            if len(event) == 2:  # of type _Failed
                self._fail(*event)
                continue
            batch, outcome, following = event
            batch.completed(outcome)
            self._finished.append(batch)
            if self._rule.is_due(batch, is_last=following is None):
                self._is_report_due = True

    def _fail(self, failure: InstanceFailure, held: Sequence[Batch]) -> None:
        if held:
            oldest, *others = held
            oldest.fail(failure, self._clock)
            if failure.begun:
                self._finished.append(oldest)
            else:
                others.insert(0, oldest)
            self._waiting.extendleft(reversed(others))
        self._has_failed = self._is_report_due = True
        self._failure = str(failure)
