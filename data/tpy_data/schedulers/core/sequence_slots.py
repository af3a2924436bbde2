"""FreeSlots: the places for further sequences, the next to take first."""

from __future__ import annotations

import heapq


class FreeSlots:
    """The free slots of all instances, the lowest slot first and then the lowest instance, so that instances fill up evenly and
    their batches stay short. `take` and `give` cost O(log n), and slots that were never taken cost nothing.
    """

    __slots__ = ("_free", "_slots", "_untouched")

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._untouched: dict[int, int] = {}
        self._free: list[tuple[int, int]] = []  # given back ones, and of each instance the first that was never taken

    def add(self, instance: int) -> None:
        """A new instance, all of whose slots are free."""
        self._untouched[instance] = 0
        heapq.heappush(self._free, (0, instance))

    def forget(self, instance: int) -> None:
        """The instance takes no further sequences; no-op when that was said before. Its slots need not be given back."""
        if self._untouched.pop(instance, None) is not None:
            self._free = [place for place in self._free if place[1] != instance]
            heapq.heapify(self._free)

    def take(self) -> tuple[int, int] | None:
        """An instance and a slot of it; None: all are taken."""
        if not self._free:
            return None
        slot, instance = heapq.heappop(self._free)
        if slot == self._untouched[instance]:
            self._untouched[instance] = slot + 1
            if slot + 1 < self._slots:
                heapq.heappush(self._free, (slot + 1, instance))
        return instance, slot

    def give(self, instance: int, slot: int) -> None:
        """The slot is free again."""
        if instance in self._untouched:
            heapq.heappush(self._free, (slot, instance))
