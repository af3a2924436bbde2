"""DefaultCore: the scheduler of models without a scheduling block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter

from tpy.errors import Unavailable, invariant
from tpy_data.schedulers.core.contract import (
    Action,
    CoreSnapshot,
    Dispatch,
    Outcome,
    Phase,
    Refuse,
    Respond,
    Retired,
    Revoke,
    Ticket,
)
from tpy_data.schedulers.core.credit import CreditPolicy
from tpy_data.schedulers.core.deadlines import NEVER, Deadlines
from tpy_data.schedulers.core.instance_pool import InstancePool

_arrival = attrgetter("arrival")


class DefaultCore:
    """One first-come first-served queue for all instances; each request is a batch of its own.

    How many batches an instance may hold is its credit (CreditPolicy): a quick one gets several for one hand-over, and the only
    one of a slow model gets its next ones while it executes. What is not started when another instance comes, when this one
    goes, on `stop`, or when such a request ends early, is revoked: it waits again, in its old place. Limits and cancellation
    hold for requests wherever they are.

    Priorities, queue limits, queue policies and so a request's timeout belong to dynamic batching and have no effect here, as in
    Triton. Its deadline is kept: it is refused when that is reached, in the queue or while it
    runs. A verb called at or after a deadline treats that deadline as passed, whatever else it does.
    """

    __slots__ = (
        "_actions",
        "_arrivals",
        "_credit",
        "_deadlines",
        "_executing",
        "_given_back",
        "_pool",
        "_revoking",
        "_stopped",
        "_waiting",
    )

    def __init__(self) -> None:
        self._waiting: OrderedDict[Ticket, None] = OrderedDict()
        self._arrivals = 0
        self._pool = InstancePool()
        self._credit = CreditPolicy()
        self._deadlines = Deadlines()
        self._actions: list[Action] = []
        self._executing = 0
        self._given_back: set[Ticket] = set()
        self._revoking: set[int] = set()  # instances of which `revoked` is awaited: they get nothing behind what they hold
        self._stopped = False

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1) -> None:
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

    def retire_instance(self, instance: int, now_ns: int) -> None:
        """The same, and that is all: nothing ties requests to an instance."""
        self.remove_instance(instance, now_ns)
        self._actions.append(Retired(instance))

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

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        """Forget the ticket; its queue place is free at once, its instance only when it is over there."""
        if ticket.phase is not Phase.ENDED:
            self._leave(ticket)
        self._expire(now_ns)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """The instance is over with its oldest tickets, and may take next ones."""
        pool = self._pool
        batches = pool.done(instance, len(times_ns))
        self._credit.done(instance, now_ns, times_ns, held=pool.held(instance), members=pool.members)
        self._expire(now_ns)
        self._over([ticket for batch in batches for ticket in batch])
        self._give_waiting(now_ns)

    def recall(self, now_ns: int) -> None:
        """Revoke whatever is held behind another batch."""
        self._expire(now_ns)
        for instance in self._pool.busy():
            self._revoke(instance)

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        """Tickets come back that were not started."""
        self._revoking.discard(instance)
        self._expire(now_ns)
        if batches:
            self._return([ticket for batch in self._pool.revoked(instance, batches) for ticket in batch])
        self._give_idle(now_ns)

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """The ticket waits again when its execution is over, behind all others; its deadline stays."""
        self._expire(now_ns)
        if ticket.phase is not Phase.ENDED:
            invariant(ticket.phase is Phase.EXECUTING, "a ticket was given back that is not executing")
            self._given_back.add(ticket)

    def next_deadline_ns(self) -> int | None:
        """The earliest: of the deadlines of tickets that wait or run, and of the times at which something is revoked."""
        first_ns = None if self._deadlines.soonest_ns == NEVER else self._deadlines.first_ns()
        for revoke_ns in self._credit.ask_ns.values():
            return revoke_ns if first_ns is None else min(first_ns, revoke_ns)
        return first_ns

    def advance(self, now_ns: int) -> None:
        """Refuse, and revoke, whatever is due."""
        self._expire(now_ns)

    def refuse_waiting(self, now_ns: int) -> None:
        """Refuse everything that waits."""
        self._expire(now_ns)
        self._refuse_waiting(Outcome.NO_INSTANCE)

    def stop(self, now_ns: int) -> None:
        """Refuse everything that waits, and accept nothing more."""
        self._stopped = True
        self._expire(now_ns)
        self._refuse_waiting(Outcome.STOPPING)
        self._revoke_prefetched()

    def refuse_executing(self, now_ns: int) -> None:
        """Refuse everything that executes."""
        self._expire(now_ns)
        for ticket in self._pool.tickets():
            if ticket.phase is Phase.EXECUTING:
                self._leave(ticket)
                self._actions.append(Refuse(ticket, Outcome.STOPPING))

    def wants_instance(self, now_ns: int) -> bool:
        """True when one more idle instance would be given work now."""
        return bool(self._waiting)

    def take_idle(self) -> list[int]:
        """Take out the idle instances."""
        idle = self._pool.take_idle()
        for instance in idle:
            self._credit.forget(instance)
        return idle

    def take_actions(self) -> list[Action]:
        """The decisions since the last call."""
        actions = self._actions
        self._actions = []
        return actions

    def snapshot(self) -> CoreSnapshot:
        """Counts; a running ticket that was refused or cancelled is not counted any more."""
        prefetched = self._pool.prefetched()
        return CoreSnapshot(
            queued=len(self._waiting) + prefetched,
            executing=self._executing - prefetched,
            idle_instances=len(self._pool.idle),
        )

    def _expire(self, now_ns: int) -> None:
        if self._deadlines.soonest_ns <= now_ns:
            while (ticket := self._deadlines.pop_due(now_ns)) is not None:
                self._leave(ticket)
                self._actions.append(Refuse(ticket, Outcome.TIMED_OUT))
        if self._credit.ask_ns:
            while (instance := self._credit.pop_due(now_ns)) is not None:
                self._revoke(instance)

    def _over(self, tickets: Sequence[Ticket]) -> None:
        """Have those of the tickets that the model gave back wait again, and answer the others."""
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
        # Only what another instance gave back before can be older than these.
        last = live[-1].arrival
        while self._waiting and next(iter(self._waiting)).arrival < last:
            live.append(self._waiting.popitem(last=False)[0])
        for ticket in sorted(live, key=_arrival, reverse=True):
            self._waiting[ticket] = None
            self._waiting.move_to_end(ticket, last=False)

    def _refuse_waiting(self, outcome: Outcome) -> None:
        while self._waiting:
            ticket, _ = self._waiting.popitem(last=False)
            self._deadlines.discard(ticket)
            self._refuse(ticket, outcome)

    def _give_waiting(self, now_ns: int) -> None:
        """Give instances as much of what waits as they have credit for."""
        self._give_idle(now_ns)
        if self._waiting and self._credit.has_slow:
            for instance in self._pool.busy():
                if instance not in self._revoking:
                    self._give(instance, now_ns)

    def _give_idle(self, now_ns: int) -> None:
        """The same for idle ones, first the one that has been idle longest."""
        while self._waiting and self._pool.idle:
            self._give(self._pool.idle[0], now_ns)

    def _give(self, instance: int, now_ns: int) -> None:
        waiting, pool, credit = self._waiting, self._pool, self._credit
        held, members = pool.held(instance), pool.members
        count = credit.room(instance, held=held, waiting=len(waiting), members=members)
        if not count:
            return
        tickets = [waiting.popitem(last=False)[0] for _ in range(count)]
        for ticket in tickets:
            ticket.phase = Phase.EXECUTING
        self._executing += count
        batches = tuple([(ticket,) for ticket in tickets])
        pool.give(instance, batches)
        credit.given(instance, now_ns, held=held, count=count, members=members)
        self._actions.append(Dispatch(instance, batches))

    def _revoke_prefetched(self) -> None:
        """Has an only instance give back the batches that it has not started: another one comes, it goes, or the core stops."""
        if self._pool.members == 1:
            for instance in self._pool.busy():
                if self._credit.prefetches(instance, 1):
                    self._revoke(instance)

    def _revoke(self, instance: int) -> None:
        if self._pool.held(instance) > 1 and instance not in self._revoking:
            self._revoking.add(instance)
            self._credit.asked(instance)
            self._actions.append(Revoke(instance))

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

    def _refuse(self, ticket: Ticket, outcome: Outcome) -> None:
        ticket.phase = Phase.ENDED
        self._actions.append(Refuse(ticket, outcome))
