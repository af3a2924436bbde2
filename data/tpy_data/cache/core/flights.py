"""Flights: equal requests at the same time, of which one is executed and the others wait for its answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class Flight(Generic[W]):
    """One key: who is executed for it, and who waits, in order of arrival."""

    __slots__ = ("leader", "waiting")

    def __init__(self, leader: W) -> None:
        self.leader = leader
        self.waiting: OrderedDict[W, None] = OrderedDict()


class Flights(Generic[W]):
    """By key. Each member is in at most one flight, once. A flight ends when its leader has an answer, or fails while nobody
    waits. `waiting` is how many wait in all."""

    __slots__ = ("_flights", "waiting")

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight[W]] = {}
        self.waiting = 0

    def __len__(self) -> int:
        return len(self._flights)

    def leader(self, key: bytes) -> W | None:
        """The request that is executed for the key, if any."""
        flight = self._flights.get(key)
        return None if flight is None else flight.leader

    def begin(self, key: bytes, leader: W) -> None:
        """The member is executed for the key, for which nobody is yet."""
        self._flights[key] = Flight(leader)

    def wait(self, key: bytes, member: W) -> None:
        """The member waits for the answer to the key, for which somebody is executed."""
        self._flights[key].waiting[member] = None
        self.waiting += 1

    def leave(self, key: bytes, member: W) -> None:
        """A member that waits does so no more."""
        del self._flights[key].waiting[member]
        self.waiting -= 1

    def end(self, key: bytes) -> list[W]:
        """The leader has an answer. Returns the members that waited for it; the key is free."""
        waiting = list(self._flights.pop(key).waiting)
        self.waiting -= len(waiting)
        return waiting

    def succeed(self, key: bytes) -> W | None:
        """The leader will have no answer: the first who waits leads from now on. None: nobody waits, the key is free."""
        flight = self._flights[key]
        if not flight.waiting:
            del self._flights[key]
            return None
        flight.leader, _ = flight.waiting.popitem(last=False)
        self.waiting -= 1
        return flight.leader

    def members(self) -> list[W]:
        """All who wait."""
        return [member for flight in self._flights.values() for member in flight.waiting]
