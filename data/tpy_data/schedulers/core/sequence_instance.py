"""SequenceInstance: one instance as a core of sequences sees it."""

from __future__ import annotations

from collections.abc import Sequence

from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.sequence_batcher import SlotBatcher
from tpy_data.schedulers.core.sequence_line import SequenceLine


class SequenceInstance:
    """The sequences that it holds and the batch that it runs.

    * `lines`: by slot.
    * `running`: the batch that it was given; empty: it is idle.
    * `retiring`: it takes no further lines and goes when it has none. `removed`: it is gone, but for the batch that it still has.
    """

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
