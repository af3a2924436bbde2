"""DirectBatcher: the strategy direct, where a sequence has the same place in every batch."""

from __future__ import annotations

import heapq
from typing import Final

from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.sequence_batcher import SlotBatch
from tpy_data.schedulers.core.sequence_options import DirectOptions

_STALE_ENTRIES_MAX: Final = 64
"""Entries of tickets that are gone which the heap may hold beyond as many as it has others; more than that rebuilds it."""


class DirectBatcher:
    """Every batch reaches from slot 0 to the highest slot that it runs a request of; slots without one are empty places.

    Requests that cannot share a batch (another signature) run in different ones; the oldest request is always in the next, so
    none waits for more batches than there are older requests. Triton takes the lowest slot's instead and lets others starve.

    Forming a batch costs O(highest slot), which is the size of what the model is given; everything else O(log n).
    """

    __slots__ = ("_delay_ns", "_offered", "_oldest", "_ready_min")

    def __init__(self, options: DirectOptions) -> None:
        self._delay_ns = options.queue_delay_ns_max
        self._ready_min = options.ready_min
        self._offered: dict[int, Ticket] = {}
        self._oldest: list[tuple[int, int]] = []  # (arrival, slot); of tickets that are gone, too

    def offer(self, ticket: Ticket, slot: int, now_ns: int) -> None:
        """The slot has a request."""
        self._offered[slot] = ticket
        heapq.heappush(self._oldest, (ticket.arrival, slot))
        if len(self._oldest) > 2 * len(self._offered) + _STALE_ENTRIES_MAX:
            self._oldest = [(one.arrival, place) for place, one in self._offered.items()]
            heapq.heapify(self._oldest)

    def withdraw(self, ticket: Ticket, slot: int) -> None:
        """The slot has none."""
        del self._offered[slot]

    def take(self, now_ns: int) -> SlotBatch | None:
        """All that go together with the oldest, when enough slots have a request or it has waited long enough."""
        offered = self._offered
        oldest = self._oldest_ticket()
        if oldest is None:
            return None
        if len(offered) < self._ready_min and now_ns - oldest.ready_ns < self._delay_ns:
            return None
        taken = sorted(slot for slot, ticket in offered.items() if ticket.signature == oldest.signature)
        places: list[Ticket | None] = [None] * (taken[-1] + 1)
        tickets = []
        for slot in taken:
            ticket = offered.pop(slot)
            places[slot] = ticket
            tickets.append(ticket)
        return SlotBatch(tickets, places)

    def ended(self, count: int, took_ns: int, now_ns: int) -> None:
        """Nothing follows from it."""

    def due_ns(self) -> int | None:
        """The time at which the oldest has waited long enough."""
        oldest = self._oldest_ticket()
        return None if oldest is None else oldest.ready_ns + self._delay_ns

    @property
    def entries(self) -> int:
        """Entries of the heap, also of tickets that are gone. For tests of its bound."""
        return len(self._oldest)

    def _oldest_ticket(self) -> Ticket | None:
        heap = self._oldest
        while heap:
            arrival, slot = heap[0]
            ticket = self._offered.get(slot)
            if ticket is not None and ticket.arrival == arrival:
                return ticket
            heapq.heappop(heap)
        return None
