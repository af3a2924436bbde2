"""The process that sends requests, driven by its parent over a pair of pipes.

The first message is `WorkerSettings`; then each byte asks for something: b"s" a `WorkerSnapshot` of what has been measured since
the last one, b"q" to begin no more requests, and a last snapshot when the others are answered. Snapshots have their length in
front."""

from __future__ import annotations

import itertools
import os
import random
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tpy.limits.loading import LOAD_ERRORS_MAX, LOAD_LATENCIES_KEPT_MAX
from tpy_tools.load.calls import error_text
from tpy_tools.load.checking import Checker
from tpy_tools.load.core.answers import AnswerPart
from tpy_tools.load.core.histogram import LatencyHistogram, SparseCounts
from tpy_tools.load.core.schedules import ClosedLoop, OpenLoop, Schedule
from tpy_tools.load.driving import SUCCESS, CallSource, Driver, ServerLost, Slot
from tpy_tools.load.exchange import LENGTH, SNAPSHOT, STOP, WorkerSettings, WorkerSnapshot, write_message
from tpy_tools.load.records import Records
from tpy_tools.load.sources import InTurn, SequenceLengths, SequenceSource

_NS_PER_S = 1_000_000_000


class _Times:
    """Nanoseconds that are counted in lots."""

    def __init__(self) -> None:
        self.values = array("q")
        self._histogram = LatencyHistogram()

    def fold(self) -> None:
        """Count what is kept."""
        self._histogram.add(self.values)
        self.values = array("q")

    def take(self) -> SparseCounts:
        """Returns the counts since the last time."""
        self.fold()
        counts, self._histogram = self._histogram.sparse(), LatencyHistogram()
        return counts


