"""EngineTrial: an engine core and its reference on one virtual clock, compared and checked after every verb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fuzz.schedulers.engine_reference import Decided, ReferenceEngines
from fuzz.schedulers.trial import NumberedTicket
from fuzz.target import Violation
from tpy.errors import Unavailable
from tpy_data.generation.core.cost import Cost
from tpy_data.schedulers.core.contract import Dispatch, Phase, Refuse, Respond, Retired, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.engine_core import EngineCore

INVARIANT = (
    "every accepted ticket ends exactly once (refused, or cancelled by the driver), exactly when a naive scheduler says; an "
    "engine that holds several has room for all of them, by sequences and by tokens; the queue is served in order and nobody "
    "passes its first; what an engine did not take keeps its place; counts are exact; cancelling at any moment changes none of "
    "this"
)


class EngineTrial:
    """One history. The caller moves the clock (`now_ns`) and calls the rules; a rule raises Violation when anything is wrong."""

    def __init__(self, core: EngineCore, options: DynamicOptions, taken: Counter[str] | None = None) -> None:
        self.taken: Counter[str] = Counter() if taken is None else taken
        self.core = core
        self.options = options
        self.reference = ReferenceEngines(options)
        self.now_ns = 0
        self.live: list[Ticket] = []
        """Accepted, and not ended."""
        self.engines: dict[int, Cost] = {}
        """The engines that take requests, with their room."""
        self.given: dict[int, list[Ticket]] = {}
        """By engine, what it was given and has not said to have taken."""
        self.submitted = 0
        self.steps: list[tuple[object, ...]] = []

    def add_instance(self, sequences: int, tokens: int) -> None:
        instance = len(self.given)
        self.given[instance] = []
        self.engines[instance] = Cost(sequences, tokens)
        self._verb(
            "add_instance",
            (instance, sequences, tokens),
            lambda side: side.add_instance(instance, self.now_ns, credit=sequences, tokens=tokens),
        )

    def remove_instance(self, instance: int) -> None:
        """It is gone, with what it has taken; what it has not waits again."""
        del self.engines[instance]
        self._verb("remove_instance", instance, lambda side: side.remove_instance(instance, self.now_ns))
        count = len(self.given[instance])
        self.given[instance].clear()
        if count:
            self._verb("revoked", (instance, count), lambda side: side.revoked(instance, self.now_ns, count))

    def retire_instance(self, instance: int) -> None:
        del self.engines[instance]
        self._verb("retire_instance", instance, lambda side: side.retire_instance(instance, self.now_ns))

    def submit(self, *, cost: Cost, priority: int = 0, timeout_ns: int = 0, deadline_in_ns: int | None = None) -> NumberedTicket:
        ticket = NumberedTicket(
            self.submitted,
            batch_size=1,
            signature="",
            priority=priority,
            timeout_ns=timeout_ns,
            deadline_ns=None if deadline_in_ns is None else self.now_ns + deadline_in_ns,
        )
        ticket.cost = cost
        self.submitted += 1
        self.live.append(ticket)
        arguments = (ticket, cost, priority, timeout_ns, deadline_in_ns)
        self._verb("submit", arguments, lambda side: side.submit(ticket, self.now_ns), ticket)
        return ticket

    def end(self, ticket: Ticket) -> None:
        """The driver cancels it: its caller is gone, or it has had its last response. No-op for one that has ended."""
        if ticket in self.live:
            self.live.remove(ticket)
        self._verb("cancel", ticket, lambda side: side.cancel(ticket, self.now_ns))
        if ticket.phase is not Phase.ENDED:
            raise self._violation(f"{ticket} was cancelled and is {ticket.phase}")

    def take(self, instance: int, count: int) -> None:
        """The engine says that it has taken the oldest of what it was given."""
        count = min(count, len(self.given[instance]))
        if count:
            del self.given[instance][:count]
            self._verb("done", (instance, count), lambda side: side.done(instance, self.now_ns, (1,) * count))

    def advance(self) -> None:
        self._verb("advance", None, lambda side: side.advance(self.now_ns))

    def advance_to_deadline(self) -> None:
        """Act as the driver's timer."""
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None:
            self.now_ns = max(self.now_ns, deadline_ns)
        self.advance()

    def refuse_waiting(self) -> None:
        self._verb("refuse_waiting", None, lambda side: side.refuse_waiting(self.now_ns))

    def refuse_executing(self) -> None:
        self._verb("refuse_executing", None, lambda side: side.refuse_executing(self.now_ns))

    def stop(self) -> None:
        self._verb("stop", None, lambda side: side.stop(self.now_ns))

    def finish(self) -> None:
        """With engines at work, every ticket ends."""
        if not self.engines:
            self.add_instance(1, 0)
        for _ in range(2 * len(self.live) + 2):
            for instance in list(self.given):
                self.take(instance, len(self.given[instance]))
            for ticket in [each for each in self.live if each.phase is Phase.EXECUTING]:
                self.end(ticket)
        if self.live:
            raise self._violation(f"tickets {self.live} never ended")
        snapshot = self.core.snapshot()
        if snapshot.queued or snapshot.executing or self.core.next_deadline_ns() is not None:
            raise self._violation(f"nothing is left to do, but the core says {snapshot}")

    # checks

    def _verb(
        self,
        name: str,
        argument: object,
        call: Callable[[EngineCore | ReferenceEngines], None],
        ticket: NumberedTicket | None = None,
    ) -> None:
        """`ticket` is submitted, and not live when both sides refuse it."""
        self.steps.append((self.now_ns, name, argument))
        self.taken[name] += 1
        texts = []
        for side in (self.reference, self.core):
            try:
                call(side)
                texts.append("")
            except Unavailable as error:
                texts.append(error.message)
        if texts[0] != texts[1]:
            raise self._violation(f"the core says {texts[1]!r}, expected {texts[0]!r}")
        if ticket is not None and texts[0]:
            self.live.remove(ticket)
            self.taken["stopped" if self.reference.stopped else "full"] += 1
        self._compare()

    def _compare(self) -> None:
        decided = Decided()
        for action in self.core.take_actions():
            match action:
                case Dispatch(instance, batches):
                    for (ticket,) in batches:
                        self.given[instance].append(ticket)
                        decided.dispatched.append((instance, ticket))
                case Respond(tickets):
                    decided.responded.extend(tickets)
                case Refuse(ticket, outcome):
                    if ticket not in self.live or ticket.phase is not Phase.ENDED:
                        raise self._violation(f"{ticket} was refused, and is {ticket.phase}")
                    self.live.remove(ticket)
                    self.taken[outcome.name] += 1
                    decided.refused.add((ticket, outcome))
                case Retired(instance):
                    self.taken["retired"] += 1
                    decided.retired.add(instance)
                case _:
                    raise self._violation(f"unexpected {action}")
        expected = self.reference.take()
        if decided != expected:
            raise self._violation(f"the core decided {decided}, expected {expected}")
        requests = self.reference.requests
        if {id(each.ticket) for each in requests} != {id(each) for each in self.live}:
            raise self._violation(f"{[each.ticket for each in requests]} are live, expected {self.live}")
        queued = sum(each.engine is None for each in requests)
        snapshot = self.core.snapshot()
        if (snapshot.queued, snapshot.executing) != (queued, len(requests) - queued):
            raise self._violation(f"the core says {snapshot}, expected {queued} queued of {len(requests)}")
        if self.core.next_deadline_ns() != self.reference.next_deadline_ns():
            raise self._violation(
                f"the next deadline is {self.core.next_deadline_ns()}, expected {self.reference.next_deadline_ns()}"
            )
        self._check_room()

    def _check_room(self) -> None:
        for instance, room in self.engines.items():
            held = [each.ticket.cost for each in self.reference.held(instance)]
            sequences, tokens = sum(each.sequences for each in held), sum(each.tokens for each in held)
            if len(held) > 1 and (sequences > room.sequences or (room.tokens and tokens > room.tokens)):
                raise self._violation(f"engine {instance} with room for {room} holds {held}")

    def _violation(self, text: str) -> Violation:
        history = "\n".join(f"  {step}" for step in self.steps)
        return Violation(f"{text}\noptions: {self.options}\n{history}")
