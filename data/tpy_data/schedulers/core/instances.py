"""InstancePool: which instances are idle, and what the others run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tpy.errors import invariant
from tpy_data.schedulers.core.contract import Ticket


class InstancePool:
    """The instances of one model version. Raises InvariantViolation when the driver breaks the contract.

    `idle` is ordered by how long they have been idle: the first is the one to use next, so that work spreads evenly.
    """

    __slots__ = ("_leaving", "_running", "idle")

    def __init__(self) -> None:
        self.idle: deque[int] = deque()
        self._running: dict[int, Sequence[Ticket]] = {}
        self._leaving: set[int] = set()

    def add(self, instance: int) -> None:
        """A new idle instance."""
        invariant(instance not in self._running and instance not in self.idle, f"instance {instance} was added twice")
        self.idle.append(instance)

    def remove(self, instance: int) -> None:
        """The instance takes no new work; one that runs leaves when it finishes."""
        if instance in self._running:
            invariant(instance not in self._leaving, f"instance {instance} was removed twice")
            self._leaving.add(instance)
            return
        invariant(instance in self.idle, f"instance {instance} was removed but is not a member")
        self.idle.remove(instance)

    def start(self, tickets: Sequence[Ticket]) -> int:
        """Give the tickets to the instance that has been idle longest; returns its number."""
        instance = self.idle.popleft()
        self._running[instance] = tickets
        return instance

    def finish(self, instance: int) -> Sequence[Ticket]:
        """The instance is idle again, or gone if it was leaving; returns what it was given."""
        tickets = self._running.pop(instance, None)
        if tickets is None:
            invariant(False, f"instance {instance} completed a batch that it was not given")
            raise AssertionError  # unreachable; tells the type checker so
        if self._leaving and instance in self._leaving:
            self._leaving.remove(instance)
        else:
            self.idle.append(instance)
        return tickets
