"""SlotBatcher: forms the batches of one instance that holds sequences.

DirectBatcher: the strategy direct, where a sequence has the same place in every batch. OldestBatcher: the strategy oldest,
where the next requests of an instance's sequences go through a dynamic batcher.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tpy_data.schedulers.core.batch_forming import BatchForming
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.dynamic_options import NO_START_DELAY, DynamicOptions, StartDelay
from tpy_data.schedulers.core.overlap import OverlapRule
from tpy_data.schedulers.core.sequence_options import DirectOptions


class SlotBatch(NamedTuple):
    """Tickets to run together; `places` as `Dispatch.slots`."""

    tickets: Sequence[Ticket]
    places: Sequence[Ticket | None] = ()


class SlotBatcher(Protocol):
    """The part in which the strategies differ. It is given the next ticket of each sequence, so at most one for each slot."""

    def offer(self, ticket: Ticket, slot: int, now_ns: int) -> None:
        """This is the next ticket of the sequence in the slot, and its predecessors are over."""
        ...

    def withdraw(self, ticket: Ticket, slot: int) -> None:
        """An offered ticket is not to be run."""
        ...

    def take(self, now_ns: int) -> SlotBatch | None:
        """Take out the next batch, when the instance is idle; None: nothing is to be run yet."""
        ...

    def ended(self, count: int, took_ns: int, now_ns: int) -> None:
        """A batch of `count` requests is over; the instance says that it took `took_ns` (0: it does not say)."""
        ...

    def due_ns(self) -> int | None:
        """After `take` gave None: when it gives a batch even if nothing else is offered; None: nothing was offered."""
        ...


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
        """The slot has no ticket."""
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


class OldestBatcher:
    """A queue in the order in which requests became ready; a batch takes from its front what goes together.

    `max_queue_delay_microseconds` counts from when a request became ready, that is when its predecessor was over. Where nobody
    named sizes or a delay, batches may be halved (OverlapRule): what is ready for one instance does not belong to another.
    """

    __slots__ = ("_forming", "_held_back_max", "_overlap", "_queue")

    def __init__(self, options: DynamicOptions, delay: StartDelay = NO_START_DELAY) -> None:
        self._held_back_max = max(0, delay.queued - 1)  # this many are not enough to begin; 0 once it has begun
        self._queue: OrderedDict[Ticket, None] = OrderedDict()
        self._forming = BatchForming(options)
        self._overlap = None if options.overlap is None else OverlapRule(options.overlap)

    def offer(self, ticket: Ticket, slot: int, now_ns: int) -> None:
        """Queue the ticket."""
        ticket.ready_ns = now_ns
        self._queue[ticket] = None
        if self._forming.looked:
            self._forming.add(ticket)

    def withdraw(self, ticket: Ticket, slot: int) -> None:
        """Take the ticket out of the queue."""
        del self._queue[ticket]
        self._forming.reset()

    def take(self, now_ns: int) -> SlotBatch | None:
        """The first tickets, when the batcher's rules say that they are worth sending."""
        queue, forming = self._queue, self._forming
        if len(queue) <= self._held_back_max:
            return None
        self._held_back_max = 0
        if not forming.looked:
            forming.look(queue)
        count = forming.ready_count(now_ns) if forming.tickets else 0
        if count == 0:
            return None
        if self._overlap is not None:
            count = self._overlap.share_of(count)
            self._overlap.began(count, now_ns)
        tickets = forming.tickets[:count]
        forming.reset()
        for ticket in tickets:
            del queue[ticket]
        return SlotBatch(tickets)

    def ended(self, count: int, took_ns: int, now_ns: int) -> None:
        """A batch of `count` requests is over."""
        if self._overlap is not None:
            self._overlap.ended(count, len(self._queue), took_ns, now_ns)

    def due_ns(self) -> int | None:
        """The time at which the oldest has waited long enough for company."""
        return self._forming.due_ns()
