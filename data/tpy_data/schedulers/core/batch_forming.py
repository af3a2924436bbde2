"""BatchForming: how far the next batch has come, and whether to send it or wait for company."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from tpy.messages import WaitReason
from tpy_data.schedulers.core.contract import BatchStrategy, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions


class BatchForming:
    """A look at the front of the queue: the tickets that the next batch could take. They stay in the queue until it is sent.

    While nothing but arrivals at the end of the queue happens, the look is continued rather than begun again, so that waiting
    for company costs O(1) per arrival.

    * `looked`: whether the look has begun; then `tickets` are the queue's first.
    * `tickets`, `_rows`, `_oldest_ns`: what fits together so far, the sum of batch sizes, since when the first of them was ready.
    * `_marked`: how many of the tickets make the best size to send before the delay is over; 0: none yet.
    * `_preferred_min`: the smallest of several preferred sizes, from which the order of the tickets may decide how many of them
      go, even if all fit; where only one is preferred it never does.
    * `_closed`: the next ticket in the queue does not fit (too large, incompatible, or `_strategy` says so), so waiting gains
      nothing.
    """

    __slots__ = (
        "_batch_size_max",
        "_closed",
        "_delay_ns",
        "_marked",
        "_oldest_ns",
        "_preferred",
        "_preferred_max",
        "_preferred_min",
        "_rows",
        "_signature",
        "_strategy",
        "looked",
        "tickets",
    )

    def __init__(self, options: DynamicOptions, strategy: BatchStrategy | None = None) -> None:
        self._strategy = strategy
        self.tickets: list[Ticket] = []
        self._batch_size_max = options.batch_size_max
        self._preferred = options.preferred
        self._preferred_max = max(options.preferred)
        self._preferred_min = min(options.preferred) if len(options.preferred) > 1 else math.inf
        self._delay_ns = options.queue_delay_ns_max
        self.reset()

    def reset(self) -> None:
        """Forget what was seen."""
        if self._strategy is not None and self.tickets:
            self._strategy.end()
        self.looked = False
        self.tickets = []
        self._rows = 0
        self._oldest_ns = 0
        self._signature: Hashable = None
        self._marked = 0
        self._closed = False

    def look(self, queue: Iterable[Ticket]) -> None:
        """See how many of the queue's first tickets fit together."""
        self.looked = True
        for ticket in queue:
            if not self.add(ticket):
                break

    def add(self, ticket: Ticket) -> bool:
        """See the next ticket of the queue. False: looking further cannot change the decision."""
        if self._closed:
            return False
        rows = self._rows + ticket.batch_size
        if self.tickets:
            if rows > self._preferred_max and self._marked == 0 and self._delay_ns > 0:
                # With time left it is better to leave this ticket for a batch of a preferred size; without, to take it along.
                self._marked = len(self.tickets)
            if rows > self._batch_size_max or ticket.signature != self._signature:
                self._closed = True
                return False
            if self._strategy is not None and not self._strategy.include(ticket):
                self._closed = True
                return False
            self._oldest_ns = min(self._oldest_ns, ticket.ready_ns)
        else:
            self._signature = ticket.signature
            self._oldest_ns = ticket.ready_ns
            if self._strategy is not None:
                self._strategy.begin()
                self._strategy.include(ticket)
        self.tickets.append(ticket)
        self._rows = rows
        if rows in self._preferred:
            self._marked = len(self.tickets)
        # Without a delay a preferred size is never exceeded.
        return self._delay_ns > 0 or self._marked == 0 or rows < self._preferred_max

    def due_ns(self) -> int | None:
        """The time at which the tickets seen are sent even if nothing else arrives; None: none was seen."""
        return self._oldest_ns + self._delay_ns if self.tickets else None

    def depends_on_order(self, now_ns: int) -> bool:
        """True when other tickets might go now if those seen were in another order."""
        return self._rows >= self._preferred_min or self.ready_count(now_ns) > 0

    @property
    def waits_for(self) -> WaitReason:
        """The company that a batch waits for."""
        return WaitReason.BATCH_DELAY if self._preferred == {self._batch_size_max} else WaitReason.PREFERRED_BATCH_SIZE

    def ready_count(self, now_ns: int) -> int:
        """The number of `tickets` to send now; 0: wait."""
        delay_over = self._delay_ns > 0 and now_ns - self._oldest_ns >= self._delay_ns
        if self._marked and not delay_over:
            return self._marked
        if delay_over or self._delay_ns == 0 or self._closed or self._rows >= self._preferred_max:
            return len(self.tickets)
        return 0
