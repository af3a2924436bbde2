"""InstancePool: which instances are idle, and what the others hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from itertools import islice

from tpy.errors import invariant
from tpy_data.schedulers.core.contract import Phase, Ticket

_NONE: deque[Sequence[Ticket]] = deque()


class InstancePool:
    """The instances of one model version. Raises InvariantViolation when the driver breaks the contract.

    `idle` is ordered by how long they have held nothing: the first is the one to use next, so that work spreads evenly.
    """

    __slots__ = ("_credit", "_held", "_leaving", "idle")

    def __init__(self) -> None:
        self.idle: deque[int] = deque()
        self._held: dict[int, deque[Sequence[Ticket]]] = {}
        self._leaving: set[int] = set()
        self._credit: dict[int, int] = {}  # of instances that may hold more than one batch

    def add(self, instance: int, *, credit: int = 1) -> None:
        """A new idle instance, which may hold `credit` batches."""
        invariant(instance not in self._held and instance not in self.idle, f"instance {instance} was added twice")
        self.idle.append(instance)
        if credit > 1:
            self._credit[instance] = credit

    def remove(self, instance: int) -> None:
        """The instance takes no new work; one that holds any leaves when that is over."""
        self._credit.pop(instance, None)
        if instance in self._held:
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
        """The number of instances, without leaving ones."""
        return len(self.idle) + len(self._held) - len(self._leaving)

    @property
    def has_only_one(self) -> bool:
        """True when there is a single instance, which stays, and holds one batch at a time."""
        return len(self.idle) + len(self._held) == 1 and not self._leaving and not self._credit

    @property
    def all_stay(self) -> bool:
        """True when there are instances, which all stay, and hold one batch at a time."""
        return bool(self.idle or self._held) and not self._leaving and not self._credit

    def next_free(self, revoking: Container[int]) -> int | None:
        """The instance to give the next batch to: an idle one, or else one whose credit is not used up and of which no batch is
        being revoked."""
        if self.idle:
            return self.idle[0]
        for instance, held in self._held.items() if self._credit else ():
            if len(held) < self._credit.get(instance, 1) and instance not in revoking:
                return instance
        return None

    def busy(self) -> list[int]:
        """The instances that hold something and stay."""
        return [instance for instance in self._held if instance not in self._leaving]

    def held(self, instance: int) -> int:
        """The number of batches that it holds."""
        return len(self._held.get(instance, ()))

    def batches(self, instance: int) -> Sequence[Sequence[Ticket]]:
        """The batches that it holds, the oldest first."""
        return self._held.get(instance, _NONE)

    def tickets(self) -> list[Ticket]:
        """The tickets that all of them hold."""
        return [ticket for held in self._held.values() for batch in held for ticket in batch]

    def give(self, instance: int, batches: Sequence[Sequence[Ticket]]) -> None:
        """The instance gets these batches behind the ones that it holds."""
        held = self._held.get(instance)
        if held is None:
            self.idle.remove(instance)
            self._held[instance] = deque(batches)
        else:
            held.extend(batches)

    def done(self, instance: int, count: int = 1) -> list[Sequence[Ticket]]:
        """Take the oldest batches from an instance; it is idle, or gone if it was leaving, when it holds no more."""
        held = self._held.get(instance, _NONE)
        if not 0 < count <= len(held):
            invariant(False, f"instance {instance} is over with {count} batches and holds {len(held)}")
        batches = [held.popleft()] if count == 1 else [held.popleft() for _ in range(count)]
        self._end_if_empty(instance, held)
        return batches

    def revoked(self, instance: int, count: int) -> list[Sequence[Ticket]]:
        """Take the last batches from an instance, in the order in which it got them."""
        held = self._held.get(instance, deque())
        invariant(0 < count <= len(held), f"instance {instance} gives back {count} batches and holds {len(held)}")
        batches = [held.pop() for _ in range(count)]
        batches.reverse()
        self._end_if_empty(instance, held)
        return batches

    def prefetched(self) -> int:
        """The number of tickets that have not ended and are held behind another batch."""
        return sum(
            ticket.phase is Phase.EXECUTING
            for held in self._held.values()
            if len(held) > 1
            for batch in islice(held, 1, None)
            for ticket in batch
        )

    def prefetches(self, ticket: Ticket) -> int | None:
        """The instance that holds the ticket behind another batch; None: not prefetched."""
        for instance, held in self._held.items():
            if len(held) > 1 and any(ticket in batch for batch in islice(held, 1, None)):
                return instance
        return None

    def _end_if_empty(self, instance: int, held: deque[Sequence[Ticket]]) -> None:
        """An instance that holds nothing any more is idle, or gone if it was leaving."""
        if held:
            return
        del self._held[instance]
        if instance in self._leaving:
            self._leaving.remove(instance)
        else:
            self.idle.append(instance)
