"""ProcessChannel: batches on an instance that executes them elsewhere, without a thread of the server's that waits for it."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence

import trio

from tpy.backend import InstanceFailure, ModelInstance, Outcome, QueuedInstance
from tpy.clock import Clock
from tpy_data.engine.channels.channel import InstanceChannel, Report, ReportRule, ThreadChannel, not_opened
from tpy_data.engine.requests.batch import Batch
from tpy_data.executors.executor import Worker


def open_channel(instance: ModelInstance, worker: Worker, clock: Clock) -> InstanceChannel:
    """A channel to an instance that nobody uses yet, whose thread `worker` is. `close` it in any case."""
    if isinstance(instance, QueuedInstance):
        return ProcessChannel(instance, worker, clock)
    return ThreadChannel(instance, worker, clock)


class ProcessChannel:
    """An `InstanceChannel`, and the `BatchListener` of its instance.

    All batches that were given and are not over are in `_batches`, of which the instance has the first `_begun`; further ones it
    gets when it is over with those. Its events are queued by `completed` and `failed`, and taken on the Trio thread.
    """

    def __init__(self, instance: QueuedInstance, worker: Worker, clock: Clock) -> None:
        """From `open_channel`."""
        self._instance = instance
        self._worker = worker
        self._clock = clock
        self._report: Report = not_opened
        self._thread = threading.get_ident()
        self._batches: deque[Batch] = deque()
        self._begun = 0
        self._events: deque[Outcome | InstanceFailure] = deque()
        self._finished: list[Batch] = []
        self._rule = ReportRule()
        self._is_report_due = False
        self._has_failed = False
        self._failure: str | None = None  # that was not reported yet
        self._something_begun: trio.Event | None = None
        self._scope = trio.CancelScope()

    def open(self, report: Report) -> None:
        """As `InstanceChannel.open`."""
        self._report = report

    async def run(self) -> None:
        """Look at an instance that is silent, now and then."""
        with self._scope:
            while True:
                if not self._begun:
                    self._something_begun = trio.Event()
                    await self._something_begun.wait()
                    self._something_begun = None
                await trio.sleep(self._instance.check())

    def close(self) -> None:
        """As `InstanceChannel.close`: the instance is over with what it has before it is closed."""
        self._scope.cancel()

    def give(self, batches: Sequence[Batch]) -> None:
        """As `InstanceChannel.give`."""
        self._batches.extend(batches)
        self._begin()

    def revoke(self) -> Sequence[Batch]:
        """As `InstanceChannel.revoke`."""
        self._take_events()
        self.report()
        kept = self._begun
        if kept and not self._has_failed:
            kept = self._begun = kept - self._instance.revoke()
        revoked = list(itertools.islice(self._batches, kept, None))
        while len(self._batches) > kept:
            self._batches.pop()
        return revoked

    def report(self) -> None:
        """Report what is over."""
        self._is_report_due = False
        failure, self._failure = self._failure, None
        batches, self._finished = self._finished, []
        if batches or failure is not None:
            self._report(batches, failure)

    # Events of the instance

    def completed(self, outcome: Outcome) -> None:
        """As `BatchListener.completed`."""
        self._events.append(outcome)

    def failed(self, failure: InstanceFailure) -> None:
        """As `BatchListener.failed`."""
        self._events.append(failure)

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
        self._begin()

    def _begin(self) -> None:
        """Give the instance what waits, if it is over with what was before."""
        if not self._batches or self._begun or self._has_failed or self._events or self._instance.open_batches:
            return
        if self._batches[0].notes_begin:
            self._turn_to_first()
        count = self._instance.begin(tuple(self._batches), self)
        if not count:
            self._fail(InstanceFailure(self._instance.end_reason, begun=False))
            self._worker.run_sync_soon(self.report)  # no report inside of `give`
            return
        self._begun = count
        if self._something_begun is not None:
            self._something_begun.set()

    def _turn_to_first(self) -> None:
        """Note when it is begun: responses of a decoupled model are counted from now on."""
        self._batches[0].begin(self._clock.now_ns())

    def _take_events(self) -> None:
        """Take the events that were queued."""
        while self._events:
            event = self._events.popleft()
            if isinstance(event, InstanceFailure):
                self._fail(event)
                continue
            batch = self._batches.popleft()
            self._begun -= 1
            batch.completed(event)
            self._finished.append(batch)
            if self._rule.is_due(batch, is_last=not self._begun):
                self._is_report_due = True
            if self._begun and self._batches[0].notes_begin:
                self._turn_to_first()

    def _fail(self, failure: InstanceFailure) -> None:
        if self._begun:
            batch = self._batches[0]
            batch.fail(failure, self._clock)
            if failure.begun:
                self._finished.append(self._batches.popleft())
        self._begun = 0
        self._has_failed = self._is_report_due = True
        self._failure = str(failure)
