"""Measuring one level of load: windows until they are stable, or a number of requests, beside the server's own statistics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec

from tpy.limits.loading import LOAD_SLOTS_MAX
from tpy_tools.load.calls import Template
from tpy_tools.load.checking import Expected
from tpy_tools.load.core.histogram import LatencyHistogram
from tpy_tools.load.core.stability import WINDOWS, WindowFigures, is_beyond, is_stable
from tpy_tools.load.exchange import SequenceSettings, WorkerSettings, WorkerSnapshot
from tpy_tools.load.links import Target
from tpy_tools.load.local import LocalServer, ProcessUsage
from tpy_tools.load.records import RecordBatch
from tpy_tools.load.server import MeasuredServer, ServerError, ServerStatistics
from tpy_tools.load.workers import Workers

_NS_PER_S = 1_000_000_000
_START_S = 1.0
"""The common beginning of an open loop: the workers are ready then."""

_END_S = 60.0
_AVERAGE = -1


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and their target. `streams`: encoded requests, `expected` the outputs of each. `batch`: inferences per request."""

    target: Target
    model: str
    version: str = ""
    streams: list[list[Template]]
    expected: list[list[Expected | None]] | None = None
    batch: int = 1
    sequences: SequenceSettings | None = None
    sequences_running: int = 4
    """With a rate: the number of sequences at the same time."""


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of load: a concurrency, or a rate in requests per second, or intervals between requests."""

    concurrency: int = 0
    rate: float = 0.0
    poisson: bool = False
    intervals_ns: tuple[int, ...] | None = None


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The course of a measurement. `requests`: one window of this many requests; else windows of `window_s` (and of
    `window_requests` at least), until three of them are stable, `windows_max` at most. `percentile` -1: compare averages."""

    window_s: float = 5.0
    window_requests: int = 0
    windows_max: int = 10
    stable_percent: float = 10.0
    percentile: float = _AVERAGE
    latency_max_ns: float = 0.0
    requests: int | None = None
    warmup_s: float = 0.0
    warmup_requests: int = 0
    workers: int = 1
    slots_max: int = LOAD_SLOTS_MAX
    """Connections of an open loop over HTTP, and calls over gRPC."""

    seed: int = 0
    records: bool = False
    """Single requests are recorded."""


class LevelResult(msgspec.Struct, kw_only=True):
    """The measurements of one level: three windows together, if there were as many."""

    level: Level
    batch: int = 1
    seconds: float = 0.0
    latencies: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    first: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    between: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    late: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    per_token: LatencyHistogram = msgspec.field(default_factory=LatencyHistogram)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    responses: int = 0
    errors: Counter[str] = msgspec.field(default_factory=Counter)
    send_ns: int = 0
    cpu_ns: int = 0
    windows: list[WindowFigures] = msgspec.field(default_factory=list)
    stable: bool = False
    interrupted: bool = False
    lost: str = ""
    server: ServerStatistics | None = None
    members: dict[str, ServerStatistics] = msgspec.field(default_factory=dict)
    usage: ProcessUsage | None = None
    records: list[RecordBatch] = msgspec.field(default_factory=list)
    boundaries_ns: list[int] = msgspec.field(default_factory=list)
    """The beginnings and ends of the windows."""

    @property
    def requests(self) -> int:
        """Requests that were answered without an error."""
        return self.latencies.count

    @property
    def requests_per_s(self) -> float:
        """Their number per second."""
        return self.requests / self.seconds if self.seconds else 0.0

    @property
    def responses_per_s(self) -> float:
        """Responses per second."""
        return self.responses / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens that were written, per second."""
        return self.completion_tokens / self.seconds if self.seconds else 0.0

    @property
    def inferences_per_s(self) -> float:
        """Inferences per second: each request has a batch of them."""
        return self.requests_per_s * self.batch

    @property
    def cpu_us_per_request(self) -> float:
        """The load generator's own CPU time."""
        return self.cpu_ns / self.requests / 1e3 if self.requests else 0.0

    def latency_ns(self, percentile: float) -> float:
        """A percentile, or the average."""
        return self.latencies.mean_ns if percentile == _AVERAGE else float(self.latencies.percentile_ns(percentile))


class _Window(msgspec.Struct, frozen=True, kw_only=True):
    snapshots: list[WorkerSnapshot]
    before: _Beside
    after: _Beside


