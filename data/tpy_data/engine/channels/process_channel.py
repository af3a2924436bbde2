"""ProcessChannel: batches on an instance that needs no thread of the server's to wait for it.

Trio thread       gives batches, waits until the instance's descriptor is readable, collects what is over
instance's thread has nothing to do, unless the instance is stuck, or silent for long: then it sees to the rest of what was given
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence

import trio

from tpy.backend import ExecutionBatch, InstanceFailure, ModelInstance, Outcome, PromptInstance
from tpy.clock import Clock
from tpy.limits import PROMPT_SILENCE_S_MAX
from tpy_data.engine.channels.channel import InstanceChannel, Report, ReportRule, ThreadChannel
from tpy_data.engine.requests.batch import Batch, failed_to_process
from tpy_data.exception_text import exception_text
from tpy_data.executors.executor import Worker

_log = logging.getLogger(__name__)


def open_channel(instance: ModelInstance, worker: Worker, clock: Clock) -> InstanceChannel:
    """A channel to an instance that nobody uses yet, whose thread `worker` is. `close` it in any case."""
    in_thread = ThreadChannel(instance, worker, clock)
    if not isinstance(instance, PromptInstance) or not instance.is_prompt:
        return in_thread
    try:
        # A descriptor of its own: nobody closes this one while it is waited for.
        descriptor = os.dup(instance.fileno())
    except OSError:
        return in_thread  # too many are open: its thread can do without
    return ProcessChannel(instance, worker, clock, in_thread, descriptor)


class ProcessChannel:
    """An `InstanceChannel`. What the instance cannot take from the loop goes through `in_thread`, the channel to its thread.

    Batches are in one of three places: with the instance (`_given`), with its thread (`_in_thread`, how many), or here, because
    the instance takes further ones only when it is over with those before (`_waiting`).
    """

    def __init__(self, instance: PromptInstance, worker: Worker, clock: Clock, in_thread: ThreadChannel, descriptor: int) -> None:
        """From `open_channel`."""
        self._instance = instance
        self._worker = worker
        self._clock = clock
        self._thread = in_thread
        self._descriptor = descriptor
        self._report: Report = in_thread.nobody
        self._waiting: deque[Batch] = deque()
        self._given: deque[Batch] = deque()
        self._in_thread = 0
        self._finished: deque[Batch] = deque()
        self._rule = ReportRule()
        self._is_report_due = False
        self._rest: FinishJob | None = None
        self._has_failed = False
        self._failure: str | None = None  # that was not reported yet
        self._gives = 0
        self._is_reading = False
        self._is_closed = False
        self._scope = trio.CancelScope()
        self._began: trio.Event | None = None
        self._watched: trio.Event | None = None

    def open(self, report: Report) -> None:
        """As `InstanceChannel.open`."""
        self._report = report
        self._thread.open(self._thread_reports)

    async def run(self) -> None:
        """Collect what is over, and leave to the thread what takes long."""
        if self._is_closed:
            return
        self._is_reading = True
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch)
                    await self._read()
        finally:
            self._is_reading = False
            self.close()

    def close(self) -> None:
        """As `InstanceChannel.close`; the thread sees to what was given."""
        if self._is_open:
            self._leave_to_thread()
        if self._is_reading:
            self._scope.cancel()
        elif not self._is_closed:
            self._is_closed = True
            os.close(self._descriptor)

    def give(self, batches: Sequence[Batch]) -> None:
        """As `InstanceChannel.give`."""
        self._waiting.extend(batches)
        self._go_on()

    def revoke(self) -> Sequence[Batch]:
        """As `InstanceChannel.revoke`."""
        waiting = list(self._waiting)
        self._waiting.clear()
        if self._is_open:
            self._collect()
        self.report()
        given: list[Batch] = []
        if self._has_failed:
            given.extend(self._given)
            self._given.clear()
        elif self._given:
            given.extend([self._given.pop() for _ in range(self._instance.take_back())])
            given.reverse()
        in_thread = self._thread.revoke() if self._in_thread else ()
        self._in_thread -= len(in_thread)
        return [*given, *in_thread, *waiting]

    def report(self) -> None:
        """Report what is over."""
        self._is_report_due = False
        failure, self._failure = self._failure, None
        batches = [self._finished.popleft() for _ in range(len(self._finished))]
        if batches or failure is not None:
            self._report(batches, failure)

    @property
    def _is_open(self) -> bool:
        """True when the instance has something that is the loop's to collect. The batches that its thread has it execute are open
        there, too."""
        is_the_loops = self._rest is None and not self._in_thread and not self._has_failed
        return is_the_loops and self._instance.open_batches > 0

    def _go_on(self) -> None:
        """Give the instance what waits here, if it is over with what was before."""
        if not self._waiting or self._has_failed or self._in_thread or self._rest is not None or self._instance.open_batches:
            return
        batches = list(self._waiting)
        self._waiting.clear()
        if self._give(batches):
            return
        self._in_thread = len(batches)
        self._thread.give(batches)

    def _give(self, batches: Sequence[Batch]) -> bool:
        """Offer the batches to the instance. Returns whether it has taken them."""
        instance = self._instance
        if not self._is_reading or self._scope.cancel_called:
            return False
        try:
            if not instance.begin([ExecutionBatch(batch.tickets, batch.times) for batch in batches]):
                return False
        except Exception as error:
            if not instance.open_batches:
                return False  # whatever it is, execute will say it
            _log.exception("an instance could not begin a batch", extra={"context": {"error": exception_text(error)}})
        self._given.extend(batches)
        self._gives += 1
        if instance.is_stuck:
            self._leave_to_thread()
        if self._began is not None:
            self._began.set()
        if self._watched is not None:
            self._watched.set()
        return True

    def _collect(self) -> None:
        """Take what is over now."""
        instance = self._instance
        instance.collect(self._take)
        if instance.is_stuck:
            self._leave_to_thread()
        if self._is_report_due:
            self.report()
        self._go_on()

    def _take(self, outcome: Outcome) -> None:
        """The oldest that was given is over. Any thread."""
        batch = self._given.popleft()
        batch.conclude(outcome)
        self._finished.append(batch)
        if self._rule.is_due(batch, is_last=not self._given):
            self._is_report_due = True

    def _thread_reports(self, batches: Sequence[Batch], failure: str | None) -> None:
        self._in_thread -= len(batches)
        self._has_failed = self._has_failed or failure is not None
        self._report(batches, failure)
        self._go_on()

    def _leave_to_thread(self) -> None:
        self._rest = FinishJob(self)
        self._worker.put(self._rest)

    async def _read(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            if self._is_open:
                self._collect()
            else:
                # What comes is for the thread, or the end.
                self._began = trio.Event()
                await self._began.wait()
                self._began = None

    async def _watch(self) -> None:
        """Leave to the thread what the instance is silent about for long."""
        while True:
            if not self._is_open:
                self._watched = trio.Event()
                await self._watched.wait()
                self._watched = None
            number = self._gives
            await trio.sleep(PROMPT_SILENCE_S_MAX)
            if self._is_open and self._gives == number:
                self._leave_to_thread()

    # For FinishJob

    def finish(self) -> None:
        """In the instance's thread: wait for what was given."""
        try:
            self._instance.finish(self._take_and_tell)
        except InstanceFailure as failure:
            self._fail(failure)
        except BaseException as error:
            name = self._given[0].instance_name if self._given else ""
            self._fail(InstanceFailure(failed_to_process(name, error)))

    def rest_is_over(self) -> None:
        """On the Trio thread."""
        self._rest = None
        self.report()
        self._go_on()

    def _take_and_tell(self, outcome: Outcome) -> None:
        self._take(outcome)
        if self._is_report_due:
            self._worker.tell(self.report)

    def _fail(self, failure: InstanceFailure) -> None:
        if self._given:
            self._given[0].fail(failure, self._clock)
            if failure.begun:
                self._finished.append(self._given.popleft())
        # Last: once the Trio thread sees that, what is given is its to take back.
        self._has_failed = True
        self._failure = str(failure)


class FinishJob:
    """The job of an instance's thread: see to what the instance was given."""

    __slots__ = ("_channel",)

    has_more = False

    def __init__(self, channel: ProcessChannel) -> None:
        self._channel = channel

    def begin(self) -> None:
        """The batches have begun already."""

    def run(self) -> bool:
        """In the instance's thread."""
        self._channel.finish()
        return True

    def finished(self) -> None:
        """On the Trio thread."""
        self._channel.rest_is_over()