class AnswerCounter:
    """Counts answers, for snapshots."""

    def __init__(
        self,
        checker: Checker | None = None,
        records: Records | None = None,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._checker = checker
        self._records = records
        self._now_ns = now_ns
        self._latencies, self._first, self._between, self._late = _Times(), _Times(), _Times(), _Times()
        self._per_token = _Times()
        self._prompt_tokens = self._completion_tokens = 0
        self._errors: Counter[str] = Counter()
        self._responses = 0
        self._send_ns = 0
        self._begin_ns = now_ns()
        self._cpu_ns = time.process_time_ns()

    def sent(self, duration_ns: int) -> None:
        self._send_ns += duration_ns

    def responded(self, slot: Slot, answer: AnswerPart, now_ns: int) -> None:
        self._responses += 1
        if self._checker is not None:
            slot.latest = answer
        (self._between if slot.responses else self._first).values.append(now_ns - slot.last_ns)
        if self._records is not None:
            self._records.responded(slot, answer, now_ns)

    def finished(self, slot: Slot, answer: AnswerPart, now_ns: int) -> None:
        if answer.status not in SUCCESS:
            self._fail(slot, f"status {answer.status}: {error_text(answer)}" if answer.status >= 0 else error_text(answer))
            return
        if self._checker is not None:
            with_outputs = answer if answer.body or slot.latest is None else slot.latest  # the end of a stream may be empty
            problem = self._checker.problem(slot.call, with_outputs)
            if problem is not None:
                self._fail(slot, problem)
                return
        latencies = self._latencies
        latencies.values.append(now_ns - slot.due_ns)
        if slot.begun_ns != slot.due_ns:
            self._late.values.append(max(0, slot.begun_ns - slot.due_ns))
        is_response = not slot.responses or bool(answer.body)
        if is_response:
            self._responses += 1
            if slot.responses:
                self._between.values.append(now_ns - slot.last_ns)
        if answer.tokens is not None:
            self._prompt_tokens += answer.tokens.prompt
            self._completion_tokens += answer.tokens.completion
            if slot.responses and answer.tokens.completion > 1:  # as aiperf and genai-perf have it
                self._per_token.values.append((slot.last_ns - slot.first_ns) // (answer.tokens.completion - 1))
        if self._records is not None:
            self._records.finished(slot, answer, now_ns, is_response=is_response)
        if len(latencies.values) >= LOAD_LATENCIES_KEPT_MAX:
            latencies.fold()
            self._late.fold()
            self._per_token.fold()
        if len(self._between.values) >= LOAD_LATENCIES_KEPT_MAX:
            self._between.fold()
            self._first.fold()

    def snapshot(self, *, done: bool = False, lost: str = "") -> WorkerSnapshot:
        """Returns the counts since the last one."""
        now, cpu = self._now_ns(), time.process_time_ns()
        found = WorkerSnapshot(
            begin_ns=self._begin_ns,
            end_ns=now,
            latencies=self._latencies.take(),
            first=self._first.take(),
            between=self._between.take(),
            late=self._late.take(),
            per_token=self._per_token.take(),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            responses=self._responses,
            errors=dict(self._errors),
            send_ns=self._send_ns,
            cpu_ns=cpu - self._cpu_ns,
            done=done,
            lost=lost,
            records=None if self._records is None else self._records.take(),
        )
        self._begin_ns, self._cpu_ns = now, cpu
        self._errors.clear()
        self._responses = self._send_ns = 0
        self._prompt_tokens = self._completion_tokens = 0
        return found

    def _fail(self, slot: Slot, text: str) -> None:
        if self._records is not None:
            self._records.failed(slot)
        self._errors[text if text in self._errors or len(self._errors) < LOAD_ERRORS_MAX else "other errors"] += 1


def intervals_of(settings: WorkerSettings) -> Iterator[int]:
    """The times between the requests of this worker: the first is that from the common beginning."""
    share, skipped = settings.workers, settings.number
    every = _all_intervals(settings)
    yield sum(itertools.islice(every, skipped + 1))
    while True:
        lot = list(itertools.islice(every, share))
        if len(lot) < share:
            return
        yield sum(lot)


def _all_intervals(settings: WorkerSettings) -> Iterator[int]:
    """The times between the requests of all workers together: the same in each of them."""
    if settings.intervals_ns is not None:
        yield from itertools.cycle(settings.intervals_ns)
    elif settings.poisson:
        chance = random.Random(settings.seed)
        while True:
            yield round(chance.expovariate(settings.rate) * _NS_PER_S)
    else:
        for number in itertools.count(1):  # no sum of rounded intervals: the rate is exact in the long run
            yield round(number * _NS_PER_S / settings.rate) - round((number - 1) * _NS_PER_S / settings.rate)


def _schedule(settings: WorkerSettings) -> Schedule:
    if settings.concurrency:
        return ClosedLoop(settings.concurrency, settings.requests)
    return OpenLoop(settings.begin_ns, intervals_of(settings), settings.requests)


def _calls(settings: WorkerSettings) -> CallSource:
    numbers = itertools.count()
    streams = [[(next(numbers), template) for template in stream] for stream in settings.streams]
    made = settings.sequences
    if made is None:
        return InTurn([template for stream in streams for _, template in stream], settings.number)
    chance = random.Random(settings.seed + settings.number)
    lengths = SequenceLengths(made.length, made.variation, [chance.random() for _ in range(1000)]) if made.length else None
    first, step = made.first_id + settings.number, made.step * settings.workers
    return SequenceSource(streams, lengths=lengths, first_id=first, step=step, ids_end=made.ids_end)


def _checker(settings: WorkerSettings) -> Checker | None:
    if settings.expected is None:
        return None
    return Checker([each for stream in settings.expected for each in stream], settings.target.protocol)


class _Worker:
    """One run."""

    def __init__(self, settings: WorkerSettings, commands: int, reports: Any) -> None:
        self._commands = commands
        self._reports = reports
        calls = _calls(settings)
        latest = calls.latest if isinstance(calls, SequenceSource) else {}
        records = Records(lambda slot: latest.get(slot, 0)) if settings.records else None
        self._recorder = AnswerCounter(_checker(settings), records)
        self._driver = Driver(
            settings.target,
            _schedule(settings),
            calls,
            self._recorder,
            slots=settings.slots,
            slots_max=settings.slots_max,
        )
        self._driver.watch(commands, self._command)

    def run(self) -> None:
        """Until the schedule is done, or the parent has gone."""
        lost = ""
        try:
            self._driver.run()
        except ServerLost as error:
            lost = str(error)
        self._report(self._recorder.snapshot(done=True, lost=lost))

    def _command(self) -> None:
        for command in os.read(self._commands, 64) or STOP:
            if bytes((command,)) == SNAPSHOT:
                self._report(self._recorder.snapshot())
            else:
                self._driver.schedule.stop()

    def _report(self, snapshot: WorkerSnapshot) -> None:
        write_message(self._reports, msgspec.msgpack.encode(snapshot))


def main(commands: int, reports: int) -> int:
    """Run until the parent has the last snapshot. `commands` and `reports` are descriptors. Returns the exit status."""
    with os.fdopen(os.dup(commands), "rb", buffering=0) as file:
        (size,) = LENGTH.unpack(_exactly(file, LENGTH.size))
        settings = msgspec.msgpack.decode(_exactly(file, size), type=WorkerSettings)
    with os.fdopen(reports, "wb") as output:
        try:
            worker = _Worker(settings, commands, output)
        except ServerLost as error:
            write_message(output, msgspec.msgpack.encode(AnswerCounter().snapshot(done=True, lost=str(error))))
            return 0
        worker.run()
    return 0


def _exactly(file: Any, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        more = file.read(size - len(content))
        if not more:
            raise EOFError("the parent has gone")
        content += more
    return bytes(content)
