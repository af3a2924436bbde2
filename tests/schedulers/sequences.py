"""A short way to write histories of the sequence core."""

from __future__ import annotations

from tpy.messages import SequencePosition
from tpy_data.schedulers.core import NO_START_DELAY, StartDelay
from tpy_data.schedulers.core.contract import (
    Action,
    Dispatch,
    Outcome,
    Refuse,
    Respond,
    Retired,
    SequenceEnd,
    SequenceEnded,
    Ticket,
)
from tpy_data.schedulers.core.factory import sequence_core
from tpy_data.schedulers.core.sequence_options import DirectOptions, SequenceOptions

IDLE_NS = 1000


class NamedTicket(Ticket):
    """A ticket that prints as its name."""

    __slots__ = ("name",)

    name: str

    def __repr__(self) -> str:
        return self.name


class Play:
    """A core with instance 0, and what it has decided since `decided` was last asked."""

    def __init__(self, options: SequenceOptions | None = None, *, instances: int = 1, delay: StartDelay = NO_START_DELAY) -> None:
        self.core = sequence_core(options or options_of(), delay)
        self.now_ns = 0
        for instance in range(instances):
            self.core.add_instance(instance, 0)

    def ticket(
        self,
        id: int | str | None,
        flags: str = "",
        *,
        signature: str = "a",
        timeout_ns: int = 0,
        deadline_ns: int | None = None,
        batch_size: int = 1,
    ) -> NamedTicket:
        """Accepted now. `flags`: S, E, SE or nothing."""
        position = None if id is None else SequencePosition(correlation_id=id, start="S" in flags, end="E" in flags)
        ticket = NamedTicket(
            sequence=position, signature=signature, timeout_ns=timeout_ns, deadline_ns=deadline_ns, batch_size=batch_size
        )
        ticket.name = f"{id}{flags}"
        self.core.submit(ticket, self.now_ns)
        return ticket

    def tickets(self, *ids: int | str, flags: str = "S") -> list[NamedTicket]:
        return [self.ticket(id, flags) for id in ids]

    def actions(self) -> list[Action]:
        return self.core.take_actions()

    def batches(self) -> list[list[Ticket]]:
        """The batches of the instances; other decisions are forgotten."""
        return [list(action.batches[0]) for action in self.actions() if isinstance(action, Dispatch)]

    def complete(self, instance: int = 0, *, took_ns: int = 0) -> list[list[Ticket]]:
        """The batches that this starts."""
        self.core.done(instance, self.now_ns, (took_ns,))
        return self.batches()

    def complete_all(self) -> None:
        """One instance works until nothing is left for it."""
        self.actions()
        while self.core.snapshot().executing:
            self.complete()

    def advance_to(self, now_ns: int) -> list[Action]:
        self.now_ns = now_ns
        self.core.advance(now_ns)
        return self.actions()


def options_of(slots: int = 4, **fields: object) -> SequenceOptions:
    """For model m."""
    return SequenceOptions(**{"model_name": "m", "slots": slots, "idle_ns_max": IDLE_NS, "strategy": DirectOptions()} | fields)  # type: ignore[arg-type]  # fields are checked when they are used


def ended(actions: list[Action]) -> list[tuple[int | str, SequenceEnd]]:
    return [(action.sequence.correlation_id, action.why) for action in actions if isinstance(action, SequenceEnded)]


def refused(actions: list[Action]) -> list[tuple[Ticket, Outcome]]:
    return [(action.ticket, action.outcome) for action in actions if isinstance(action, Refuse)]


def responded(actions: list[Action]) -> list[Ticket]:
    return [ticket for action in actions if isinstance(action, Respond) for ticket in action.tickets]


def retired(actions: list[Action]) -> list[int]:
    return [action.instance for action in actions if isinstance(action, Retired)]


def slot_of(ticket: NamedTicket) -> tuple[int | None, int | None]:
    """The instance and the slot of a request's sequence."""
    assert ticket.live is not None
    return ticket.live.instance, ticket.live.slot
