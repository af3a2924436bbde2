"""SequenceLine: the requests of one correlation id, in order, and the place where they run."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from tpy_data.schedulers.core.contract import LiveSequence, SequenceEnd, Ticket


class QueuedSequence(LiveSequence):
    """A live sequence as its core sees it: its line, its requests that wait, and why no request joins it any more."""

    __slots__ = ("closed", "line", "waiting")

    def __init__(self, correlation_id: int | str, line: SequenceLine, *, restarted: bool) -> None:
        super().__init__(correlation_id, restarted=restarted)
        self.line = line
        self.waiting: deque[Ticket] = deque()
        self.closed: SequenceEnd | None = None


class SequenceLine:
    """One sequence or, where a START comes before the END, several that follow each other in the same place.

    * `sequences`: the sequences that are not over, in order. At most the last one is open: it takes the requests that still come.
    * `instance`, `slot`: the place; None in the backlog.
    * `executing`: the ticket that an instance has; at most one at a time, also when it has ended meanwhile.
    * `offered`: the ticket that may go into the next batch; always the first that waits.
    """

    __slots__ = ("correlation_id", "executing", "instance", "offered", "sequences", "slot")

    def __init__(self, correlation_id: int | str) -> None:
        self.correlation_id = correlation_id
        self.sequences: OrderedDict[QueuedSequence, None] = OrderedDict()
        self.instance: int | None = None
        self.slot: int | None = None
        self.executing: Ticket | None = None
        self.offered: Ticket | None = None

    def begin(self) -> QueuedSequence:
        """A new sequence at the end of the line."""
        sequence = QueuedSequence(self.correlation_id, self, restarted=bool(self.sequences))
        sequence.instance, sequence.slot = self.instance, self.slot
        self.sequences[sequence] = None
        return sequence

    def move_in(self, instance: int, slot: int) -> None:
        """The line leaves the backlog for a slot."""
        self.instance, self.slot = instance, slot
        for sequence in self.sequences:
            sequence.instance, sequence.slot = instance, slot

    def first(self) -> Ticket | None:
        """The ticket to execute next; None: none waits."""
        for sequence in self.sequences:
            return sequence.waiting[0] if sequence.waiting else None
        return None

    def open_sequence(self) -> QueuedSequence | None:
        """The sequence that takes further requests; None: a request of this id belongs to another line."""
        last = next(reversed(self.sequences), None)
        return last if last is not None and last.closed is None else None

    def over(self, sequence: QueuedSequence) -> bool:
        """True when nothing of the sequence is left and nothing more comes."""
        if sequence.closed is None or sequence.waiting:
            return False
        return self.executing is None or self.executing.live is not sequence

    @property
    def idle(self) -> bool:
        """True when no request of it waits or runs."""
        return self.executing is None and self.first() is None

    def tickets(self) -> Iterator[Ticket]:
        """All that wait, in order."""
        for sequence in self.sequences:
            yield from sequence.waiting
