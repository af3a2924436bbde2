"""IdleTimes: which sequence has been without a request for too long."""

from __future__ import annotations

from collections import OrderedDict

from tpy_data.schedulers.core.sequence_line import SequenceLine


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
        """The end of the next line's time; None: none is idle."""
        for since_ns in self._since_ns.values():
            return since_ns + self._idle_ns_max
        return None

    def pop_due(self, now_ns: int) -> SequenceLine | None:
        """Take out a line whose time is over; None: there is none."""
        for line, since_ns in self._since_ns.items():
            if since_ns + self._idle_ns_max > now_ns:
                break
            del self._since_ns[line]
            return line
        return None
