"""SequenceBacklog: the lines that wait for a slot."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import cast

from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.deadlines import Deadlines
from tpy_data.schedulers.core.sequence_line import QueuedSequence, SequenceLine


class SequenceBacklog:
    """First come, first served. The first timeout of a request that passes while its line is here ends all of the line;
    in a slot timeouts have no effect.

    Every verb costs O(log n) for each ticket that has a timeout, otherwise O(1).
    """

    __slots__ = ("_lines", "_timeouts")

    def __init__(self) -> None:
        self._lines: OrderedDict[SequenceLine, None] = OrderedDict()
        self._timeouts = Deadlines()

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: SequenceLine) -> None:
        """A new line waits, behind all others."""
        self._lines[line] = None

    def join(self, ticket: Ticket, now_ns: int) -> None:
        """Another request of a line that is here; its timeout counts from now."""
        if ticket.timeout_ns > 0:
            self._timeouts.add(ticket, now_ns + ticket.timeout_ns)

    def leave(self, ticket: Ticket) -> None:
        """A request is gone from its line, which stays."""
        self._timeouts.discard(ticket)

    def take_first(self) -> SequenceLine | None:
        """Take out the line whose turn it is, with all its requests; None: none waits."""
        if not self._lines:
            return None
        line, _ = self._lines.popitem(last=False)
        for ticket in line.tickets():
            self._timeouts.discard(ticket)
        return line

    def discard(self, line: SequenceLine) -> None:
        """A line without requests leaves; no-op when it is not here."""
        self._lines.pop(line, None)

    def first(self) -> tuple[SequenceLine, ...]:
        """The line whose turn is next, if any waits."""
        return tuple(islice(self._lines, 1))

    def lines(self) -> list[SequenceLine]:
        """All, in order."""
        return list(self._lines)

    def first_ns(self) -> int | None:
        """The end of the next line's time; None: no request of a line here has a timeout."""
        return self._timeouts.first_ns()

    def pop_due(self, now_ns: int) -> SequenceLine | None:
        """A line whose time is over, or None. It stays here until its requests have left it."""
        ticket = self._timeouts.pop_due(now_ns)
        return None if ticket is None else cast(QueuedSequence, ticket.live).line
