"""ReferenceEngines: what EngineCore must decide, written for being right and nothing else: one list, looked through anew each
time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tpy.config.model_config import TimeoutAction
from tpy.errors import Unavailable
from tpy_data.schedulers.core.contract import Outcome, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions


@dataclass(kw_only=True, eq=False, slots=True)
class Request:
    """A ticket that has not ended. `engine` is where it is, None: in the queue. `taken`: its engine has said so."""

    ticket: Ticket
    level: int
    arrival: int
    deadline_ns: int | None
    expires_ns: int | None
    engine: int | None = None
    taken: bool = False
    delayed: bool = False


@dataclass(slots=True)
class Room:
    sequences: int
    tokens: int
    open: bool = True
    """It takes requests."""
    retiring: bool = False
    removed: bool = False
    given: list[Ticket] = field(default_factory=list)
    """Tickets that it was given and has not taken, also ended ones."""


@dataclass(slots=True)
class Decided:
    dispatched: list[tuple[int, Ticket]] = field(default_factory=list)
    responded: list[Ticket] = field(default_factory=list)
    refused: set[tuple[Ticket, Outcome]] = field(default_factory=set)
    retired: set[int] = field(default_factory=set)


class ReferenceEngines:
    """The verbs of the core; `take` gives what was decided since the last call."""

    def __init__(self, options: DynamicOptions) -> None:
        self.options = options
        self.requests: list[Request] = []
        self.rooms: dict[int, Room] = {}
        self.arrivals = 0
        self.stopped = False
        self.decided = Decided()

    def take(self) -> Decided:
        decided, self.decided = self.decided, Decided()
        return decided

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1, tokens: int = 0) -> None:
        self.expire(now_ns)
        self.rooms[instance] = Room(credit, tokens)
        self.give()

    def remove_instance(self, instance: int, now_ns: int) -> None:
        self.expire(now_ns)
        room = self.rooms[instance]
        room.open, room.retiring, room.removed = False, False, True
        self.give()

    def retire_instance(self, instance: int, now_ns: int) -> None:
        self.expire(now_ns)
        room = self.rooms[instance]
        room.open, room.retiring = False, True
        self.give()

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        self.expire(now_ns)
        if self.stopped:
            raise Unavailable(Outcome.STOPPING.value)
        if ticket.deadline_ns is not None and ticket.deadline_ns <= now_ns:
            self.decided.refused.add((ticket, Outcome.TIMED_OUT))
            return
        levels = self.options.levels
        level = ticket.priority - 1 if 0 < ticket.priority <= len(levels) else self.options.default_level
        waiting = [each for each in self.requests if each.engine is None and each.level == level]
        if levels[level].queue_size_max and len(waiting) >= levels[level].queue_size_max:
            raise Unavailable("Exceeds maximum queue size")
        timeout_ns = levels[level].queue_timeout_ns(ticket.timeout_ns)
        self.arrivals += 1
        self.requests.append(
            Request(
                ticket=ticket,
                level=level,
                arrival=self.arrivals,
                deadline_ns=ticket.deadline_ns,
                expires_ns=now_ns + timeout_ns if timeout_ns else None,
            )
        )
        self.give()

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        self.requests = [each for each in self.requests if each.ticket is not ticket]
        self.expire(now_ns)
        self.give()

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        self.expire(now_ns)
        room = self.rooms[instance]
        for _ in times_ns:
            ticket = room.given.pop(0)
            for each in self.requests:
                if each.ticket is ticket:
                    each.taken = True
                    self.decided.responded.append(ticket)
        self.give()

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        self.expire(now_ns)
        room = self.rooms[instance]
        for _ in range(batches):
            ticket = room.given.pop()
            for each in [each for each in self.requests if each.ticket is ticket]:
                each.engine = None
                if self.stopped:
                    self.requests.remove(each)
                    self.decided.refused.add((ticket, Outcome.STOPPING))
        self.expire(now_ns)
        self.give()

    def advance(self, now_ns: int) -> None:
        self.expire(now_ns)
        self.give()

    def refuse_waiting(self, now_ns: int) -> None:
        self.expire(now_ns)
        self.refuse([each for each in self.requests if each.engine is None], Outcome.NO_INSTANCE)
        self.tidy()

    def stop(self, now_ns: int) -> None:
        self.stopped = True
        self.expire(now_ns)
        self.refuse([each for each in self.requests if each.engine is None], Outcome.STOPPING)
        self.tidy()

    def refuse_executing(self, now_ns: int) -> None:
        self.expire(now_ns)
        self.refuse([each for each in self.requests if each.engine is not None], Outcome.STOPPING)
        self.give()

    def refuse(self, requests: Sequence[Request], outcome: Outcome) -> None:
        for each in requests:
            self.requests.remove(each)
            self.decided.refused.add((each.ticket, outcome))

    def expire(self, now_ns: int) -> None:
        late = [each for each in self.requests if not each.taken and each.deadline_ns is not None and each.deadline_ns <= now_ns]
        self.refuse(late, Outcome.TIMED_OUT)
        for each in list(self.requests):
            if each.engine is None and each.expires_ns is not None and each.expires_ns <= now_ns and not each.delayed:
                if self.options.levels[each.level].timeout_action is TimeoutAction.DELAY:
                    each.delayed = True
                else:
                    self.refuse([each], Outcome.TIMED_OUT)

    def give(self) -> None:
        while (first := self.first()) is not None:
            free = []
            for number, room in self.rooms.items():
                held = self.held(number)
                sequences = sum(each.ticket.cost.sequences for each in held)
                tokens = sum(each.ticket.cost.tokens for each in held)
                fits = sequences + first.ticket.cost.sequences <= room.sequences and (
                    not room.tokens or tokens + first.ticket.cost.tokens <= room.tokens
                )
                if room.open and (not held or fits):
                    free.append((tokens, sequences, number))
            if not free:
                break
            first.engine = min(free)[2]
            self.rooms[first.engine].given.append(first.ticket)
            self.decided.dispatched.append((first.engine, first.ticket))
        self.tidy()

    def first(self) -> Request | None:
        waiting = [each for each in self.requests if each.engine is None]
        return min(waiting, key=_place, default=None)

    def held(self, instance: int) -> list[Request]:
        return [each for each in self.requests if each.engine == instance]

    def tidy(self) -> None:
        for number, room in list(self.rooms.items()):
            if not room.open and not self.held(number) and not room.given:
                del self.rooms[number]
                if room.retiring:
                    self.decided.retired.add(number)

    def next_deadline_ns(self) -> int | None:
        times = [each.deadline_ns for each in self.requests if not each.taken and each.deadline_ns is not None]
        times += [
            each.expires_ns for each in self.requests if each.engine is None and each.expires_ns is not None and not each.delayed
        ]
        return min(times, default=None)


def _place(request: Request) -> tuple[int, bool, int, int]:
    expires_ns = request.expires_ns if request.delayed and request.expires_ns is not None else 0
    return request.level, request.delayed, expires_ns, request.arrival
