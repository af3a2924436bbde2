"""DynamicCore: the dynamic batcher. ArrivalOrder keeps answers back until those of all earlier requests have left."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpy.config.model_config import TimeoutAction
from tpy.errors import QueueFull, TooManyRequests, Unavailable
from tpy.messages import LevelActivity, WaitReason
from tpy_data.schedulers.core.batch_forming import BatchForming
from tpy_data.schedulers.core.contract import (
    BatchStrategy,
    Dispatch,
    Outcome,
    Phase,
    Refuse,
    Respond,
    Ticket,
)
from tpy_data.schedulers.core.deadlines import NEVER, Deadlines
from tpy_data.schedulers.core.dynamic_options import NO_START_DELAY, DynamicOptions, StartDelay
from tpy_data.schedulers.core.overlap import OverlapRule
from tpy_data.schedulers.core.pool_core import PoolCore
from tpy_data.schedulers.core.priority_queue import PriorityQueue, QueueLevel

if TYPE_CHECKING:
    from tpy_data.schedulers.core.ticket_queue import TicketQueue


class _ArrivalOrder:
    """All tickets that have not ended, in order of arrival. Every verb costs O(1) per ticket that it concerns."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: OrderedDict[Ticket, None] = OrderedDict()

    def add(self, ticket: Ticket) -> None:
        """The ticket was accepted."""
        self._open[ticket] = None

    def discard(self, ticket: Ticket) -> None:
        """The ticket ended without an answer; nobody waits for it any more."""
        self._open.pop(ticket, None)

    def take_released(self) -> list[Ticket]:
        """Take out the executed tickets that no earlier ticket holds back."""
        released: list[Ticket] = []
        while self._open:
            first = next(iter(self._open))
            if first.phase is not Phase.EXECUTED:
                break
            del self._open[first]
            released.append(first)
        return released


