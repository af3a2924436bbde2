"""PoolCore: the part of a scheduler core that does not depend on how batches are formed."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tpy.errors import invariant
from tpy.messages import LevelActivity, QueueActivity, WaitReason
from tpy_data.schedulers.core.contract import Action, CoreSnapshot, Outcome, Phase, Refuse, Retired, Revoke, Ticket
from tpy_data.schedulers.core.deadlines import Deadlines
from tpy_data.schedulers.core.instance_pool import InstancePool


class PoolCore(ABC):
    """One queue for all instances: nothing ties a request to an instance. Verbs are those of SchedulerCore."""

    __slots__ = ("_actions", "_deadlines", "_executing", "_given_back", "_pool", "_revoking", "_stopped")

    def __init__(self) -> None:
        self._pool = InstancePool()
        self._deadlines = Deadlines()
        self._actions: list[Action] = []
        self._executing = 0  # tickets that instances hold and that have not ended
        self._given_back: set[Ticket] = set()
        self._revoking: set[int] = set()  # instances of which `revoked` is awaited: they get nothing behind what they hold
        self._stopped = False

    @property
    @abstractmethod
    def _queued(self) -> int:
        """The number of tickets in the queue."""

    @abstractmethod
    def remove_instance(self, instance: int, now_ns: int) -> None:
        """As `SchedulerCore.remove_instance`."""

    @abstractmethod
    def _expire(self, now_ns: int) -> None:
        """Apply every time limit that has passed."""

    @abstractmethod
    def _dispatch(self, now_ns: int) -> None:
        """Give idle instances what waits, as far as that should be."""

    @abstractmethod
    def _leave(self, ticket: Ticket) -> None:
        """End the ticket without an answer, wherever it is."""

    @abstractmethod
    def _levels(self, now_ns: int) -> tuple[LevelActivity, ...]:
        """The tickets in the queue, by priority."""

    @abstractmethod
    def _held_back(self) -> WaitReason:
        """The reason why nothing in the queue is given to an instance that is free."""

    @abstractmethod
    def _refuse_waiting(self, outcome: Outcome) -> None:
        """Refuse everything that waits."""

    def retire_instance(self, instance: int, now_ns: int) -> None:
        """As `remove_instance`: nothing ties requests to it."""
        self.remove_instance(instance, now_ns)
        self._actions.append(Retired(instance))

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        """Forget the ticket; its place in the queue is free at once, its part of a running batch when that is over."""
        if ticket.phase is not Phase.ENDED:
            self._leave(ticket)
        self._expire(now_ns)
        self._dispatch(now_ns)

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """The ticket waits again when its execution is over, as if it had just arrived; its deadline stays."""
        self._expire(now_ns)
        if ticket.phase is not Phase.ENDED:
            invariant(ticket.phase is Phase.EXECUTING, "a ticket was given back that is not executing")
            self._given_back.add(ticket)
        self._dispatch(now_ns)

    def recall(self, now_ns: int) -> None:
        """Revoke every batch that is held behind another one."""
        self._expire(now_ns)
        for instance in self._pool.busy():
            self._revoke(instance)
        self._dispatch(now_ns)

    def advance(self, now_ns: int) -> None:
        """Do whatever is due."""
        self._expire(now_ns)
        self._dispatch(now_ns)

    def refuse_waiting(self, now_ns: int) -> None:
        """Refuse everything that waits."""
        self._expire(now_ns)
        self._refuse_waiting(Outcome.NO_INSTANCE)

    def stop(self, now_ns: int) -> None:
        """Refuse everything that waits, and accept nothing more."""
        self._stopped = True
        self._expire(now_ns)
        self._refuse_waiting(Outcome.STOPPING)

    def refuse_executing(self, now_ns: int) -> None:
        """Refuse everything that executes."""
        self._expire(now_ns)
        for ticket in self._pool.tickets():
            if ticket.phase is Phase.EXECUTING:
                self._leave(ticket)
                self._actions.append(Refuse(ticket, Outcome.STOPPING))
        self._dispatch(now_ns)

    def take_idle(self) -> list[int]:
        """Take out the idle instances."""
        return self._pool.take_idle()

    def take_actions(self) -> list[Action]:
        """The decisions since the last call."""
        actions = self._actions
        self._actions = []
        return actions

    def snapshot(self) -> CoreSnapshot:
        """Counts. A running ticket that was refused or cancelled is not counted any more, nor is one that has run and waits for
        its turn."""
        prefetched = self._pool.prefetched()
        return CoreSnapshot(
            queued=self._queued + prefetched,
            executing=self._executing - prefetched,
            idle_instances=len(self._pool.idle),
        )

    def explain(self, now_ns: int) -> QueueActivity:
        """As `SchedulerCore.explain`."""
        prefetched, due_ns, reason = self._pool.prefetched(), None, WaitReason.NOTHING
        if self._queued:
            if self._pool.members == 0:
                reason = WaitReason.NO_INSTANCE
            elif self._pool.next_free(self._revoking) is None:
                reason = WaitReason.INSTANCE
            else:
                reason, due_ns = self._held_back(), self._due_ns()
        elif prefetched:
            reason = WaitReason.INSTANCE
        return QueueActivity(
            waits_for=reason,
            executing=self._executing - prefetched,
            prefetched=prefetched,
            levels=self._levels(now_ns),
            due_ns=None if due_ns is None else max(0, due_ns - now_ns),
        )

    def _due_ns(self) -> int | None:
        """The time at which a batch that waits for company is sent as it is."""
        return None

    def _revoke(self, instance: int) -> bool:
        """Have the instance give back what it has not started. Returns whether there may be something, and nobody asked yet."""
        if self._pool.held(instance) < 2 or instance in self._revoking:
            return False
        self._revoking.add(instance)
        self._actions.append(Revoke(instance))
        return True

    def _refuse(self, ticket: Ticket, outcome: Outcome) -> None:
        ticket.phase = Phase.ENDED
        self._actions.append(Refuse(ticket, outcome))
