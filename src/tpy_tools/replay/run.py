"""Runs a replay: one thread reads the recording, one sends and receives (`tpy_tools.load.Driver`), another one compares."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tpy.messages import Tensor
from tpy.recording.core.file_format import RecordingReader
from tpy.units import NS_PER_MS
from tpy_tools.load import (
    SUCCESS,
    AnswerPart,
    BrokenAnswer,
    Driver,
    PlannedCall,
    ServerLost,
    Slot,
    Target,
    encode_grpc,
    encode_http,
    error_text,
    read_grpc,
    read_http,
)
from tpy_tools.replay.arrivals import SortedArrivals
from tpy_tools.replay.core.comparison import Answered, Difference, Tolerances, compare, has_all_contents
from tpy_tools.replay.core.plan import ReplaySchedule
from tpy_tools.replay.core.report import ReplayReport, RequestOutcome, Results
from tpy_tools.replay.loading import Loaded, RecordingError, RequestLoader, scan
from tpy_tools.replay.requests import GRPC_STREAM, HTTP, Calls

_SLOTS_AT_ONCE = 4
_LOST = -1
"""The status that a Driver gives a request whose connection was lost."""
_LOST_MAX = 10_000
"""Requests whose connection was lost, one behind the other without an answer between: it is the server's way to answer."""
_LOOK_NS = NS_PER_MS
"""The pause, where nothing is due, before looking for more that was read."""


class ReplayOptions(NamedTuple):
    """A replay. `speed` 0: as fast as it goes. `headers` go with each request over HTTP, over gRPC they are those of `target`.
    `progress` is told requests that were answered, and how many there are."""

    target: Target
    speed: float
    concurrency: int
    model_as: Mapping[str, str]
    tolerances: Tolerances
    headers: Mapping[str, str]
    differences_kept: int
    progress: Callable[[int, int], None]


def replay(path: Path, options: ReplayOptions) -> ReplayReport:
    """Send the requests of a file, and compare. What goes wrong then is in the report. Raises RecordingError for a file that is
    not a recording, or has nothing of a name in `model_as` or `tolerances`, before anything is sent."""
    reader = RecordingReader()
    calls = Calls(options.target.protocol, options.model_as)
    results = Results(options.differences_kept)
    problem = ""
    with SortedArrivals() as arrivals:
        names = scan(path, reader, arrivals)
        if unknown := sorted(set(options.model_as) - names.models):
            known = ", ".join(sorted(names.models))
            raise RecordingError(f"there is no request to {', '.join(unknown)}; there are some to {known}")
        if unknown := sorted(set(options.tolerances) - names.outputs - {""}):
            known = ", ".join(sorted(names.outputs)) or "none"
            raise RecordingError(f"--tolerance: no answer has an output {', '.join(unknown)}; there are {known}")
        begun_s = time.monotonic()
        with RequestLoader(path, arrivals, calls, in_flight_max=options.concurrency) as loader:
            first = loader.wait_first()
            if first is not None:
                problem = _exchange(first, loader, options, results, arrivals.count)
            problem = problem or loader.problem
            held_requests, held_bytes = loader.held_most
    return results.report(
        file=str(path),
        url=options.target.authority,
        requests=arrivals.count,
        left_out=dict(calls.left_out),
        seconds=time.monotonic() - begun_s,
        file_problem=reader.problem,
        problem=problem,
        held_requests=held_requests,
        held_bytes=held_bytes,
    )


def _exchange(first: Loaded, loader: RequestLoader, options: ReplayOptions, results: Results, count: int) -> str:
    """Send and compare; returns why it ended early, "" if it did not."""
    with _Comparer(loader, options, results) as comparer:
        exchange = _Exchange(first, loader, options, results, comparer, count)
        try:
            exchange.run()
        except ServerLost as error:
            return str(error)
        except KeyboardInterrupt:
            return "interrupted"
        return comparer.settle_lost()


class _Exchange:
    """The schedule, the requests and the observer of a Driver."""

    def __init__(
        self, first: Loaded, loader: RequestLoader, options: ReplayOptions, results: Results, comparer: _Comparer, count: int
    ) -> None:
        self._loader = loader
        self._options = options
        self._results = results
        self._comparer = comparer
        self._count = count
        self._plan = ReplaySchedule(options.speed)
        self._loaded: dict[int, Loaded] = {}
        self._parts: dict[int, list[AnswerPart]] = {}
        self._answered = 0
        self._add(first)

    def run(self) -> None:
        """Until all are answered. Raises ServerLost."""
        for loaded in self._loaded.values():
            self._encode(loaded.call)  # loads what encoding needs before the time of the first request counts
        slots = min(_SLOTS_AT_ONCE, self._options.concurrency)
        driver = Driver(self._options.target, _Schedule(self), self, self, slots=slots, slots_max=self._options.concurrency)
        try:
            driver.run()
        finally:
            driver.close()

    # What the schedule of the Driver asks

    @property
    def plan(self) -> ReplaySchedule:
        """The plan, with all requests that are loaded."""
        while (loaded := self._loader.next_nowait()) is not None:
            self._add(loaded)
        if self._loader.ended:
            self._plan.end()
        return self._plan

    @property
    def all_loaded(self) -> bool:
        """True when no more requests come."""
        return self._loader.ended

    def _add(self, loaded: Loaded) -> None:
        self._loaded[loaded.number] = loaded
        self._plan.add(loaded.number, loaded.request)

    # tpy_tools.load.Calls

    def take(self, slot: int) -> tuple[int, bytes]:
        """See tpy_tools.load.Calls."""
        loaded = self._loaded[self._plan.taken]
        self._results.sent(loaded.request.model)
        return loaded.number, self._encode(loaded.call)

    def _encode(self, call: PlannedCall) -> bytes:
        target = self._options.target
        if target.protocol == HTTP:
            return encode_http(call, target.authority, self._options.headers).fill()
        return encode_grpc(call).fill()

    # tpy_tools.load.Observer

    def sent(self, duration_ns: int) -> None:
        """See tpy_tools.load.Observer."""

    def responded(self, slot: Slot, answer: AnswerPart, now_ns: int) -> None:
        """See tpy_tools.load.Observer."""
        self._parts.setdefault(slot.call, []).append(answer)

    def finished(self, slot: Slot, answer: AnswerPart, now_ns: int) -> None:
        """See tpy_tools.load.Observer."""
        number, latency_ns = slot.call, now_ns - slot.due_ns
        self._plan.finished(number, now_ns)
        self._comparer.put(self._loaded.pop(number), [*self._parts.pop(number, ()), answer], latency_ns)
        if answer.status != _LOST:
            self._answered += 1
            self._options.progress(self._answered, self._count)


