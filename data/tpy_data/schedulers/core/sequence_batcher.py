"""SlotBatcher: forms the batches of one instance that holds sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from tpy_data.schedulers.core.contract import Ticket


class SlotBatch(NamedTuple):
    """Tickets to run together; `places` as `Dispatch.slots`."""

    tickets: Sequence[Ticket]
    places: Sequence[Ticket | None] = ()


class SlotBatcher(Protocol):
    """The part in which the strategies differ. It is given the next ticket of each sequence, so at most one for each slot."""

    def offer(self, ticket: Ticket, slot: int, now_ns: int) -> None:
        """This is the next ticket of the sequence in the slot, and its predecessors are over."""
        ...

    def withdraw(self, ticket: Ticket, slot: int) -> None:
        """An offered ticket is not to be run."""
        ...

    def take(self, now_ns: int) -> SlotBatch | None:
        """Take out the next batch, when the instance is idle; None: nothing is to be run yet."""
        ...

    def ended(self, count: int, took_ns: int, now_ns: int) -> None:
        """A batch of so many is over, of which the instance says that it took so long (0: it does not say)."""
        ...

    def due_ns(self) -> int | None:
        """After `take` gave None: when it gives a batch even if nothing else is offered; None: nothing was offered."""
        ...