class DynamicCore(PoolCore):
    """Puts whole requests together into batches, by priority, within the limits of the model's configuration.

    A batch is formed at the moment when an instance is idle, never ahead of time, so that it is as full and its priorities
    and timeouts as fresh as can be. An instance with more credit than one gets its next batches while it executes, when no other
    is idle; batches that it has not started are revoked by `recall`, and when it goes.

    Two kinds of time limit:
    * end to end: the ticket's deadline refuses it, in the queue, while it runs, or while its answer waits for its turn.
    * the queue's: the level's default timeout, or the caller's shorter one where that is allowed. It refuses (REJECT) or moves
      back (DELAY) a ticket that still waits, and never touches one that runs.

    A verb called at or after a limit treats it as passed before it does anything else; `cancel` forgets its ticket first.

    Where the model neither prefers sizes nor waits for company, a sole instance may be given half of the queue (OverlapRule).
    A `strategy` is asked before a ticket joins a batch. `queue` replaces the PriorityQueue.
    """

    __slots__ = ("_forming", "_held_back_max", "_order", "_overlap", "_overlap_terms", "_queue", "_queue_timeouts")

    def __init__(
        self,
        options: DynamicOptions,
        delay: StartDelay = NO_START_DELAY,
        strategy: BatchStrategy | None = None,
        queue: TicketQueue | None = None,
    ) -> None:
        super().__init__()
        self._held_back_max = max(0, delay.queued - 1)  # this many are not enough to begin; 0 once it has begun
        self._queue: TicketQueue = PriorityQueue(options) if queue is None else queue
        self._forming = BatchForming(options, strategy)
        self._order = _ArrivalOrder() if options.preserve_ordering else None
        self._overlap_terms = options.overlap if strategy is None else None
        self._overlap: OverlapRule | None = None
        self._queue_timeouts = Deadlines()

    @property
    def _queued(self) -> int:
        """As `PoolCore._queued`."""
        return self._queue.count

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1, tokens: int = 0) -> None:
        """A new idle instance."""
        self._expire(now_ns)
        self._pool.add(instance, credit=credit)
        self._watch_anew()
        self._dispatch(now_ns)

    def remove_instance(self, instance: int, now_ns: int) -> None:
        """The instance takes no new batch, and gives back the batches that it has not started."""
        self._expire(now_ns)
        self._revoke(instance)
        self._pool.remove(instance)
        self._watch_anew()
        self._dispatch(now_ns)

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        """Accept a ticket; one whose deadline is already over is refused at once.

        Raises Unavailable when the ticket's level is full, and after `stop`.
        """
        if self._deadlines.soonest_ns <= now_ns or self._queue_timeouts.soonest_ns <= now_ns:
            self._expire(now_ns)
        if self._stopped:
            raise Unavailable(Outcome.STOPPING.value)
        ticket.queued_ns = now_ns
        try:
            level = self._queue.admit(ticket)
        except TooManyRequests:
            self._dispatch(now_ns)
            raise
        deadline_ns = ticket.deadline_ns
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._refuse(ticket, Outcome.TIMED_OUT)
        elif len(level.waiting) + len(level.delayed) >= level.size_max:
            self._dispatch(now_ns)
            raise QueueFull("Exceeds maximum queue size")
        else:
            if deadline_ns is not None:
                self._deadlines.add(ticket, deadline_ns)
            if self._order is not None:
                self._order.add(ticket)
            self._enqueue(ticket, level, deadline_ns, now_ns)
        self._dispatch(now_ns)

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        """As `PoolCore.cancel`; answers that waited for this ticket's leave."""
        super().cancel(ticket, now_ns)
        self._release()

    def refuse_executing(self, now_ns: int) -> None:
        """As `PoolCore.refuse_executing`; answers that waited for others leave."""
        super().refuse_executing(now_ns)
        self._release()

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """Batches are over; those of their tickets that have not ended get their answers, now or in their turn."""
        if self._deadlines.soonest_ns <= now_ns or self._queue_timeouts.soonest_ns <= now_ns:
            self._expire(now_ns)
        batches = self._pool.done(instance, len(times_ns))
        tickets = batches[0] if len(batches) == 1 else [ticket for batch in batches for ticket in batch]
        if self._given_back:
            self._wait_anew(tickets, now_ns)
        live = [ticket for ticket in tickets if ticket.phase is Phase.EXECUTING]
        self._executing -= len(live)
        if self._order is None:
            self._respond(live)
        else:
            for ticket in live:
                ticket.phase = Phase.EXECUTED
            self._release()
        if self._overlap is None:
            self._watch_anew()  # one that was leaving may be gone now
        else:
            self._overlap.ended(len(tickets), self._queue.count, times_ns[-1], now_ns)
        self._dispatch(now_ns)

    def next_deadline_ns(self) -> int | None:
        """The earliest of: a ticket's end-to-end deadline, its time in the queue, the end of the wait for company."""
        first_ns = self._forming.due_ns() if self._forming.looked else None
        for deadlines in (self._deadlines, self._queue_timeouts):
            if deadlines.soonest_ns != NEVER:
                at_ns = deadlines.first_ns()
                if at_ns is not None and (first_ns is None or at_ns < first_ns):
                    first_ns = at_ns
        return first_ns

    def wants_instance(self, now_ns: int) -> bool:
        """True when one more idle instance would be given a batch now. If not yet, `next_deadline_ns` says when."""
        if self._queue.count <= self._held_back_max:
            return False
        if not self._forming.looked:
            self._forming.look(self._queue.in_order())
        if self._forming.ready_count(now_ns) == 0:
            return False
        self._forming.reset()  # when it was due is past, and no deadline any more
        return True

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        """Batches come back: their tickets wait again, in their old places, and with the time in the queue that they had."""
        self._revoking.discard(instance)
        self._expire(now_ns)
        for tickets in reversed(self._pool.revoked(instance, batches) if batches else ()):
            self._return(tickets, now_ns)
        self._release()
        self._expire(now_ns)
        self._watch_anew()
        self._dispatch(now_ns)

    def _levels(self, now_ns: int) -> tuple[LevelActivity, ...]:
        return self._queue.explain(now_ns)

    def _held_back(self) -> WaitReason:
        return WaitReason.START_DELAY if self._queue.count <= self._held_back_max else self._forming.waits_for

    def _due_ns(self) -> int | None:
        return self._forming.due_ns()

    def _enqueue(self, ticket: Ticket, level: QueueLevel, deadline_ns: int | None, now_ns: int) -> None:
        ticket.ready_ns = now_ns
        if level.rules.default_timeout_ns > 0:
            queue_timeout_at_ns = now_ns + level.rules.queue_timeout_ns(ticket.timeout_ns)
            if deadline_ns is None or queue_timeout_at_ns < deadline_ns:
                self._queue_timeouts.add(ticket, queue_timeout_at_ns)
        ticket.phase = Phase.QUEUED
        seen = self._forming
        if seen.looked:
            # While a batch waits for company it has seen the whole queue, so its last ticket is the queue's last.
            last_level = self._queue.level_of(seen.tickets[-1]) if seen.tickets else level
            if last_level.index <= level.index and not level.delayed:
                seen.add(ticket)
                if self._queue.reorders and seen.depends_on_order(now_ns):
                    seen.reset()
            else:
                seen.reset()
        self._queue.push(ticket, level)

    def _wait_anew(self, tickets: Sequence[Ticket], now_ns: int) -> None:
        """Have those of the executed tickets that the model gave back wait again."""
        for ticket in tickets:
            if ticket not in self._given_back:
                continue
            self._given_back.remove(ticket)
            if ticket.phase is Phase.ENDED:
                continue
            self._executing -= 1
            if self._stopped:
                self._forget(ticket)
                self._refuse(ticket, Outcome.STOPPING)
            else:
                self._enqueue(ticket, self._queue.level_of(ticket), None, now_ns)

    def _return(self, tickets: Sequence[Ticket], now_ns: int) -> None:
        """Have those of the tickets that have not ended wait again."""
        for ticket in reversed(tickets):
            if ticket.phase is not Phase.EXECUTING:
                continue
            self._executing -= 1
            if self._stopped:
                self._forget(ticket)
                self._refuse(ticket, Outcome.STOPPING)
                continue
            level = self._queue.level_of(ticket)
            expires_ns = self._expires_ns(ticket, level)
            is_delayed = expires_ns is not None and expires_ns <= now_ns and level.rules.timeout_action is TimeoutAction.DELAY
            if expires_ns is not None and not is_delayed:
                self._queue_timeouts.add(ticket, expires_ns)
            ticket.phase = Phase.QUEUED
            self._queue.push_back(ticket, level, expires_ns if is_delayed else None)
        self._forming.reset()

    @staticmethod
    def _expires_ns(ticket: Ticket, level: QueueLevel) -> int | None:
        """The end of the ticket's time in the queue."""
        queue_timeout_ns = level.rules.queue_timeout_ns(ticket.timeout_ns)
        return ticket.ready_ns + queue_timeout_ns if queue_timeout_ns > 0 else None

    def _watch_anew(self) -> None:
        """The instances have changed: what the rule observed does not apply to them, and it is for a sole instance."""
        terms = self._overlap_terms
        self._overlap = OverlapRule(terms) if terms is not None and self._pool.has_only_one else None

    def _dispatch(self, now_ns: int) -> None:
        """Send batches while an instance is free and one is worth sending."""
        queue, forming, overlap = self._queue, self._forming, self._overlap
        while queue.count > self._held_back_max and (instance := self._pool.next_free(self._revoking)) is not None:
            self._held_back_max = 0
            if not forming.looked:
                forming.look(queue.in_order())
            count = forming.ready_count(now_ns)
            if count == 0:
                return
            if overlap is not None:
                count = overlap.share_of(count)
            tickets = forming.tickets[:count]
            forming.reset()
            queue.take(tickets)
            has_timeouts = self._queue_timeouts.soonest_ns != NEVER
            for ticket in tickets:
                if has_timeouts:
                    self._queue_timeouts.discard(ticket)
                ticket.phase = Phase.EXECUTING
            self._executing += count
            if overlap is not None:
                overlap.began(count, now_ns)
            self._pool.give(instance, (tickets,))
            self._actions.append(Dispatch(instance, (tickets,)))
        if forming.looked:
            forming.reset()

    def _refuse_waiting(self, outcome: Outcome) -> None:
        self._forming.reset()
        for ticket in self._queue.drain():
            self._forget(ticket)
            self._queue_timeouts.discard(ticket)
            self._refuse(ticket, outcome)
        self._release()

    def _expire(self, now_ns: int) -> None:
        """Apply every time limit that has passed. End-to-end deadlines first: what they refuse need not be moved back."""
        if self._deadlines.soonest_ns > now_ns and self._queue_timeouts.soonest_ns > now_ns:
            return
        expired = False
        while (ticket := self._deadlines.pop_due(now_ns)) is not None:
            self._leave(ticket)
            self._actions.append(Refuse(ticket, Outcome.TIMED_OUT))
            expired = True
        while (ticket := self._queue_timeouts.pop_due(now_ns)) is not None:
            level = self._queue.level_of(ticket)
            if level.rules.timeout_action is TimeoutAction.DELAY:
                self._queue.delay(ticket, self._expires_ns(ticket, level) or now_ns)
                self._forming.reset()
            else:
                self._leave(ticket)
                self._actions.append(Refuse(ticket, Outcome.TIMED_OUT))
                expired = True
        if expired:
            self._release()

    def _respond(self, tickets: Sequence[Ticket]) -> None:
        if not tickets:
            return
        for ticket in tickets:
            if ticket.deadline_ns is not None:
                self._deadlines.discard(ticket)
            ticket.phase = Phase.ENDED
        self._actions.append(Respond(tickets))

    def _release(self) -> None:
        """Answer the executed tickets whose turn it is."""
        if self._order is not None:
            self._respond(self._order.take_released())

    def _leave(self, ticket: Ticket) -> None:
        """End the ticket without an answer, wherever it is."""
        if ticket.phase is Phase.EXECUTING:
            self._executing -= 1
        elif ticket.phase is Phase.QUEUED:
            self._queue.remove((ticket,))
            self._queue_timeouts.discard(ticket)
            self._forming.reset()
        self._forget(ticket)
        ticket.phase = Phase.ENDED

    def _forget(self, ticket: Ticket) -> None:
        self._deadlines.discard(ticket)
        if self._order is not None:
            self._order.discard(ticket)
