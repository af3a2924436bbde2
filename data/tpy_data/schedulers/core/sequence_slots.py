"""The bookkeeping of a core of sequences. FreeSlots: the places for further sequences, the next to take first.
SequenceInstance: one instance as the core sees it. IdleTimes: which sequence has been without a request for too long."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.sequence_batcher import SlotBatcher
from tpy_data.schedulers.core.sequence_line import SequenceLine


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


class SequenceInstance:
    """The sequences that it holds and the batch that it runs.

    * `lines`: by slot.
    * `running`: the batch that it was given; empty: it is idle.
    * `retiring`: it takes no further lines and goes when it has no lines left. `removed`: it is gone, but for the batch that it
      still has."""

    __slots__ = ("batcher", "lines", "number", "removed", "retiring", "running")

    def __init__(self, number: int, batcher: SlotBatcher) -> None:
        self.number = number
        self.batcher = batcher
        self.lines: dict[int, SequenceLine] = {}
        self.running: Sequence[Ticket] = ()
        self.retiring = False
        self.removed = False

    def offer(self, line: SequenceLine, now_ns: int) -> bool:
        """Have the batcher know the line's next ticket; whether that is news."""
        ticket = line.first() if line.executing is None else None
        if ticket is line.offered or line.slot is None:
            return False
        if line.offered is not None:
            self.batcher.withdraw(line.offered, line.slot)
        if ticket is not None:
            self.batcher.offer(ticket, line.slot, now_ns)
        line.offered = ticket
        return True


class IdleTimes:
    """Lines in slots of which no request waits or runs. All have the same time, so they are in its order. Every verb is O(1)."""

    __slots__ = ("_idle_ns_max", "_since_ns")

    def __init__(self, idle_ns_max: int) -> None:
        self._idle_ns_max = idle_ns_max
        self._since_ns: OrderedDict[SequenceLine, int] = OrderedDict()

    def begin(self, line: SequenceLine, now_ns: int) -> None:
        """The line's last request is over."""
        self._since_ns[line] = now_ns

    def end(self, line: SequenceLine) -> None:
        """The line has a request, or is over; no-op when it was not idle."""
        self._since_ns.pop(line, None)

    def first_ns(self) -> int | None:
        """The end of the next line's time; None if no line is idle."""
        for since_ns in self._since_ns.values():
            return since_ns + self._idle_ns_max
        return None

    def pop_due(self, now_ns: int) -> SequenceLine | None:
        """Take out a line whose time is over, or return None."""
        for line, since_ns in self._since_ns.items():
            if since_ns + self._idle_ns_max > now_ns:
                break
            del self._since_ns[line]
            return line
        return None
