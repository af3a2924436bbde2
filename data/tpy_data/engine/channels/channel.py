"""InstanceChannel: how batches reach an instance and come back. ThreadChannel: to one that executes in a thread of the
server's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tpy.backend import DeviceInstance, ModelInstance
from tpy.clock import Clock
from tpy.errors import invariant
from tpy.limits import LOOP_EXECUTION_STREAK_MIN, QUICK_BATCHES_NS_MAX
from tpy_data.engine.channels.loop_rule import LoopRule
from tpy_data.engine.requests.batch import Batch
from tpy_data.executors.executor import Worker

Report = Callable[[Sequence[Batch], str | None], None]
"""Called on the Trio thread with the batches that are over, in order, several at once where they were over at about the same
time; and with the reason why the instance can run nothing any more, if that is so."""


class InstanceChannel(Protocol):
    """Batches to one instance, executed in the order in which they were given. On the Trio thread."""

    def open(self, report: Report) -> None:
        """Report to this from now on. To be called once, before anything is given."""
        ...

    async def run(self) -> None:
        """Watch the instance. A task of the caller that gives it batches, until `close`."""
        ...

    def give(self, batches: Sequence[Batch]) -> None:
        """Have these executed."""
        ...

    def revoke(self) -> Sequence[Batch]:
        """Report what is over, and take back the batches that are not started; returns them, in order."""
        ...

    def close(self) -> None:
        """Nothing more is given. What was is executed, and reported, unless it is revoked. Idempotent."""
        ...


def not_opened(batches: Sequence[Batch], failure: str | None) -> None:
    """The report of a channel that was not opened: a bug."""
    invariant(False, f"{len(batches)} batches were given to a channel that was not opened")


class ReportRule:
    """Chooses the batches whose report waits, so that several are reported together: quick ones with others behind them, for
    a while.

    A slow one is reported at once, and the one behind it, whose model may be slow.
    """

    __slots__ = ("_last_was_slow", "_since_ns")

    def __init__(self) -> None:
        self._last_was_slow = False
        self._since_ns: int | None = None

    def is_due(self, batch: Batch, *, is_last: bool) -> bool:
        """Returns whether to report what is over with this batch; `is_last`: no batch is behind it."""
        if self._since_ns is None:
            self._since_ns = batch.times.start_ns
        is_slow = batch.took_ns > QUICK_BATCHES_NS_MAX
        is_due = is_slow or self._last_was_slow or is_last or batch.times.end_ns - self._since_ns > QUICK_BATCHES_NS_MAX
        if batch.is_executed:
            self._last_was_slow = is_slow
        if is_due:
            self._since_ns = None
        return is_due


class ThreadChannel:
    """To an instance whose thread is `worker`, which gets a job when there is something to execute and it has no job.

    Handing over costs more than executing a tiny request, so a quick batch with others behind it is reported together with the
    next ones. Both threads take batches from `waiting`, the instance's from the front, Trio's from the back: a deque's
    operations are atomic, so each is taken once. With `on_loop`, batches that it allows are executed on the Trio thread, those of
    one turn of the loop together.
    """

    def __init__(
        self,
        instance: ModelInstance,
        worker: Worker,
        clock: Clock,
        *,
        on_loop: LoopRule | None = None,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._instance = instance
        self._takes = instance.takes if isinstance(instance, DeviceInstance) else frozenset()
        self._worker = worker
        self._clock = clock
        self._cpu_ns = cpu_ns
        self._report: Report = not_opened
        self.waiting: deque[Batch] = deque()
        self._finished: deque[Batch] = deque()
        self._current: Batch | None = None
        self._is_reporting = False
        self._rule = ReportRule()
        self._on_loop = on_loop
        self._here: deque[Batch] = deque()  # to be executed on the Trio thread
        self._held = 0  # batches that were given to the instance's, and are neither reported nor revoked
        self._has_failed = False
        self._failure: str | None = None  # that was not reported yet
        self._is_active = False  # whether a job is with the thread that will look at `waiting` once more
        self._given_ns: int | None = None  # when it got that, until it begins with it
        self._waited_ns: int | None = None  # for how long it did not, until that is reported
        self._measured = 0  # the number of its next batches whose CPU time is measured, which takes some microseconds

    def open(self, report: Report) -> None:
        """As `InstanceChannel.open`."""
        self._report = report

    async def run(self) -> None:
        """As `InstanceChannel.run`: nothing is to be watched."""

    def give(self, batches: Sequence[Batch]) -> None:
        """As `InstanceChannel.give`."""
        rule = self._on_loop
        self._here.extend(batches)
        if rule is None or self._held or self._has_failed or not rule.allows(batches):
            self._leave_to_thread()
        elif len(self._here) == len(batches):  # else it was said for those before
            rule.turns.after_turn(self._execute_here)

    def _leave_to_thread(self) -> None:
        """Give the thread what was to be executed here."""
        self._held += len(self._here)
        self.waiting.extend(self._here)
        self._here.clear()
        if not self._is_active:
            self._is_active = True
            if self._on_loop is not None:
                self._given_ns = self._clock.now_ns()
            self._worker.put(BatchJob(self))

    def _execute_here(self) -> None:
        """Execute on the Trio thread, and report, what there is time for in this turn: one batch at least. The instance's thread
        has nothing: it may still look for more, but executes none."""
        rule, over, failure = self._on_loop, list[Batch](), None
        while self._here and rule is not None and failure is None:
            batch = self._here.popleft()
            self._begin(batch)
            self._execute(batch)
            rule.executed(batch, on_loop=True, waiting=len(self._here))
            if batch.is_started:
                over.append(batch)
            else:
                self._here.appendleft(batch)
            failure = batch.failure
            if rule.turns.is_long or not rule.allows_some:
                break
        self._has_failed = self._has_failed or failure is not None
        if self._here and rule is not None and failure is None:
            if rule.allows_some:
                rule.turns.after_turn(self._execute_here)
            else:
                self._leave_to_thread()
        if over or failure is not None:
            self._report(over, failure)

    def _begin(self, batch: Batch) -> None:
        batch.is_executed = not batch.is_abandoned
        batch.begin(self._clock.now_ns())

    def _execute(self, batch: Batch) -> None:
        if batch.is_executed:
            batch.execute(self._instance, self._clock, self._takes)
        else:
            batch.times.end_ns = batch.times.start_ns

    def revoke(self) -> Sequence[Batch]:
        """As `InstanceChannel.revoke`."""
        self.finished()
        batches: list[Batch] = []
        try:
            while True:
                batches.append(self.waiting.pop())
        except IndexError:
            self._held -= len(batches)
            batches.reverse()
            batches += self._here
            self._here.clear()
            return batches

    def close(self) -> None:
        """As `InstanceChannel.close`: what was given is with the thread, in which the instance may be closed now."""
        self._on_loop = None
        if self._here:
            self._leave_to_thread()

    # The job that the worker gets.

    def begin(self) -> None:
        """In the thread: turn to the next batch, if it was not revoked."""
        try:
            batch = self._current = None if self._has_failed else self.waiting.popleft()
        except IndexError:
            batch = self._current = None
        if batch is not None:
            self._begin(batch)
            if self._given_ns is not None:
                self._waited_ns, self._given_ns = max(0, batch.times.start_ns - self._given_ns), None

    def execute(self) -> bool:
        """In the thread: execute it. Returns whether to report."""
        batch, self._current = self._current, None
        if batch is None:
            return self._begin_report() if self._finished else False
        self._execute_there(batch)
        self._has_failed = batch.failure is not None  # first: the loop may execute the next one when this is reported
        if batch.is_started:
            self._finished.append(batch)
        else:
            self.waiting.appendleft(batch)
        if batch.failure is not None:
            self._failure = batch.failure  # last: the batch is where it belongs by then
            return self._begin_report()
        return self._begin_report() if self._rule.is_due(batch, is_last=not self.waiting) else False

    def has_more(self) -> bool:
        """In the thread: whether there is another batch, or something to report: what was to be reported with those behind it,
        which were revoked."""
        if self._has_failed:
            return False
        if not self.waiting:
            self._is_active = False
            if not self.waiting:
                return bool(self._finished) and not self._is_reporting
            # Given in between, maybe with another job, which will find nothing to do.
            self._is_active = True
        return True

    def finished(self) -> None:
        """On the Trio thread: report what is over."""
        self._is_reporting = False  # before looking: what is over after that has another report
        failure, self._failure = self._failure, None
        batches = []
        while self._finished:
            batches.append(self._finished.popleft())
        self._held -= len(batches)
        if self._on_loop is not None:
            for batch in batches:
                self._on_loop.executed(batch, on_loop=False)
            if batches and self._waited_ns is not None:
                self._on_loop.handed_over(self._waited_ns)
                self._waited_ns = None
        if batches or failure is not None:
            self._report(batches, failure)

    def _execute_there(self, batch: Batch) -> None:
        """In the thread. After a slow one the CPU time of the next ones is measured, for the rule."""
        before_ns = self._cpu_ns() if self._measured else None
        self._execute(batch)
        if before_ns is not None:
            self._measured -= 1
            batch.cpu_ns = self._cpu_ns() - before_ns
        if self._on_loop is not None and batch.took_ns > QUICK_BATCHES_NS_MAX:
            self._measured = LOOP_EXECUTION_STREAK_MIN

    def _begin_report(self) -> bool:
        if self._is_reporting:
            return False
        self._is_reporting = True
        return True


class BatchJob:
    """The job of an instance's thread: execute the batches of its channel, as long as there are any."""

    __slots__ = ("_channel", "begin", "finished", "run")

    def __init__(self, channel: ThreadChannel) -> None:
        self._channel = channel
        self.begin = channel.begin
        self.run = channel.execute
        self.finished = channel.finished

    @property
    def has_more(self) -> bool:
        """As `Job.has_more`."""
        return self._channel.has_more()
