"""Scheduling alone: what the cores cost for a request, without network, threads or models, while many wait or many sequences
live.

`drive` starts it as its own program (settings as one JSON argument). One instance; whatever it was given is over at once,
and as many requests come as have gone, so that the length of the queue stays what it is. The cost is CPU time for one request's
whole way: made, submitted, dispatched, completed.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypedDict

import msgspec

from benchmarks.growth.curves import Point
from benchmarks.load.child import run_child
from tpy.messages import SequencePosition
from tpy.units import NS_PER_S
from tpy_data.schedulers.core.contract import CoreSnapshot, Dispatch, SchedulerCore, Ticket
from tpy_data.schedulers.core.default import DefaultCore
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, QueueRules
from tpy_data.schedulers.core.factory import sequence_core
from tpy_data.schedulers.core.sequence_options import SequenceOptions

BATCH = 64
"""Rows of the batches of sequences, and how many of them a model of strategy direct has slots for."""

_TURNS = 20
"""Turns between two looks at the clock."""

_NS = 1_000
"""The time between two turns of the cores."""

_HOUR_NS = 3_600 * NS_PER_S


class _Settings(TypedDict):
    queue: list[int]
    sequences: list[int]
    seconds: float


def drive(*, queue: Sequence[int], sequences: Sequence[int], seconds: float) -> list[Point]:
    """Measure both curves, `seconds` for each point. Raises LoadFailed."""
    settings: _Settings = {"queue": list(queue), "sequences": list(sequences), "seconds": seconds}
    text, _ = run_child([sys.executable, "-m", "benchmarks.growth.scheduling", json.dumps(settings)])
    return msgspec.json.decode(text.splitlines()[-1], type=list[Point])


def _batches(core: SchedulerCore) -> list[Sequence[Ticket]]:
    """The batches that the core gives its instance now."""
    return [batch for action in core.take_actions() if isinstance(action, Dispatch) for batch in action.batches]


class Queue:
    """A core with this many requests waiting."""

    def __init__(self, core: SchedulerCore, make: Callable[[], Ticket], length: int) -> None:
        self._core = core
        self._make = make
        self._now_ns = 0
        core.add_instance(0, 0)
        for _ in range(length):
            core.submit(make(), 0)

    def turn(self) -> int:
        """Give the instance a turn. Returns the number of requests that it got."""
        batches = _batches(self._core)
        count = sum(len(batch) for batch in batches)
        self._now_ns += _NS
        for _ in range(count):
            self._core.submit(self._make(), self._now_ns)
        self._core.done(0, self._now_ns, (1,) * len(batches))
        self._core.next_deadline_ns()
        return count


class CancelledQueue(Queue):
    """The same, but nothing is dispatched: requests are cancelled all over the queue, and as many younger ones come."""

    def __init__(self, core: SchedulerCore, make: Callable[[], Ticket], length: int) -> None:
        super().__init__(core, make, 1)  # the one that runs, for ever
        self._waiting = [make() for _ in range(length)]
        self._place = 0
        for ticket in self._waiting:
            core.submit(ticket, 0)

    def turn(self) -> int:
        """This many cancelled, at places that look like chance."""
        self._now_ns += _NS
        for _ in range(BATCH):
            self._place = (self._place * 1_103_515_245 + 12_345) % 2**31
            place = self._place % len(self._waiting)
            self._core.cancel(self._waiting[place], self._now_ns)
            self._waiting[place] = ticket = self._make()
            self._core.submit(ticket, self._now_ns)
        self._core.take_actions()
        return BATCH


class Sequences:
    """A core with this many live sequences; the first `active` send a request whenever they have the answer to the last."""

    def __init__(self, options: SequenceOptions, live: int, active: int) -> None:
        self._core: SchedulerCore = sequence_core(options)
        self._now_ns = 0
        self._active = active
        self._running: list[Sequence[Ticket]] = []
        self._positions = [SequencePosition(correlation_id=number) for number in range(live + 1)]
        self._core.add_instance(0, 0)
        for number in range(1, live + 1):
            self._core.submit(Ticket(sequence=SequencePosition(correlation_id=number, start=True)), 0)
        self._running = _batches(self._core)
        for _ in range(live // BATCH + _TURNS):  # every START has run
            self.turn()

    def snapshot(self) -> CoreSnapshot:
        """The counts of the core."""
        return self._core.snapshot()

    def turn(self) -> int:
        """Give the instance a turn. Returns the number of requests that it got."""
        over = [ticket for batch in self._running for ticket in batch]
        self._now_ns += _NS
        self._core.done(0, self._now_ns, (0,) * len(self._running))
        self._running = _batches(self._core)
        for ticket in over:
            position = ticket.sequence
            if position is not None and isinstance(position.correlation_id, int) and position.correlation_id <= self._active:
                self._core.submit(Ticket(sequence=self._positions[position.correlation_id]), self._now_ns)
        self._running += _batches(self._core)
        self._core.next_deadline_ns()
        return len(over)


def _queues(length: int) -> Iterator[tuple[str, Queue]]:
    plain = partial(Ticket)
    dynamic = DynamicOptions(batch_size_max=8, preferred=frozenset({8}))
    levels = (QueueRules(default_timeout_ns=_HOUR_NS),) * 3
    rules = msgspec.structs.replace(dynamic, levels=levels)
    yield "no scheduling block", Queue(DefaultCore(), plain, length)
    yield "dynamic batching, batches of 8", Queue(DynamicCore(dynamic), plain, length)
    ranked = partial(Ticket, priority=2, timeout_ns=2 * _HOUR_NS)
    yield "the same, 3 priorities, queue and request time-outs", Queue(DynamicCore(rules), ranked, length)
    yield "no scheduling block, cancelled while they wait", CancelledQueue(DefaultCore(), plain, length)


def _sequences(live: int) -> Iterator[tuple[str, Sequences]]:
    oldest = DynamicOptions(batch_size_max=BATCH, preferred=frozenset({BATCH}))
    options = SequenceOptions(slots=live, strategy=oldest)
    active = min(BATCH, live)
    yield "oldest, every sequence has a request waiting", Sequences(options, live, live)
    yield f"oldest, {BATCH} of them active", Sequences(options, live, active)
    yield f"direct, {BATCH} in slots and active, the others wait for one", Sequences(SequenceOptions(slots=BATCH), live, live)


def cost_us(work: Queue | Sequences, seconds: float) -> float:
    """CPU time for one request, after a warm-up of a tenth of the time."""
    gc.collect()
    for limit_s in (seconds / 10, seconds):
        begin_s = time.process_time()
        count = 0
        while (taken_s := time.process_time() - begin_s) < limit_s:
            count += sum(work.turn() for _ in range(_TURNS))
    return taken_s / count * 1e6


def _measure(settings: _Settings) -> list[Point]:
    points = []
    for length in settings["queue"]:
        points += [Point("queue", name, length, cost_us(queue, settings["seconds"])) for name, queue in _queues(length)]
    for live in settings["sequences"]:
        points += [Point("sequences", name, live, cost_us(work, settings["seconds"])) for name, work in _sequences(live)]
    return points


if __name__ == "__main__":
    print(msgspec.json.encode(_measure(json.loads(sys.argv[1]))).decode())