class _Beside(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the server at one moment."""

    statistics: ServerStatistics | None
    members: dict[str, ServerStatistics]
    usage: ProcessUsage | None


Progress = Callable[[str], None]


class Meter:
    """Measures levels of one load, one after another. `local`: the server's processes, where they are on this machine."""

    def __init__(
        self,
        load: Workload,
        rules: Rules,
        *,
        server: MeasuredServer | None = None,
        members: Sequence[str] = (),
        local: LocalServer | None = None,
        progress: Progress = lambda line: None,
    ) -> None:
        self._load = load
        self._rules = rules
        self._server = server
        self._members = members
        self._local = local
        self._progress = progress
        self._ended: list[WorkerSnapshot] = []

    def measure(self, level: Level, begun: Callable[[], None] = lambda: None) -> LevelResult:
        """Measure at one level. What was measured is returned even when the server is lost (`lost`) or the user interrupts.
        `begun` is called when the processes have been started, which are forked: start threads then."""
        return measure_together([self], level, begun)[0]

    def _warm_up_first(self, level: Level) -> None:
        """The warm-up before a number of requests: separate workers, all of whose requests are answered when it ends, so that
        none of them is counted, here or by the server."""
        rules = self._rules
        if rules.requests is None or not (rules.warmup_requests or rules.warmup_s):
            return
        with Workers(self._settings(level, None if rules.warmup_s else rules.warmup_requests)) as workers:
            answered = 0
            workers.wait(rules.warmup_s)
            while not workers.done:
                answered += sum(each.requests + sum(each.errors.values()) for each in workers.snapshots())
                if rules.warmup_s and answered >= rules.warmup_requests:
                    workers.stop()
                workers.wait(0.005 if rules.warmup_s else _END_S)

    def _settings(self, level: Level, requests: int | None) -> list[WorkerSettings]:
        """The settings of the workers, for `requests` requests; None: until they are stopped."""
        rules, load = self._rules, self._load
        count = min(rules.workers, level.concurrency) if level.concurrency else rules.workers
        begin_ns = time.monotonic_ns() + round(_START_S * _NS_PER_S)
        found = []
        for number in range(count):
            concurrency = _share(level.concurrency, number, count)
            slots = concurrency or (_share(load.sequences_running, number, count) if load.sequences else 1)
            found.append(
                WorkerSettings(
                    target=load.target,
                    streams=load.streams,
                    expected=load.expected,
                    number=number,
                    workers=count,
                    concurrency=concurrency,
                    rate=level.rate,
                    poisson=level.poisson,
                    intervals_ns=None if level.intervals_ns is None else list(level.intervals_ns),
                    begin_ns=begin_ns,
                    requests=None if requests is None else _share(requests, number, count),
                    slots=max(1, slots),
                    slots_max=slots if concurrency or load.sequences else max(1, rules.slots_max // count),
                    sequences=load.sequences,
                    seed=rules.seed,
                    records=rules.records,
                )
            )
        return found

    def _warm_up(self, workers: Workers) -> None:
        """Wait until the workers have begun, and for the warm-up; what was measured until then does not count, unless it
        was the end of a worker. A number of requests that is measured is warmed up for before (`_warm_up_first`)."""
        rules = self._rules
        if rules.requests is None:
            answered = 0
            workers.wait(rules.warmup_s)
            while answered < max(1, rules.warmup_requests) and not workers.done:
                snapshots = workers.snapshots()
                answered += sum(snapshot.requests + sum(snapshot.errors.values()) for snapshot in snapshots)
                self._ended += [snapshot for snapshot in snapshots if snapshot.done]
                workers.wait(0.005)
            self._ended += [snapshot for snapshot in workers.snapshots() if snapshot.done]

    def _window(self, workers: Workers, before: _Beside | None, wait_s: float) -> _Window:
        """The measurements until now, or for so long. `before` is what was beside at its begin; None: that is now."""
        rules = self._rules
        before = before or self._beside()
        snapshots, self._ended = self._ended, []
        while True:
            workers.wait(wait_s if rules.requests is None else _END_S)
            snapshots += workers.snapshots()
            answered = sum(snapshot.requests for snapshot in snapshots)
            if workers.done or (rules.requests is None and answered >= rules.window_requests):
                break
            wait_s = rules.window_s
        return _Window(snapshots=snapshots, before=before, after=self._beside())

    def _last(self, workers: Workers) -> _Window:
        """The measurements since the last window."""
        beside = _Beside(statistics=None, members={}, usage=None)
        return _Window(snapshots=workers.snapshots(), before=beside, after=beside)

    def _figures(self, window: _Window) -> WindowFigures:
        part = LevelResult(level=Level(), batch=self._load.batch)
        _add(part, window)
        return WindowFigures(per_s=part.inferences_per_s, latency_ns=part.latency_ns(self._rules.percentile))

    def _beside(self) -> _Beside:
        statistics: ServerStatistics | None = None
        members: dict[str, ServerStatistics] = {}
        if self._server is not None:
            try:
                statistics = self._server.statistics(self._load.model, self._load.version)
                members = {name: self._server.statistics(name) for name in self._members}
            except ServerError:
                statistics = None  # the workers will say so, if the server has gone
        return _Beside(statistics=statistics, members=members, usage=self._local.usage() if self._local else None)


class _Course:
    """One measurement of a meter, window after window."""

    def __init__(self, meter: Meter, level: Level, workers: Workers, before: _Beside | None) -> None:
        self.meter = meter
        self.workers = workers
        self._before = before
        self.result = LevelResult(level=level, batch=meter._load.batch)
        self.windows: list[_Window] = []

    @property
    def has_more(self) -> bool:
        """True until the workers are done and every report of theirs is in a window."""
        return not self.workers.done or bool(self.meter._ended)

    def add_window(self, wait_s: float) -> bool:
        """Measure one window more, of `wait_s` from now on. Returns False when there is no use in going on."""
        meter, rules, result = self.meter, self.meter._rules, self.result
        before = self.windows[-1].after if self.windows else self._before
        self.windows.append(meter._window(self.workers, before, wait_s))
        result.windows.append(meter._figures(self.windows[-1]))
        meter._progress(_line(len(self.windows), result.windows[-1]))
        if error := _only_errors(self.windows[-1]):
            meter._progress(f"no request was answered without an error: {error}")
            return False
        result.stable = rules.requests is None and is_stable(result.windows, rules.stable_percent)
        return not (rules.latency_max_ns and is_beyond(result.windows, rules.latency_max_ns))

    def interrupt(self) -> None:
        """Keep what there is of a window that the user interrupted."""
        self.result.interrupted = True
        if not self.windows or self.meter._rules.requests is not None:
            self.windows.append(self.meter._last(self.workers))

    def finish(self) -> LevelResult:
        """The result: the last windows together."""
        by_number = self.meter._rules.requests is not None
        if by_number:
            self.result.stable = not self.result.interrupted
        for window in self.windows if by_number else self.windows[-WINDOWS:]:
            _add(self.result, window)
        return self.result


def measure_together(meters: Sequence[Meter], level: Level, begun: Callable[[], None] = lambda: None) -> list[LevelResult]:
    """Measure several loads at the same time, in the same windows, each at this level. All are measured until all are stable.
    `begun` is called when all processes have been started."""
    windows_max = max(meter._rules.windows_max for meter in meters)
    with ExitStack() as stack:
        try:
            for meter in meters:
                meter._warm_up_first(level)
        except KeyboardInterrupt:
            return [LevelResult(level=level, batch=meter._load.batch, interrupted=True) for meter in meters]
        # Where all requests count, the server is asked for its counts before there is one.
        befores = [None if meter._rules.requests is None else meter._beside() for meter in meters]
        settings = [meter._settings(level, meter._rules.requests) for meter in meters]
        courses = [
            _Course(meter, level, stack.enter_context(Workers(each)), before)
            for meter, each, before in zip(meters, settings, befores, strict=True)
        ]
        begun()
        first, *others = courses
        try:
            for course in courses:
                course.meter._warm_up(course.workers)
            if others:  # the first ones were busy while the others warmed up
                for course in courses:
                    course.meter._ended += [snapshot for snapshot in course.workers.snapshots() if snapshot.done]
            going = True
            while going and all(course.has_more for course in courses) and len(first.windows) < windows_max:
                going = first.add_window(first.meter._rules.window_s)
                for course in others:
                    going = course.add_window(0.0) and going
                going = going and not all(course.result.stable for course in courses)
        except KeyboardInterrupt:
            for course in courses:
                course.interrupt()
    return [course.finish() for course in courses]


def _add(result: LevelResult, window: _Window) -> None:
    """Add a window to a result."""
    for snapshot in window.snapshots:
        result.latencies.merge(snapshot.latencies)
        result.first.merge(snapshot.first)
        result.between.merge(snapshot.between)
        result.late.merge(snapshot.late)
        result.per_token.merge(snapshot.per_token)
        result.prompt_tokens += snapshot.prompt_tokens
        result.completion_tokens += snapshot.completion_tokens
        result.responses += snapshot.responses
        result.errors.update(snapshot.errors)
        result.send_ns += snapshot.send_ns
        result.cpu_ns += snapshot.cpu_ns
        result.lost = result.lost or snapshot.lost
        if snapshot.records is not None:
            result.records.append(snapshot.records)
    if window.snapshots:
        begin = min(snapshot.begin_ns for snapshot in window.snapshots)
        end = max(snapshot.end_ns for snapshot in window.snapshots)
        result.seconds += (end - begin) / _NS_PER_S
        result.boundaries_ns += [begin, end]
    before, after = window.before, window.after
    if before.statistics is not None and after.statistics is not None:
        spent = after.statistics.since(before.statistics)
        result.server = spent if result.server is None else result.server.plus(spent)
        for name, counts in after.members.items():
            part = counts.since(before.members.get(name, ServerStatistics()))
            result.members[name] = result.members[name].plus(part) if name in result.members else part
    if before.usage is not None and after.usage is not None:
        used = after.usage.since(before.usage)
        result.usage = used if result.usage is None else result.usage.plus(used)


def _share(total: int, number: int, count: int) -> int:
    """The `number`th part of a total that is divided among `count`, as evenly as whole numbers allow."""
    return total // count + (number < total % count)


def _only_errors(window: _Window) -> str:
    """Returns the error that most requests of a window ended with, "" if some were answered: more windows would be the same."""
    errors = Counter[str]()
    for snapshot in window.snapshots:
        errors.update(snapshot.errors)
    if not errors or any(snapshot.requests for snapshot in window.snapshots):
        return ""
    return errors.most_common(1)[0][0]


def _line(number: int, figures: WindowFigures) -> str:
    return f"window {number}: {figures.per_s:.1f} infer/sec, latency {figures.latency_ns / 1e3:.0f} usec"
