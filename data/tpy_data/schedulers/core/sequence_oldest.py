"""OldestBatcher: the strategy oldest, where the next requests of an instance's sequences go through a dynamic batcher."""

from __future__ import annotations

from collections import OrderedDict

from tpy_data.schedulers.core.batch_forming import BatchForming
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.overlap import OverlapRule
from tpy_data.schedulers.core.sequence_batcher import SlotBatch
from tpy_data.schedulers.core.start_delay import NO_START_DELAY, StartDelay


class OldestBatcher:
    """A queue in the order in which requests became ready; a batch takes from its front what goes together.

    `max_queue_delay_microseconds` counts from when a request became ready, that is when its predecessor was over. Where nobody
    named sizes or a delay, batches may be halved (OverlapRule): what is ready for one instance is no other's.
    """

    __slots__ = ("_forming", "_held_back_max", "_overlap", "_queue")

    def __init__(self, options: DynamicOptions, delay: StartDelay = NO_START_DELAY) -> None:
        self._held_back_max = max(0, delay.queued - 1)  # so many are not enough to begin; 0 once it has begun
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
        """A batch of so many is over."""
        if self._overlap is not None:
            self._overlap.ended(count, len(self._queue), took_ns, now_ns)

    def due_ns(self) -> int | None:
        """The time at which the oldest has waited long enough for company."""
        return self._forming.due_ns()
