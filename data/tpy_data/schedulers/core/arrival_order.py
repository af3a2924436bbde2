"""ArrivalOrder: keeps answers back until those of all earlier requests have left."""

from __future__ import annotations

from collections import OrderedDict

from tpy_data.schedulers.core.contract import Phase, Ticket


class ArrivalOrder:
    """All tickets that have not ended, in order of arrival. Every verb costs O(1) per ticket that it concerns."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: OrderedDict[Ticket, None] = OrderedDict()

    def add(self, ticket: Ticket) -> None:
        """The ticket was accepted."""
        self._open[ticket] = None

    def discard(self, ticket: Ticket) -> None:
        """The ticket ended without an answer; nobody waits for it any more."""
        self._open.pop(ticket, None)

    def take_released(self) -> list[Ticket]:
        """Take out the executed tickets that no earlier ticket holds back."""
        released: list[Ticket] = []
        while self._open:
            first = next(iter(self._open))
            if first.phase is not Phase.EXECUTED:
                break
            del self._open[first]
            released.append(first)
        return released
