"""The scheduler driver: owns exactly one core, brings it requests and the time, and performs its decisions at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tpy.clock import Clock
from tpy.exact_alarm import ExactAlarm
from tpy.messages import QueueActivity
from tpy_data.schedulers.core.contract import (
    Action,
    CoreSnapshot,
    Dispatch,
    LiveSequence,
    Outcome,
    Refuse,
    Respond,
    Revoke,
    SchedulerCore,
    SequenceEnd,
    SequenceEnded,
    Ticket,
)


class Performer(Protocol):
    """Does what a core decided. Called on the Trio thread; must neither block nor raise. It may call the driver's verbs: they
    only feed the core then, and what follows is performed after the present action."""

    def dispatch(self, instance: int, batches: Sequence[Sequence[Ticket]], slots: Sequence[Ticket | None]) -> None:
        """Have this instance run these batches behind the ones that it holds. With `slots`, which are the places of the only
        batch, the empty ones are part of it."""
        ...

    def revoke(self, instance: int) -> int:
        """Take back the last batches that this instance holds and has not started; returns how many. What is over by then is said
        first (`SchedulerDriver.done`)."""
        ...

    def respond(self, tickets: Sequence[Ticket]) -> None:
        """Give these tickets the answers of their execution, in this order."""
        ...

    def refuse(self, ticket: Ticket, outcome: Outcome) -> None:
        """Answer this ticket with an error."""
        ...

    def sequence_ended(self, sequence: LiveSequence, why: SequenceEnd) -> None:
        """Nothing more of this sequence comes."""
        ...

    def retired(self, instance: int) -> None:
        """The instance that was to retire has nothing more to do; do not call `remove_instance` for it."""
        ...


class SchedulerDriver:
    """Every verb feeds the core and performs its actions before it returns, on the caller's stack: no task is woken, so a
    request that finds an idle instance is on its way to it when `submit` returns. `run` is a task of the model version's
    nursery; it wakes for deadlines only."""

    __slots__ = ("_alarm", "_clock", "_core", "_has_more", "_performer", "_performing", "decided_ns")

    def __init__(self, core: SchedulerCore, clock: Clock, performer: Performer) -> None:
        self._core = core
        self._clock = clock
        self._performer = performer
        self._alarm = ExactAlarm(clock, self._advance)
        self._performing = False
        self._has_more = False  # the core was given something since its actions were taken
        self.decided_ns = 0
        """The time of the last decision, also while it is performed."""

    async def run(self) -> None:
        """Tell the core of deadlines, exactly when they come. Runs until cancelled."""
        await self._alarm.run()

    def _advance(self, now_ns: int) -> None:
        self.decided_ns = max(self.decided_ns, now_ns)
        self._core.advance(self.decided_ns)
        self._perform()

    def submit(self, ticket: Ticket) -> None:
        """Accept a ticket. Raises Unavailable when its queue is full or the driver was stopped."""
        now_ns = self._clock.now_ns()  # as `_now`, whose call is felt on this path
        if now_ns < self.decided_ns:
            now_ns = self.decided_ns
        self.decided_ns = now_ns
        self._has_more = True  # also when it is refused
        self._core.submit(ticket, now_ns)
        self._perform()

    def cancel(self, ticket: Ticket) -> None:
        """Forget the ticket: no action for it follows."""
        self._core.cancel(ticket, self._now())
        self._perform()

    def done(self, instance: int, times_ns: Sequence[int] = (0,)) -> None:
        """The oldest batches of this instance are over, and took it so long."""
        self._core.done(instance, self._now(), times_ns)
        self._perform()

    def revoked(self, instance: int, batches: int) -> None:
        """This instance, which has failed, gave back its last batches, which it had not started."""
        self._core.revoked(instance, self._now(), batches)
        self._perform()

    def recall(self) -> None:
        """Have everything wait again that is given to an instance and not started."""
        self._core.recall(self._now())
        self._perform()

    def reschedule(self, ticket: Ticket) -> None:
        """The model gave the executing ticket back: it waits again after `done`, which is yet to come."""
        self._core.reschedule(ticket, self._now())
        self._perform()

    def add_instance(self, instance: int, *, prefetch: bool = False, credit: int = 1, tokens: int = 0) -> None:
        """A new idle instance. `prefetch`: it may hold batches that it is not to start soon; `credit`: the number that it starts
        at a time; `tokens`: the number that an engine has room for."""
        self._core.add_instance(instance, self._now(), prefetch=prefetch, credit=credit, tokens=tokens)
        self._perform()

    def remove_instance(self, instance: int) -> None:
        """The instance gets no new batch; what it runs still comes to its end."""
        self._core.remove_instance(instance, self._now())
        self._perform()

    def retire_instance(self, instance: int) -> None:
        """The instance begins nothing new; `retired` follows when it has nothing more to do."""
        self._core.retire_instance(instance, self._now())
        self._perform()

    def refuse_waiting(self) -> None:
        """Refuse what is queued."""
        self._core.refuse_waiting(self._now())
        self._perform()

    def stop(self) -> None:
        """Refuse what is queued, and every later submit."""
        self._core.stop(self._now())
        self._perform()

    def refuse_executing(self) -> None:
        """Refuse what executes."""
        self._core.refuse_executing(self._now())
        self._perform()

    def snapshot(self) -> CoreSnapshot:
        """The counts of the core."""
        return self._core.snapshot()

    def explain(self) -> QueueActivity:
        """The requests that wait, and why."""
        return self._core.explain(self._now())

    def _now(self) -> int:
        # A deadline is told to the core at its own time, which can be some nanoseconds ahead of a clock made of floats.
        now_ns = self._clock.now_ns()
        if now_ns < self.decided_ns:
            return self.decided_ns
        self.decided_ns = now_ns
        return now_ns

    def _perform(self) -> None:
        self._has_more = True
        if self._performing:
            return  # inside an action: the loop below, further up the stack, takes what was decided meanwhile
        self._performing = True
        core, performer = self._core, self._performer
        try:
            while self._has_more:
                self._has_more = False
                actions = core.take_actions()
                if len(actions) > 1:
                    _work_first(actions)
                for action in actions:
                    if isinstance(action, Dispatch):
                        performer.dispatch(action.instance, action.batches, action.slots)
                    elif isinstance(action, Respond):
                        performer.respond(action.tickets)
                    elif isinstance(action, Refuse):
                        performer.refuse(action.ticket, action.outcome)
                    elif isinstance(action, Revoke):
                        count = performer.revoke(action.instance)
                        core.revoked(action.instance, self._now(), count)
                        self._has_more = True
                    elif isinstance(action, SequenceEnded):
                        performer.sequence_ended(action.sequence, action.why)
                    else:
                        performer.retired(action.instance)
        finally:
            self._performing = False
        deadline_ns = core.next_deadline_ns()
        if deadline_ns is not None:
            self._alarm.bring_forward(deadline_ns)


def _work_first(actions: list[Action]) -> None:
    """Put a Dispatch before the Respond that it follows: the instance has work while answers are given."""
    for index in range(1, len(actions)):
        if isinstance(actions[index], Dispatch) and isinstance(actions[index - 1], Respond):
            actions[index - 1], actions[index] = actions[index], actions[index - 1]
