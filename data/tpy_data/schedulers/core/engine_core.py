"""EngineCore: the scheduler of engines, which run many requests side by side and end them in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tpy.config.model_config import ModelConfig, TimeoutAction
from tpy.errors import QueueFull, TooManyRequests, Unavailable, invariant
from tpy.limits import ENGINE_QUEUE_MAX
from tpy.messages import QueueActivity, WaitReason
from tpy_data.schedulers.core.contract import (
    Action,
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
from tpy_data.schedulers.core.dynamic_options import DynamicOptions, dynamic_options
from tpy_data.schedulers.core.priority_queue import PriorityQueue, QueueLevel

if TYPE_CHECKING:
    from tpy_data.schedulers.core.ticket_queue import TicketQueue


class _Room:
    """An engine: what it may hold, and what it does. `given` are the tickets whose batch is not `done`, the oldest first."""

    __slots__ = ("given", "held", "is_retiring", "sequences", "sequences_max", "tokens", "tokens_max")

    def __init__(self, sequences_max: int, tokens_max: int) -> None:
        self.sequences_max = sequences_max
        self.tokens_max = tokens_max
        self.held: dict[Ticket, None] = {}
        self.given: deque[Ticket] = deque()
        self.sequences = 0
        self.tokens = 0
        self.is_retiring = False

    def takes(self, ticket: Ticket) -> bool:
        """Returns whether there is room. One that holds nothing takes any ticket: its engine says what is too large."""
        sequences, tokens = ticket.cost
        return not self.held or (
            self.sequences + sequences <= self.sequences_max and (not self.tokens_max or self.tokens + tokens <= self.tokens_max)
        )

    def add(self, ticket: Ticket) -> None:
        """The ticket is given to it."""
        self.held[ticket] = None
        self.given.append(ticket)
        self.sequences += ticket.cost.sequences
        self.tokens += ticket.cost.tokens

    def remove(self, ticket: Ticket) -> bool:
        """The ticket is over. Returns False for one that it does not hold."""
        if ticket not in self.held:
            return False
        del self.held[ticket]
        self.sequences -= ticket.cost.sequences
        self.tokens -= ticket.cost.tokens
        return True


class EngineCore:
    """A `SchedulerCore`. Requests wait here, by priority and within the limits of the queue policies, until an engine has room
    for them: sequences and tokens, of which a ticket says how many it needs at most (`Ticket.cost`). The first in the queue waits
    until there is room for it, and nobody passes it, so that many small requests do not keep a large one out for ever.

    `done` says that the engine has taken a request: the ticket is `Respond`ed, and goes on EXECUTING, with its room, until the
    driver cancels it because it is over. Its deadline is kept here until `done`, and from then on by the code that delivers its
    responses. Several engines share the queue; the one that holds the fewest tokens gets the next request.
    """

    def __init__(self, options: DynamicOptions, queue: TicketQueue | None = None) -> None:
        """Of the options, those of the queue, where that is not given."""
        self._queue: TicketQueue = PriorityQueue(options) if queue is None else queue
        self._queue_timeouts = Deadlines()
        self._deadlines = Deadlines()
        self._rooms: dict[int, _Room] = {}
        self._leaving: dict[int, _Room] = {}
        self._actions: list[Action] = []
        self._executing = 0
        self._stopped = False

    # Engines

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1, tokens: int = 0) -> None:
        """A new engine, with room for `credit` sequences and, if not 0, for `tokens` tokens."""
        invariant(instance not in self._rooms and instance not in self._leaving, f"instance {instance} was added twice")
        self._expire(now_ns)
        self._rooms[instance] = _Room(credit, tokens)
        self._dispatch()

    def remove_instance(self, instance: int, now_ns: int) -> None:
        """It takes no new request."""
        invariant(instance in self._rooms, f"instance {instance} was removed but is not a member")
        self._expire(now_ns)
        room = self._rooms.pop(instance)
        if room.held or room.given:
            room.is_retiring = False
            self._leaving[instance] = room
        self._dispatch()

    def retire_instance(self, instance: int, now_ns: int) -> None:
        """It takes no new request; `Retired` when its requests are over."""
        self._expire(now_ns)
        self._rooms[instance].is_retiring = True
        self._tidy(instance)
        self._dispatch()

    # Tickets

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        """Accept a ticket; one whose deadline is over is refused at once. Raises QueueFull when its level is full, and
        Unavailable after `stop`."""
        self._expire(now_ns)
        if self._stopped:
            raise Unavailable(Outcome.STOPPING.value)
        ticket.queued_ns = ticket.ready_ns = now_ns
        try:
            level = self._queue.admit(ticket)
        except TooManyRequests:
            self._dispatch()
            raise
        deadline_ns = ticket.deadline_ns
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._refuse(ticket, Outcome.TIMED_OUT)
            return
        if len(level.waiting) + len(level.delayed) >= level.size_max:
            raise QueueFull("Exceeds maximum queue size")
        if deadline_ns is not None:
            self._deadlines.add(ticket, deadline_ns)
        expires_ns = _expires_ns(ticket, level)
        if expires_ns is not None:
            self._queue_timeouts.add(ticket, expires_ns)
        ticket.phase = Phase.QUEUED
        self._queue.push(ticket, level)
        self._dispatch()

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        """The ticket is over; its room is free."""
        if ticket.phase is not Phase.ENDED:
            self._leave(ticket)
        self._expire(now_ns)
        self._dispatch()

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """The engine has taken its oldest tickets."""
        self._expire(now_ns)
        room = self._rooms.get(instance) or self._leaving.get(instance)
        invariant(room is not None and len(room.given) >= len(times_ns), f"instance {instance} is done with more than it has")
        assert room is not None
        taken = [room.given.popleft() for _ in times_ns]
        live = tuple([ticket for ticket in taken if ticket.phase is Phase.EXECUTING])
        for ticket in live:
            self._deadlines.discard(ticket)
        if live:
            self._actions.append(Respond(live))
        self._tidy(instance)
        self._dispatch()

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        """The engine has failed before it took its last tickets, which wait again, in their old places."""
        self._expire(now_ns)
        room = self._rooms.get(instance) or self._leaving.get(instance)
        invariant(room is not None and len(room.given) >= batches, f"instance {instance} gave back more than it has")
        assert room is not None
        for _ in range(batches):
            ticket = room.given.pop()
            if room.remove(ticket):
                self._return(ticket, now_ns)
        self._tidy(instance)
        self._expire(now_ns)
        self._dispatch()

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """Requests to engines have no iterations."""
        invariant(False, "a request to an engine was given back")

    def recall(self, now_ns: int) -> None:
        """No-op: an engine runs all that it is given."""

    def next_deadline_ns(self) -> int | None:
        """The first of the deadlines, and of the ends of a time in the queue."""
        times = [at_ns for at_ns in (self._deadlines.first_ns(), self._queue_timeouts.first_ns()) if at_ns is not None]
        return min(times, default=None)

    def advance(self, now_ns: int) -> None:
        """Do whatever is due."""
        self._expire(now_ns)
        self._dispatch()

    def refuse_waiting(self, now_ns: int) -> None:
        """Refuse everything that is queued."""
        self._expire(now_ns)
        self._refuse_waiting(Outcome.NO_INSTANCE)

    def stop(self, now_ns: int) -> None:
        """Refuse everything that is queued, and accept nothing more."""
        self._stopped = True
        self._expire(now_ns)
        self._refuse_waiting(Outcome.STOPPING)

    def refuse_executing(self, now_ns: int) -> None:
        """Refuse everything that engines have."""
        self._expire(now_ns)
        for room in (*self._rooms.values(), *self._leaving.values()):
            for ticket in list(room.held):
                self._leave(ticket)
                self._refuse(ticket, Outcome.STOPPING)
        self._dispatch()

    def take_actions(self) -> list[Action]:
        """The decisions since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def snapshot(self) -> CoreSnapshot:
        """Counts."""
        idle = sum([not room.held for room in self._rooms.values()])
        return CoreSnapshot(queued=self._queue.count, executing=self._executing, idle_instances=idle)

    def explain(self, now_ns: int) -> QueueActivity:
        """As `SchedulerCore.explain`."""
        reason = WaitReason.NOTHING
        if self._queue.count:
            reason = WaitReason.INSTANCE if self._rooms else WaitReason.NO_INSTANCE
        return QueueActivity(waits_for=reason, executing=self._executing, levels=self._queue.explain(now_ns))

    def _dispatch(self) -> None:
        """Give what is first in the queue to engines with room."""
        while self._queue.count:
            ticket = next(iter(self._queue.in_order()))
            free = [
                (room.tokens, room.sequences, instance)
                for instance, room in self._rooms.items()
                if not room.is_retiring and room.takes(ticket)
            ]
            if not free:
                return
            instance = min(free)[2]
            self._queue.take((ticket,))
            self._queue_timeouts.discard(ticket)
            ticket.phase = Phase.EXECUTING
            self._executing += 1
            self._rooms[instance].add(ticket)
            self._actions.append(Dispatch(instance, ((ticket,),)))

    def _given(self, instance: int) -> list[Ticket]:
        """The tickets whose batch is not `done`, the oldest first."""
        room = self._rooms.get(instance) or self._leaving.get(instance)
        return [] if room is None else list(room.given)

    def _expire(self, now_ns: int) -> None:
        """Apply every time limit that has passed."""
        while (ticket := self._deadlines.pop_due(now_ns)) is not None:
            self._leave(ticket)
            self._refuse(ticket, Outcome.TIMED_OUT)
        while (ticket := self._queue_timeouts.pop_due(now_ns)) is not None:
            level = self._queue.level_of(ticket)
            if level.rules.timeout_action is TimeoutAction.DELAY:
                expires_ns = _expires_ns(ticket, level)
                self._queue.delay(ticket, now_ns if expires_ns is None else expires_ns)
            else:
                self._leave(ticket)
                self._refuse(ticket, Outcome.TIMED_OUT)

    def _return(self, ticket: Ticket, now_ns: int) -> None:
        """Have a ticket that no engine has taken wait again."""
        self._executing -= 1
        if self._stopped:
            self._deadlines.discard(ticket)
            self._refuse(ticket, Outcome.STOPPING)
            return
        level = self._queue.level_of(ticket)
        expires_ns = _expires_ns(ticket, level)
        is_delayed = expires_ns is not None and expires_ns <= now_ns and level.rules.timeout_action is TimeoutAction.DELAY
        if expires_ns is not None and not is_delayed:
            self._queue_timeouts.add(ticket, expires_ns)
        ticket.phase = Phase.QUEUED
        self._queue.push_back(ticket, level, expires_ns if is_delayed else None)

    def _leave(self, ticket: Ticket) -> None:
        """End the ticket, wherever it is."""
        self._deadlines.discard(ticket)
        if ticket.phase is Phase.QUEUED:
            self._queue.remove((ticket,))
            self._queue_timeouts.discard(ticket)
        else:
            self._executing -= 1
            for instance, room in (*self._rooms.items(), *self._leaving.items()):
                if room.remove(ticket):
                    self._tidy(instance)
                    break
        ticket.phase = Phase.ENDED

    def _tidy(self, instance: int) -> None:
        """Forget an engine that was removed, or is to retire, and has nothing left."""
        room = self._leaving.get(instance)
        if room is not None:
            if not room.held and not room.given:
                del self._leaving[instance]
            return
        room = self._rooms.get(instance)
        if room is not None and room.is_retiring and not room.held and not room.given:
            del self._rooms[instance]
            self._actions.append(Retired(instance))

    def _refuse_waiting(self, outcome: Outcome) -> None:
        for ticket in self._queue.drain():
            self._deadlines.discard(ticket)
            self._queue_timeouts.discard(ticket)
            self._refuse(ticket, outcome)

    def _refuse(self, ticket: Ticket, outcome: Outcome) -> None:
        ticket.phase = Phase.ENDED
        self._actions.append(Refuse(ticket, outcome))


def _expires_ns(ticket: Ticket, level: QueueLevel) -> int | None:
    """The end of the ticket's time in the queue."""
    queue_timeout_ns = level.rules.queue_timeout_ns(ticket.timeout_ns)
    return ticket.ready_ns + queue_timeout_ns if queue_timeout_ns > 0 else None


def engine_options(config: ModelConfig) -> DynamicOptions:
    """The options of an engine's queue: those of `dynamic_batching`, with a bound if that sets none, as its requests may take
    minutes each. Raises as `dynamic_options`."""
    options = DynamicOptions() if config.dynamic_batching is None else dynamic_options(config)
    levels = [
        rules if rules.queue_size_max else msgspec.structs.replace(rules, queue_size_max=ENGINE_QUEUE_MAX)
        for rules in options.levels
    ]
    return msgspec.structs.replace(options, levels=tuple(levels))
