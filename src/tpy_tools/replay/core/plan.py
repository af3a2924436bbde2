"""The order and the times of a replay."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from tpy.recording.core.entries import RecordedRequest

_FINISHED_KEPT: Final = 10_000
"""Sequences and streams whose latest request is answered, and of which the time of that is still known."""


class _Known:
    """A request that was added: what it waits for, and what waits for it. Times count from the begin of the replay."""

    __slots__ = ("after_answer", "after_sending", "at_ns", "finished_ns", "index", "missing", "recorded_end_ns", "taken_ns")

    def __init__(self, index: int, at_ns: int, recorded_end_ns: int) -> None:
        self.index = index
        self.at_ns = at_ns
        """The time at which it is due; later, when what it waits for comes later."""
        self.recorded_end_ns = recorded_end_ns
        self.missing = 0
        self.after_answer: list[_Known] = []
        self.after_sending: list[_Known] = []
        self.taken_ns = self.finished_ns = -1


class ReplaySchedule:
    """Says which request is to be sent now (tpy_tools.load.Schedule), `speed` times as fast as they came; 0: as fast as it goes.

    Requests are added in the order of their arrival, while others are already sent, until `end`; what is over is forgotten. One
    of a sequence waits for the answer to the one before it. One of a stream is sent behind the one before it, and waits for its
    answer if that had come then.

    A latency counts from the time at which a request was due: that of the recording, or when what it waited for had come; as fast
    as it goes, from when it is sent.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._begin_ns: int | None = None
        self._first_arrival_ns: int | None = None
        self._due: list[tuple[int, int]] = []
        """Times and numbers of the requests that wait for time alone, as a heap."""
        self._known: dict[int, _Known] = {}
        """The requests that are not answered."""
        self._latest: dict[tuple[str, int | str] | str, _Known] = {}
        """The latest request of each sequence and stream."""
        self._latest_max = 2 * _FINISHED_KEPT
        self._waiting = 0
        self._in_flight = 0
        self._ended = False
        self.taken = -1
        """The request that `take` has begun last."""

    def add(self, index: int, request: RecordedRequest) -> None:
        """Another request, with a number that none had."""
        if self._first_arrival_ns is None:
            self._first_arrival_ns = request.arrived_ns
        since_ns = request.arrived_ns - self._first_arrival_ns
        at_ns = round(since_ns / self._speed) if self._speed else 0
        known = self._known[index] = _Known(index, at_ns, request.arrived_ns + request.latency_ns)
        if request.sequence is not None:
            key = request.model, request.sequence.id
            before = self._latest.get(key)
            if before is not None:
                self._await_answer(known, before)
            self._latest[key] = known
        if request.stream:
            before = self._latest.get(request.stream)
            if before is not None:
                answered = before.recorded_end_ns <= request.arrived_ns
                (self._await_answer if answered else self._await_sending)(known, before)
            self._latest[request.stream] = known
        self._waiting += 1
        if not known.missing:
            heappush(self._due, (known.at_ns, index))
        if len(self._latest) > self._latest_max:
            self._forget(at_ns)

    def end(self) -> None:
        """No more requests are added."""
        self._ended = True

    def take(self, now_ns: int) -> int | None:
        """Begin a request, if one is due."""
        if self._begin_ns is None:
            self._begin_ns = now_ns
        if not self._due or self._due[0][0] + self._begin_ns > now_ns:
            return None
        due_ns, self.taken = heappop(self._due)
        self._waiting -= 1
        self._in_flight += 1
        known = self._known[self.taken]
        known.taken_ns = now_ns - self._begin_ns
        self._release(known.after_sending, known.taken_ns)
        return due_ns + self._begin_ns if self._speed else now_ns

    def next_ns(self) -> int | None:
        """The time of the next one; None: not before an answer, or another request, or never."""
        return self._due[0][0] + (self._begin_ns or 0) if self._due else None

    def finished(self, index: int, now_ns: int) -> None:
        """The request has its last answer, or has failed: what waits for it is due."""
        known = self._known.pop(index)
        known.finished_ns = now_ns - (self._begin_ns or 0)
        self._release(known.after_answer, known.finished_ns)

    def answered(self) -> None:
        """A request is over."""
        self._in_flight -= 1

    def stop(self) -> None:
        """Begin no more requests."""
        self._waiting = 0
        self._ended = True
        self._due.clear()
        for known in self._known.values():
            known.after_answer.clear()
            known.after_sending.clear()

    @property
    def done(self) -> bool:
        """True when no request is to begin and all are answered."""
        return self._ended and not self._waiting and not self._in_flight

    @property
    def kept(self) -> int:
        """The number of requests that something is known of."""
        return len(self._known) + len(self._latest)

    def _await_answer(self, known: _Known, before: _Known) -> None:
        if before.finished_ns >= 0:
            known.at_ns = max(known.at_ns, before.finished_ns)
        elif known not in before.after_answer:
            before.after_answer.append(known)
            known.missing += 1

    def _await_sending(self, known: _Known, before: _Known) -> None:
        if before.taken_ns >= 0:
            known.at_ns = max(known.at_ns, before.taken_ns)
        else:
            before.after_sending.append(known)
            known.missing += 1

    def _release(self, waiting: list[_Known], now_ns: int) -> None:
        for later in waiting:
            later.missing -= 1
            if not later.missing:
                later.at_ns = max(now_ns, later.at_ns)
                heappush(self._due, (later.at_ns, later.index))
        waiting.clear()

    def _forget(self, at_ns: int) -> None:
        """Forget sequences and streams whose latest request was answered before `at_ns`, and the oldest others: requests to come
        are due later than its answer, or, where the replay is behind, count as due somewhat too early."""
        finished = [key for key, known in self._latest.items() if known.finished_ns >= 0]
        kept = [key for key in finished if self._speed and self._latest[key].finished_ns > at_ns][-_FINISHED_KEPT:]
        for key in {*finished}.difference(kept):
            del self._latest[key]
        self._latest_max = 2 * (len(self._latest) + _FINISHED_KEPT)