class _Schedule:
    """The schedule of the Driver: that of the plan, into which requests come as they are loaded."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def take(self, now_ns: int) -> int | None:
        """See tpy_tools.load.Schedule."""
        return self._exchange.plan.take(now_ns)

    def next_ns(self) -> int | None:
        """See tpy_tools.load.Schedule."""
        next_ns = self._exchange.plan.next_ns()
        return next_ns if next_ns is not None or self._exchange.all_loaded else time.monotonic_ns() + _LOOK_NS

    def answered(self) -> None:
        """See tpy_tools.load.Schedule."""
        self._exchange.plan.answered()

    def stop(self) -> None:
        """See tpy_tools.load.Schedule."""
        self._exchange.plan.stop()

    @property
    def done(self) -> bool:
        """See tpy_tools.load.Schedule."""
        return self._exchange.plan.done


class _Answers(NamedTuple):
    """All that a request was answered."""

    loaded: Loaded
    parts: Sequence[AnswerPart]
    latency_ns: int


class _Comparer:
    """A thread that compares answers, so that receiving does not wait for it.

    A request whose connection was lost counts as answered, by an error, when the server answers another one later; it was the end
    of the server otherwise, and no answer.
    """

    def __init__(self, loader: RequestLoader, options: ReplayOptions, results: Results) -> None:
        self._loader = loader
        self._options = options
        self._results = results
        self._queue: queue.SimpleQueue[_Answers | None] = queue.SimpleQueue()
        self._lost: deque[RequestOutcome] = deque()
        self._lost_text = ""
        self._heard = False
        """An answer has come."""
        self._thread = threading.Thread(target=self._run, name="compare", daemon=True)

    def __enter__(self) -> _Comparer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._join()

    def put(self, loaded: Loaded, parts: Sequence[AnswerPart], latency_ns: int) -> None:
        """Compare this answer."""
        self._queue.put(_Answers(loaded, parts, latency_ns))

    def settle_lost(self) -> str:
        """The server is still there: what it has ended the connection of is answered. Waits for all comparisons. Returns why it
        ended all of them, for one that has answered nothing (a certificate that it does not take, say)."""
        self._join()
        if self._lost and not self._heard:
            return f"every connection was lost before an answer: {self._lost_text}"
        self._settle()
        return ""

    def _join(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            self._take(work)

    def _take(self, work: _Answers) -> None:
        number, request = work.loaded.number, work.loaded.request
        difference = self._compare(number, work)
        outcome = RequestOutcome(
            model=request.model,
            recorded_ns=request.latency_ns,
            replayed_ns=work.latency_ns,
            difference=difference,
            whole=has_all_contents(request),
        )
        self._loader.done(work.loaded)
        self._lost.append(outcome)
        last = work.parts[-1]
        if last.status == _LOST:
            self._lost_text = error_text(last)
        else:
            self._heard = True
        if self._heard and (last.status != _LOST or len(self._lost) > _LOST_MAX):
            self._settle()
        elif len(self._lost) > _LOST_MAX:
            self._lost.popleft()

    def _settle(self) -> None:
        while self._lost:
            self._results.answered(self._lost.popleft())

    def _compare(self, number: int, work: _Answers) -> Difference | None:
        request = work.loaded.request
        try:
            answers = [each for part in work.parts if (each := self._read(part)) is not None]
        except BrokenAnswer as error:
            what = "an answer that cannot be read"
            return Difference(number=number, model=request.model, id=request.id, what=what, recorded="-", replayed=str(error))
        return compare(number, request, answers, self._options.tolerances)

    def _read(self, answer: AnswerPart) -> Answered | None:
        """The response; None for the one that only says that there are no more."""
        if answer.status not in SUCCESS:
            return Answered(error=error_text(answer) or f"status {answer.status}")
        tensors: list[Tensor]
        if self._options.target.protocol == HTTP:
            tensors = read_http(answer)
        else:
            streamed = self._options.target.protocol == GRPC_STREAM
            tensors = read_grpc(answer.body, streamed=streamed)
            if not tensors and streamed and answer.final:
                return None
        return Answered(tuple(tensors))
