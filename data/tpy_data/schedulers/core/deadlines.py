"""Deadlines: which ticket is due next."""

from __future__ import annotations

import heapq
from typing import Final

from tpy_data.schedulers.core.contract import Ticket

NEVER: Final = 2**63
"""Later than any time."""

_STALE_ENTRIES_MAX: Final = 64
"""Entries of forgotten tickets that the heap may hold beyond as many as it has live ones; more than that rebuilds it, so that
a client that always sets far deadlines cannot make it grow."""


class Deadlines:
    """Tickets ordered by an absolute time in nanoseconds; equal times in the order they were added.

    A ticket is in it at most once. `add` costs O(log n), everything else O(1) or amortised O(log n). A forgotten ticket is
    released at once (only two integers of it stay until they surface), so that a request's bytes are not kept alive here.
    Before `soonest_ns` nothing is due; it may be the time of a forgotten ticket.
    """

    __slots__ = ("_added", "_heap", "_order_of", "_ticket_of", "soonest_ns")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._ticket_of: dict[int, Ticket] = {}
        self._order_of: dict[Ticket, int] = {}
        self._added = 0
        self.soonest_ns = NEVER

    def __len__(self) -> int:
        return len(self._ticket_of)

    @property
    def entries(self) -> int:
        """Entries of the heap, also of forgotten tickets. For tests of its bound."""
        return len(self._heap)

    def add(self, ticket: Ticket, at_ns: int) -> None:
        """The ticket becomes due at `at_ns`."""
        order = self._added
        self._added = order + 1
        self._ticket_of[order] = ticket
        self._order_of[ticket] = order
        heapq.heappush(self._heap, (at_ns, order))
        self.soonest_ns = self._heap[0][0]

    def discard(self, ticket: Ticket) -> None:
        """The ticket will not become due; no-op when it is not here."""
        order = self._order_of.pop(ticket, None)
        if order is None:
            return
        del self._ticket_of[order]
        if len(self._heap) > 2 * len(self._ticket_of) + _STALE_ENTRIES_MAX:
            self._heap = [entry for entry in self._heap if entry[1] in self._ticket_of]
            heapq.heapify(self._heap)
            self.soonest_ns = self._heap[0][0] if self._heap else NEVER

    def first_ns(self) -> int | None:
        """The time at which the next ticket is due; None: none waits."""
        heap = self._heap
        while heap:
            at_ns, order = heap[0]
            if order in self._ticket_of:
                self.soonest_ns = at_ns
                return at_ns
            heapq.heappop(heap)
        self.soonest_ns = NEVER
        return None

    def pop_due(self, now_ns: int) -> Ticket | None:
        """Take out the first ticket with `at_ns <= now_ns`; None if no ticket is due."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            ticket = self._ticket_of.pop(heapq.heappop(heap)[1], None)
            if ticket is not None:
                del self._order_of[ticket]
                return ticket
        self.soonest_ns = heap[0][0] if heap else NEVER
        return None
