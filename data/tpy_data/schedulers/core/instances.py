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

    def take_idle(self) -> list[int]:
        """Take out the idle instances, the first the one that has been idle longest."""
        idle = list(self.idle)
        self.idle.clear()
        return idle

    @property
    def members(self) -> int:
        """How many there are, without those that leave."""
        return len(self.idle) + len(self._running) - len(self._leaving)

    @property
    def has_only_one(self) -> bool:
        """Whether there is a single instance, and it stays."""
        return len(self.idle) + len(self._running) == 1 and not self._leaving

    def start(self, tickets: Sequence[Ticket]) -> int:
        """Give the tickets to the instance that has been idle longest; returns its number."""
        instance = self.idle.popleft()
        self._running[instance] = tickets
        return instance

    def tickets_of(self, instance: int) -> Sequence[Ticket]:
        """What it was given and is not over, as far as is known."""
        return self._running.get(instance, ())

    def tickets(self) -> list[Ticket]:
        """What all of them were given."""
        return [ticket for tickets in self._running.values() for ticket in tickets]

    def shorten(self, instance: int, executed: int, not_begun: int) -> tuple[Sequence[Ticket], Sequence[Ticket]]:
        """Take the first `executed` and the last `not_begun` of its tickets from an instance; it keeps the others."""
        tickets = self._running.get(instance, ())
        end = len(tickets) - not_begun
        invariant(0 <= executed <= end <= len(tickets), f"instance {instance} was not given as many tickets as it reports")
        self._running[instance] = tickets[executed:end]
        return tickets[:executed], tickets[end:]

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
