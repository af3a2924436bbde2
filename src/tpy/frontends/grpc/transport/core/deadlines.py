"""DeadlineQueue: which call must end when."""

from __future__ import annotations

import heapq


class DeadlineQueue:
    """Deadlines of calls by stream id. What has ended is discarded lazily: memory stays within a small multiple of what lives."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._live: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def entries(self) -> int:
        """Entries of the heap, also of calls that have ended. For tests of its bound."""
        return len(self._heap)

    def add(self, stream_id: int, deadline_ns: int) -> None:
        """A call has a deadline. One for each stream."""
        self._live[stream_id] = deadline_ns
        heapq.heappush(self._heap, (deadline_ns, stream_id))

    def discard(self, stream_id: int) -> None:
        """The call has ended, or had no deadline."""
        if self._live.pop(stream_id, None) is not None and len(self._heap) > 2 * len(self._live) + 64:
            self._heap = [(deadline_ns, live) for live, deadline_ns in self._live.items()]
            heapq.heapify(self._heap)

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of a call that has not ended."""
        heap = self._heap
        while heap and heap[0][1] not in self._live:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def advance(self, now_ns: int) -> list[int]:
        """The streams whose deadline has come; they are forgotten."""
        expired: list[int] = []
        while (deadline_ns := self.next_deadline_ns()) is not None and deadline_ns <= now_ns:
            _, stream_id = heapq.heappop(self._heap)
            del self._live[stream_id]
            expired.append(stream_id)
        return expired
