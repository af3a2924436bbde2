"""DefaultCore: the scheduler of models without a scheduling block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter

from tpy.errors import Unavailable, invariant
from tpy_data.schedulers.core.contract import (
    Action,
    BreakUp,
    CoreSnapshot,
    Dispatch,
    Outcome,
    Phase,
    Refuse,
    Respond,
    Retired,
    Ticket,
)
from tpy_data.schedulers.core.deadlines import Deadlines
from tpy_data.schedulers.core.instances import InstancePool
from tpy_data.schedulers.core.run_ahead import RunAhead

_arrival = attrgetter("arrival")


class DefaultCore:
    """One first-come first-served queue for all instances; each request is executed alone.

    When requests wait, an instance that is quick is given several at a time, to be executed one after the other: otherwise
    handing over takes longer than what is handed over. It gives back what it does not come to soon, and that waits again, in
    its old place. Until then those requests count as executing; their limits hold in any case. A slow instance that is the only
    one gets several too, so that it need not wait for the next: it gives nothing back unless it is asked to, which happens when
    another one comes, when it goes itself, and on `stop`.

    Priorities, queue limits, queue policies and so a request's timeout belong to dynamic batching and have no effect here, as in
    Triton. Its deadline is kept: it is refused when that is reached, in the queue or while it
    runs. A verb called at or after a deadline treats that deadline as passed, whatever else it does.
    """

    __slots__ = ("_actions", "_ahead", "_arrivals", "_deadlines", "_executing", "_given_back", "_pool", "_stopped", "_waiting")

    def __init__(self) -> None:
        self._waiting: OrderedDict[Ticket, None] = OrderedDict()
        self._arrivals = 0
        self._pool = InstancePool()
        self._ahead = RunAhead()
        self._deadlines = Deadlines()
        self._actions: list[Action] = []
        self._executing = 0
        self._given_back: set[Ticket] = set()
        self._stopped = False

    def add_instance(self, instance: int, now_ns: int, *, steady: bool = False) -> None:
        """A new idle instance; takes the oldest waiting ticket at once."""
        self._expire(now_ns)
        self._pool.add(instance)
        self._ahead.add(instance, steady=steady)
        self._run_waiting(now_ns)
        self._break_up_steady()

    def remove_instance(self, instance: int, now_ns: int) -> None:
        """The instance takes no new ticket."""
        self._expire(now_ns)
        self._pool.remove(instance)
        self._ahead.forget(instance)
        self._break_up_steady()

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
        if self._pool.idle:  # then nobody waits
            self._run((ticket,))
        else:
            self._waiting[ticket] = None

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        """Forget the ticket; its queue place is free at once, its instance only when it completes."""
        if ticket.phase is not Phase.ENDED:
            self._leave(ticket)
        self._expire(now_ns)

    def completed(self, instance: int, now_ns: int, *, not_begun: int = 0, brief: bool = False, took_ns: int = 0) -> None:
        """The instance is over with its tickets, and takes the next ones."""
        tickets = self._pool.finish(instance)
        begun = len(tickets) - not_begun
        invariant(begun >= 0, f"instance {instance} gave back more tickets than it was given")
        self._ahead.completed(instance, begun=begun, whole=not not_begun, brief=brief, took_ns=took_ns)
        self._expire(now_ns)
        self._over(tickets[:begun])
        if not_begun:
            self._return(tickets[begun:])
        if self._waiting:
            self._run_waiting(now_ns)

    def broken_up(self, instance: int, now_ns: int, *, executed: int, not_begun: int) -> None:
        """The instance is over with some of its tickets, and gives some back."""
        self._expire(now_ns)
        done, returned = self._pool.shorten(instance, executed, not_begun)
        self._ahead.shortened(instance, len(self._pool.tickets_of(instance)))
        self._over(done)
        self._return(returned)
        if self._waiting:
            self._run_waiting(now_ns)

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """The ticket waits again when its execution is over, behind all others; its deadline stays."""
        self._expire(now_ns)
        if ticket.phase is not Phase.ENDED:
            invariant(ticket.phase is Phase.EXECUTING, "a ticket was given back that is not executing")
            self._given_back.add(ticket)

    def next_deadline_ns(self) -> int | None:
        """The earliest: of the deadlines of tickets that wait or run, and of the times at which runs are broken up."""
        first_ns, break_up_ns = self._deadlines.first_ns(), self._ahead.first_ns()
        if first_ns is None or break_up_ns is None:
            return break_up_ns if first_ns is None else first_ns
        return min(first_ns, break_up_ns)

    def advance(self, now_ns: int) -> None:
        """Refuse, and break up, whatever is due."""
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
        self._break_up_steady()

    def refuse_executing(self, now_ns: int) -> None:
        """Refuse everything that executes."""
        self._expire(now_ns)
        for ticket in self._pool.tickets():
            if ticket.phase is Phase.EXECUTING:
                self._leave(ticket)
                self._actions.append(Refuse(ticket, Outcome.STOPPING))

    def wants_instance(self, now_ns: int) -> bool:
        """Whether one more idle instance would be given work now."""
        return bool(self._waiting)

    def take_idle(self) -> list[int]:
        """Take out the idle instances."""
        idle = self._pool.take_idle()
        for instance in idle:
            self._ahead.forget(instance)
        return idle

    def take_actions(self) -> list[Action]:
        """The decisions since the last call."""
        actions = self._actions
        self._actions = []
        return actions

    def snapshot(self) -> CoreSnapshot:
        """Counts; a running ticket that was refused or cancelled is not counted any more."""
        at_hand = sum(
            [ticket.phase is Phase.EXECUTING for instance in self._ahead.steady for ticket in self._pool.tickets_of(instance)[1:]]
        )
        return CoreSnapshot(
            queued=len(self._waiting) + at_hand,
            executing=self._executing - at_hand,
            idle_instances=len(self._pool.idle),
        )

    def _expire(self, now_ns: int) -> None:
        while (ticket := self._deadlines.pop_due(now_ns)) is not None:
            self._leave(ticket)
            self._actions.append(Refuse(ticket, Outcome.TIMED_OUT))
        while (instance := self._ahead.pop_due(now_ns)) is not None:
            self._actions.append(BreakUp(instance))

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
            for ticket in live:
                self._leave(ticket)
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

    def _run_waiting(self, now_ns: int) -> None:
        waiting, pool = self._waiting, self._pool
        while waiting and pool.idle:
            instance = pool.idle[0]
            count, steady = self._ahead.length(instance, len(waiting), pool.members)
            if count > 1:
                self._ahead.started(instance, now_ns, steady=steady)
            self._run(tuple([waiting.popitem(last=False)[0] for _ in range(count)]), steady=steady)

    def _break_up_steady(self) -> None:
        """Things have changed for those who have steady runs: what they have not begun waits again."""
        self._actions.extend([BreakUp(instance) for instance in self._ahead.take_steady()])

    def _run(self, tickets: tuple[Ticket, ...], *, steady: bool = False) -> None:
        """Give the tickets to the instance that has been idle longest."""
        for ticket in tickets:
            ticket.phase = Phase.EXECUTING
        self._executing += len(tickets)
        self._actions.append(Dispatch(self._pool.start(tickets), tickets, singly=True, steady=steady))

    def _leave(self, ticket: Ticket) -> None:
        """Take the ticket out of the place it is in."""
        if ticket.phase is Phase.EXECUTING:
            self._executing -= 1
        else:
            del self._waiting[ticket]
        self._deadlines.discard(ticket)
        ticket.phase = Phase.ENDED

    def _refuse(self, ticket: Ticket, outcome: Outcome) -> None:
        ticket.phase = Phase.ENDED
        self._actions.append(Refuse(ticket, outcome))
