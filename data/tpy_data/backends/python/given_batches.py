"""GivenBatches: the batches that a worker was given, by the numbers under which it counts them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from tpy.backend import ExecutionRequest, WaitingBatch


class GivenBatches:
    """A worker counts what it begins, from 1 on, and tells of each call of its model for which batch that is. Whoever gives
    batches says when they begin and end, in the same order; any thread may ask who waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = 1
        self._batches: deque[Sequence[ExecutionRequest]] = deque()
        self._waiting: dict[int, WaitingBatch] = {}

    def begin(self, requests: Sequence[ExecutionRequest]) -> int:
        """The worker is about to be given this batch, to be executed after those before. Returns its number."""
        with self._lock:
            self._batches.append(requests)
            return self._first + len(self._batches) - 1

    def end(self) -> None:
        """The oldest is executed; nothing after `end_all`."""
        with self._lock:
            self._end_first()

    def not_begun(self, count: int) -> None:
        """The newest `count` will not be executed; nothing after `end_all`."""
        with self._lock:
            for _ in range(min(count, len(self._batches))):
                self._batches.pop()

    def end_all(self) -> None:
        """Nothing more is executed."""
        with self._lock:
            while self._batches:
                self._end_first()

    def waiting(self, number: int) -> WaitingBatch | None:
        """The batch that waits for a call; None for one that none waits for, or not this one any more."""
        with self._lock:
            index = number - self._first
            if not 0 <= index < len(self._batches):
                return None
            waiting = self._waiting.get(number)
            if waiting is None:
                waiting = self._waiting[number] = WaitingBatch(self._batches[index])
            return waiting

    def _end_first(self) -> None:
        if not self._batches:
            return
        self._batches.popleft()
        if self._waiting:
            waiting = self._waiting.pop(self._first, None)
            if waiting is not None:
                waiting.over = True
        self._first += 1
