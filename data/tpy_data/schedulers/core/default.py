"""DefaultCore: the scheduler of models without a scheduling block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from tpy.errors import Unavailable
from tpy.messages import LevelActivity, WaitReason
from tpy_data.schedulers.core.contract import (
    Dispatch,
    Outcome,
    Phase,
    Refuse,
    Respond,
    Ticket,
)
from tpy_data.schedulers.core.credit import CreditPolicy
from tpy_data.schedulers.core.deadlines import NEVER
from tpy_data.schedulers.core.pool_core import PoolCore

if TYPE_CHECKING:
    from tpy_data.schedulers.core.ticket_queue import Waiting

_arrival = attrgetter("arrival")


class DefaultCore(PoolCore):
    """One first-come first-served queue for all instances; each request is a separate batch.

    How many batches an instance may hold is its credit (CreditPolicy): a quick one gets several for one hand-over, and the only
    one of a slow model gets its next ones while it executes. What is not started when another instance comes, when this one
    goes, on `stop`, or when such a request ends early, is revoked: it waits again, in its old place. Limits and cancellation
    hold for requests wherever they are.

    Priorities, queue limits, queue policies and so a request's timeout belong to dynamic batching and have no effect here, as in
    Triton. Its deadline is kept: it is refused when that is reached, in the queue or while it
    runs. A verb called at or after a deadline treats that deadline as passed, whatever else it does.
    """

    __slots__ = ("_arrivals", "_credit", "_waiting")

    def __init__(self, waiting: Waiting | None = None) -> None:
        super().__init__()
        self._waiting: Waiting = OrderedDict() if waiting is None else waiting
        self._arrivals = 0
        self._credit = CreditPolicy()

    @property
    def _queued(self) -> int:
        """As `PoolCore._queued`."""
        return len(self._waiting)

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1, tokens: int = 0) -> None:
        """A new idle instance; takes the oldest waiting tickets at once."""
        self._expire(now_ns)
        self._revoke_prefetched()
        self._pool.add(instance)
        self._credit.add(instance, prefetch=prefetch)
        self._give_waiting(now_ns)

    def remove_instance(self, instance: int, now_ns: int) -> None:
        """The instance takes no new ticket, and gives back what it has not started."""
        self._expire(now_ns)
        self._revoke_prefetched()
        self._revoke(instance)
        self._pool.remove(instance)
        self._credit.forget(instance)

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        """Accept a ticket; one whose deadline is already over is refused at once. Raises Unavailable after `stop`."""
        self._expire(now_ns)
        if self._stopped:
            raise Unavailable(Outcome.STOPPING.value)
        ticket.queued_ns = now_ns
        self._arrivals += 1
        ticket.arrival = self._arrivals
        deadline_ns = ticket.deadline_ns
        if deadline_ns is not None:
            if deadline_ns <= now_ns:
                self._refuse(ticket, Outcome.TIMED_OUT)
                return
            self._deadlines.add(ticket, deadline_ns)
        self._waiting[ticket] = None
        self._give_waiting(now_ns)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """The instance is over with its oldest tickets, and may take next ones."""
        pool = self._pool
        batches = pool.done(instance, len(times_ns))
        self._credit.done(instance, now_ns, times_ns, held=pool.held(instance), members=pool.members)
        self._expire(now_ns)
        self._over(batches, times_ns)
        self._give_waiting(now_ns)

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        """Tickets come back that were not started."""
        self._revoking.discard(instance)
        self._expire(now_ns)
        if batches:
            self._return([ticket for batch in self._pool.revoked(instance, batches) for ticket in batch])
        self._dispatch(now_ns)

    def next_deadline_ns(self) -> int | None:
        """The earliest: of the deadlines of tickets that wait or run, and of the times at which something is revoked."""
        first_ns = None if self._deadlines.soonest_ns == NEVER else self._deadlines.first_ns()
        for revoke_ns in self._credit.ask_ns.values():
            return revoke_ns if first_ns is None else min(first_ns, revoke_ns)
        return first_ns

    def stop(self, now_ns: int) -> None:
        """Refuse everything that waits, and accept nothing more."""
        super().stop(now_ns)
        self._revoke_prefetched()

    def wants_instance(self, now_ns: int) -> bool:
        """True when one more idle instance would be given work now."""
        return bool(self._waiting)

    def take_idle(self) -> list[int]:
        """Take out the idle instances."""
        idle = super().take_idle()
        for instance in idle:
            self._credit.forget(instance)
        return idle

    def _levels(self, now_ns: int) -> tuple[LevelActivity, ...]:
        oldest_ns = max((now_ns - ticket.queued_ns for ticket in islice(self._waiting, 1)), default=0)
        return (LevelActivity(waiting=len(self._waiting), oldest_ns=oldest_ns),)

    def _held_back(self) -> WaitReason:
        return WaitReason.INSTANCE  # a free one is given what waits at once

    def _expire(self, now_ns: int) -> None:
        if self._deadlines.soonest_ns <= now_ns:
            while (ticket := self._deadlines.pop_due(now_ns)) is not None:
                self._leave(ticket)
                self._actions.append(Refuse(ticket, Outcome.TIMED_OUT))
        if self._credit.ask_ns:
            while (instance := self._credit.pop_due(now_ns)) is not None:
                self._revoke(instance)

    def _over(self, batches: Sequence[Sequence[Ticket]], times_ns: Sequence[int]) -> None:
        """Have those of the executed tickets that the model gave back wait again, and answer the others."""
        tickets = [ticket for batch in batches for ticket in batch]
        given_back = self._given_back
        if given_back:
            for ticket in tickets:
                if ticket in given_back:
                    given_back.remove(ticket)
                    self._wait_anew(ticket)
        self._respond(tickets)

    def _wait_anew(self, ticket: Ticket) -> None:
        if ticket.phase is Phase.ENDED:
            return
        self._executing -= 1
        if self._stopped:
            self._deadlines.discard(ticket)
            self._refuse(ticket, Outcome.STOPPING)
            return
        ticket.phase = Phase.QUEUED
        self._arrivals += 1
        ticket.arrival = self._arrivals
        self._waiting[ticket] = None

    def _respond(self, tickets: Sequence[Ticket]) -> None:
        """Answer those of the tickets that have not ended meanwhile."""
        live = tuple([ticket for ticket in tickets if ticket.phase is Phase.EXECUTING])
        if live:
            self._executing -= len(live)
            for ticket in live:
                if ticket.deadline_ns is not None:
                    self._deadlines.discard(ticket)
                ticket.phase = Phase.ENDED
            self._actions.append(Respond(live))

    def _return(self, tickets: Sequence[Ticket]) -> None:
        """Have those of the tickets that have not ended wait again, where their arrival puts them."""
        live = [ticket for ticket in tickets if ticket.phase is Phase.EXECUTING]
        if not live:
            return
        self._executing -= len(live)
        for ticket in live:
            ticket.phase = Phase.QUEUED
        if self._stopped:
            for ticket in live:
                self._deadlines.discard(ticket)
                self._refuse(ticket, Outcome.STOPPING)
            return
        self._put_back(live)

    def _put_back(self, live: list[Ticket]) -> None:
        """Have these wait where their arrival puts them. Only what another instance gave back before can be older than they."""
        waiting = cast("OrderedDict[Ticket, None]", self._waiting)  # where it is not, this is overridden
        last = live[-1].arrival
        while waiting and next(iter(waiting)).arrival < last:
            live.append(waiting.popitem(last=False)[0])
        for ticket in sorted(live, key=_arrival, reverse=True):
            waiting[ticket] = None
            waiting.move_to_end(ticket, last=False)

    def _refuse_waiting(self, outcome: Outcome) -> None:
        while self._waiting:
            ticket, _ = self._waiting.popitem(last=False)
            self._deadlines.discard(ticket)
            self._refuse(ticket, outcome)

    def _give_waiting(self, now_ns: int) -> None:
        """Give instances as much of what waits as they have credit for."""
        self._dispatch(now_ns)
        if self._credit.slow and self._waiting:
            for instance in self._pool.busy():
                if instance not in self._revoking:
                    self._give(instance, now_ns)

    def _dispatch(self, now_ns: int) -> None:
        """The same for idle ones, first the one that has been idle longest."""
        while self._pool.idle and self._waiting:
            self._give(self._pool.idle[0], now_ns)

    def _give(self, instance: int, now_ns: int) -> None:
        waiting, pool, credit = self._waiting, self._pool, self._credit
        held, members = pool.held(instance), pool.members
        count = credit.room(instance, held=held, waiting=len(waiting), members=members)
        if not count:
            return
        batches = []
        for _ in range(count):
            ticket = waiting.popitem(last=False)[0]
            ticket.phase = Phase.EXECUTING
            batches.append((ticket,))
        self._executing += count
        pool.give(instance, batches)
        credit.given(instance, now_ns, held=held, count=count, members=members)
        self._actions.append(Dispatch(instance, tuple(batches)))

    def _revoke_prefetched(self) -> None:
        """Has a sole instance give back the batches that it has not started: another one comes, it goes, or the core stops."""
        if self._pool.members == 1:
            for instance in self._pool.busy():
                if self._credit.prefetches(instance, 1):
                    self._revoke(instance)

    def _revoke(self, instance: int) -> bool:
        if not super()._revoke(instance):
            return False
        self._credit.asked(instance)
        return True

    def _leave(self, ticket: Ticket) -> None:
        """End the ticket, and take it out of the place that it is in. One that is held behind another batch is not to be
        started."""
        if ticket.phase is Phase.EXECUTING:
            self._executing -= 1
            holder = self._pool.prefetches(ticket)
            if holder is not None:
                self._revoke(holder)
        else:
            del self._waiting[ticket]
        self._deadlines.discard(ticket)
        ticket.phase = Phase.ENDED
