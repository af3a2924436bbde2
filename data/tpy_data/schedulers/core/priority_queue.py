"""PriorityQueue: tickets that wait, in the order in which they are to be served."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tpy.messages import LevelActivity
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.lines import TicketLevel

QueueLevel = TicketLevel[Ticket]


class PriorityQueue:
    """Strict priorities: a level is served when all before it are empty; within one, unexpired tickets before delayed ones.

    Every verb costs O(1), whatever waits, but for what `push_back` brings back. `count` is the number of tickets.
    """

    __slots__ = ("_arrivals", "_default", "_levels", "count")

    def __init__(self, options: DynamicOptions) -> None:
        self._levels = tuple(QueueLevel(index, rules) for index, rules in enumerate(options.levels))
        self._default = self._levels[options.default_level]
        self._arrivals = 0
        self.count = 0

    def level_of(self, ticket: Ticket) -> QueueLevel:
        """The ticket's level: 1 is the highest; anything but a level means the default one."""
        levels = self._levels
        return levels[ticket.priority - 1] if 0 < ticket.priority <= len(levels) else self._default

    admit = level_of
    """The level that a new ticket is for."""

    reorders = False
    """True if a ticket that comes last need not be served last."""

    def push(self, ticket: Ticket, level: QueueLevel) -> None:
        """Put the ticket behind the unexpired tickets of its level."""
        self._arrivals += 1
        ticket.arrival = self._arrivals
        level.waiting[ticket] = None
        self.count += 1

    def push_back(self, ticket: Ticket, level: QueueLevel, expired_ns: int | None) -> None:
        """Put a ticket that was taken out of its level in its old place; `expired_ns` is when its time in the queue was over,
        None: it is not. Costs as much as stands before it."""
        insert_back(level, ticket, expired_ns)
        self.count += 1

    def remove(self, tickets: Sequence[Ticket]) -> None:
        """Take the tickets out, wherever they stand."""
        only = self._default if len(self._levels) == 1 else None
        for ticket in tickets:
            level = only or self.level_of(ticket)
            if ticket in level.waiting:
                del level.waiting[ticket]
            else:
                del level.delayed[ticket]
        self.count -= len(tickets)

    take = remove
    """Take the tickets out, to give them to an instance."""

    def delay(self, ticket: Ticket, expired_ns: int) -> None:
        """Move a ticket whose time in the queue was over at `expired_ns` behind all others of its level that were there
        before."""
        level = self.level_of(ticket)
        del level.waiting[ticket]
        insert_delayed(level, ticket, expired_ns)

    def in_order(self) -> Iterator[Ticket]:
        """All tickets, the next to serve first. The queue may not change meanwhile."""
        # Not a generator of tickets: it would be resumed for each ticket of each batch.
        if len(self._levels) == 1:
            return itertools.chain(self._default.waiting, self._default.delayed)
        return itertools.chain.from_iterable(part for level in self._levels for part in (level.waiting, level.delayed))

    def explain(self, now_ns: int) -> tuple[LevelActivity, ...]:
        """The tickets of each level, and how long the first of them have waited."""
        has_levels = len(self._levels) > 1
        return tuple(
            LevelActivity(
                priority=level.index + 1 if has_levels else 0,
                waiting=len(level.waiting) + len(level.delayed),
                oldest_ns=max(
                    (
                        now_ns - ticket.queued_ns
                        for ticket in (*itertools.islice(level.delayed, 1), *itertools.islice(level.waiting, 1))
                    ),
                    default=0,
                ),
                size_max=level.rules.queue_size_max,
            )
            for level in self._levels
        )

    def drain(self) -> list[Ticket]:
        """Take all tickets out, in order."""
        tickets = list(self.in_order())
        for level in self._levels:
            level.waiting.clear()
            level.delayed.clear()
        self.count = 0
        return tickets


def insert_back(level: QueueLevel, ticket: Ticket, expired_ns: int | None) -> None:
    """As `PriorityQueue.push_back`, for one level."""
    if expired_ns is not None:
        insert_delayed(level, ticket, expired_ns)
        return
    before = list(itertools.takewhile(lambda each: each.arrival < ticket.arrival, level.waiting))
    for each in reversed([*before, ticket]):
        level.waiting[each] = None
        level.waiting.move_to_end(each, last=False)


def insert_delayed(level: QueueLevel, ticket: Ticket, expired_ns: int) -> None:
    """Put the ticket among the delayed ones. Nearly always it is the last of them."""
    delayed = level.delayed
    place = (expired_ns, ticket.arrival)
    later = list(itertools.takewhile(lambda each: (delayed[each], each.arrival) > place, reversed(delayed)))
    delayed[ticket] = expired_ns
    for each in reversed(later):
        delayed.move_to_end(each)
