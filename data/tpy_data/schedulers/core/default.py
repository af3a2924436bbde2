"""DefaultCore: the scheduler of models without a scheduling block."""

from __future__ import annotations

from collections import OrderedDict

from tpy.errors import Unavailable
from tpy_data.schedulers.core.contract import Action, CoreSnapshot, Dispatch, Outcome, Phase, Refuse, Respond, Ticket
from tpy_data.schedulers.core.deadlines import Deadlines
from tpy_data.schedulers.core.instances import InstancePool


def end_to_end_deadline_ns(ticket: Ticket, now_ns: int) -> int | None:
    """The earlier of the caller's timeout (counted from `now_ns`, the submission) and the transport's deadline."""
    deadline_ns = ticket.deadline_ns
    if ticket.timeout_ns <= 0:
        return deadline_ns
    timeout_at_ns = now_ns + ticket.timeout_ns
    return timeout_at_ns if deadline_ns is None or timeout_at_ns < deadline_ns else deadline_ns


class DefaultCore:
    """One first-come first-served queue for all instances; each request runs alone.

    Priorities, queue limits and queue policies belong to dynamic batching and have no effect here, as in Triton. Unlike in
    Triton, a request's timeout and deadline are kept: it is refused when the first of them is reached, in the queue or while it
    runs. A verb called at or after a deadline treats that deadline as passed, whatever else it does.
    """

    __slots__ = ("_actions", "_deadlines", "_executing", "_pool", "_stopped", "_waiting")

    def __init__(self) -> None:
        self._waiting: OrderedDict[Ticket, None] = OrderedDict()
        self._pool = InstancePool()
        self._deadlines = Deadlines()
        self._actions: list[Action] = []
        self._executing = 0
        self._stopped = False

    def add_instance(self, instance: int, now_ns: int) -> None:
        """A new idle instance; takes the oldest waiting ticket at once."""
        self._expire(now_ns)
        self._pool.add(instance)
        self._run_waiting()

    def remove_instance(self, instance: int, now_ns: int) -> None:
        """The instance takes no new ticket."""
        self._expire(now_ns)
        self._pool.remove(instance)

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        """Accept a ticket; one whose deadline is already over is refused at once. Raises Unavailable after `stop`."""
        self._expire(now_ns)
        if self._stopped:
            raise Unavailable(Outcome.STOPPING.value)
        ticket.queued_ns = now_ns
        deadline_ns = end_to_end_deadline_ns(ticket, now_ns)
        if deadline_ns is not None:
            if deadline_ns <= now_ns:
                self._refuse(ticket, Outcome.TIMED_OUT)
                return
            self._deadlines.add(ticket, deadline_ns)
        if self._pool.idle:  # then nobody waits
            self._run(ticket)
        else:
            self._waiting[ticket] = None

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        """Forget the ticket; its queue place is free at once, its instance only when it completes."""
        if ticket.phase is not Phase.ENDED:
            self._leave(ticket)
        self._expire(now_ns)

    def completed(self, instance: int, now_ns: int) -> None:
        """The instance is over with its ticket, and takes the next one."""
        self._expire(now_ns)
        tickets = self._pool.finish(instance)
        ticket = tickets[0]
        if ticket.phase is Phase.EXECUTING:
            self._leave(ticket)
            self._actions.append(Respond(tickets))
        if self._waiting:
            self._run_waiting()

    def next_deadline_ns(self) -> int | None:
        """The earliest deadline of a ticket that waits or runs."""
        return self._deadlines.first_ns()

    def advance(self, now_ns: int) -> None:
        """Refuse whatever is due."""
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

    def take_actions(self) -> list[Action]:
        """The decisions since the last call."""
        actions = self._actions
        self._actions = []
        return actions

    def snapshot(self) -> CoreSnapshot:
        """Counts; a running ticket that was refused or cancelled is not counted any more."""
        return CoreSnapshot(queued=len(self._waiting), executing=self._executing, idle_instances=len(self._pool.idle))

    def _expire(self, now_ns: int) -> None:
        while (ticket := self._deadlines.pop_due(now_ns)) is not None:
            self._leave(ticket)
            self._actions.append(Refuse(ticket, Outcome.TIMED_OUT))

    def _refuse_waiting(self, outcome: Outcome) -> None:
        while self._waiting:
            ticket, _ = self._waiting.popitem(last=False)
            self._deadlines.discard(ticket)
            self._refuse(ticket, outcome)

    def _run_waiting(self) -> None:
        while self._waiting and self._pool.idle:
            self._run(self._waiting.popitem(last=False)[0])

    def _run(self, ticket: Ticket) -> None:
        tickets = (ticket,)
        ticket.phase = Phase.EXECUTING
        self._executing += 1
        self._actions.append(Dispatch(self._pool.start(tickets), tickets))

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
