"""Trial: a scheduler core and the reference scheduler on one virtual clock, compared and checked after every verb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fuzz.schedulers.reference import NOTHING, Decisions, ReferenceScheduler
from fuzz.target import Violation
from tpy.errors import Unavailable
from tpy.limits import RUN_REQUESTS_MAX
from tpy.messages import SequencePosition
from tpy_data.schedulers.core.contract import BreakUp, Dispatch, Outcome, Phase, Refuse, Respond, Retired, SchedulerCore, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions

INVARIANT = (
    "every accepted ticket ends exactly once (answered, refused or cancelled), exactly when and where a naive scheduler says; "
    "a batch fits the model and its tickets go together; the queue is served in order; no deadline is met early or late; with "
    "an idle instance nobody waits beyond the queue delay; what an instance did not begin "
    "keeps its place; counts are exact; cancelling at any moment changes none of this"
)

HALVED = "halved"
"""Among the rules that a history takes: a batch held half of what waited."""

PROGRESSED = "progressed"
"""A steady run said what was over."""


class NumberedTicket(Ticket):
    """A ticket that prints as its number, for histories."""

    __slots__ = ("number", "text")

    def __init__(
        self,
        number: int,
        *,
        batch_size: int,
        signature: str,
        priority: int,
        timeout_ns: int,
        deadline_ns: int | None,
        sequence: SequencePosition | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            signature=signature,
            priority=priority,
            timeout_ns=timeout_ns,
            deadline_ns=deadline_ns,
            sequence=sequence,
        )
        self.number = number

    def __repr__(self) -> str:
        return f"#{self.number}"


class Trial:
    """One history. The caller moves the clock (`now_ns`) and calls the rules; a rule raises Violation when anything is wrong."""

    def __init__(self, core: SchedulerCore, options: DynamicOptions, *, runs: bool, taken: Counter[str] | None = None) -> None:
        self.taken: Counter[str] = Counter() if taken is None else taken
        """How often each verb was called and each outcome came."""
        self.core = core
        self.reference = ReferenceScheduler(options, runs=runs)
        self.options = options
        self.runs = runs
        self.now_ns = 0
        self.accepted: list[Ticket] = []
        self.live: dict[Ticket, int | None] = {}
        """Accepted tickets that have not ended, each with its end-to-end deadline; kept apart from the reference."""
        self.busy: dict[int, list[Ticket]] = {}
        """What each instance runs, as far as the core was not told that it is over."""
        self.members: list[int] = []
        self.steady: set[int] = set()
        """Instances with a steady run of which more than one ticket is not over."""
        self.submitted = 0
        self.instances = 0
        self.steps: list[tuple[object, ...]] = []

    # rules

    def add_instance(self, *, steady: bool = False) -> None:
        instance = self.instances
        self.instances += 1
        self.members.append(instance)
        self._verb(lambda side: side.add_instance(instance, self.now_ns, steady=steady), "add_instance", (instance, steady))

    def remove_instance(self, instance: int) -> None:
        self.members.remove(instance)
        self._verb(lambda side: side.remove_instance(instance, self.now_ns), "remove_instance", instance)

    def retire_instance(self, instance: int) -> None:
        self.members.remove(instance)
        self._verb(lambda side: side.retire_instance(instance, self.now_ns), "retire_instance", instance)

    def reschedule(self, ticket: Ticket) -> None:
        """The ticket is of a batch, or it is the first of a run."""
        self._verb(lambda side: side.reschedule(ticket, self.now_ns), "reschedule", ticket)

    def submit(self, *, batch_size: int, signature: str, priority: int, timeout_ns: int, deadline_in_ns: int | None) -> None:
        ticket = NumberedTicket(
            self.submitted,
            batch_size=batch_size,
            signature=signature,
            priority=priority,
            timeout_ns=timeout_ns,
            deadline_ns=None if deadline_in_ns is None else self.now_ns + deadline_in_ns,
        )
        self.submitted += 1
        self.live[ticket] = ticket.deadline_ns
        self._verb(
            lambda side: side.submit(ticket, self.now_ns),
            "submit",
            (ticket, batch_size, signature, priority, timeout_ns, deadline_in_ns),
            ticket=ticket,
        )

    def cancel(self, ticket: Ticket) -> None:
        self.live.pop(ticket, None)
        self._verb(lambda side: side.cancel(ticket, self.now_ns), "cancel", ticket)
        if ticket.phase is not Phase.ENDED:
            raise self._violation(f"{ticket} was cancelled and is {ticket.phase}")

    def submit_alike(self, count: int) -> None:
        """So many requests of one row that go together."""
        for _ in range(count):
            self.submit(batch_size=1, signature="a", priority=0, timeout_ns=0, deadline_in_ns=None)

    def complete(self, instance: int, *, not_begun: int = 0, brief: bool = True, took_ns: int = 0) -> None:
        """`not_begun` is cut to what the instance can have."""
        given = self.busy.pop(instance)
        self.steady.discard(instance)
        not_begun = min(not_begun, len(given) - 1) if self.runs and given else 0
        self._verb(
            lambda side: side.completed(instance, self.now_ns, not_begun=not_begun, brief=brief, took_ns=took_ns),
            "completed",
            (instance, not_begun, brief, took_ns),
        )

    def progress(self, instance: int, executed: int = 1) -> None:
        """The first requests of a steady run are over, and the next was begun. `executed` is cut to what can be."""
        executed = min(executed, len(self.busy[instance]) - 1)
        del self.busy[instance][:executed]
        if len(self.busy[instance]) == 1:
            self.steady.discard(instance)
        self.taken[PROGRESSED] += 1
        self._verb(
            lambda side: side.broken_up(instance, self.now_ns, executed=executed, not_begun=0), PROGRESSED, (instance, executed)
        )

    def advance(self) -> None:
        self._verb(lambda side: side.advance(self.now_ns), "advance", None)

    def advance_to_deadline(self) -> None:
        """What the driver's timer does; the clock stands still when nothing is due."""
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None:
            self.now_ns = max(self.now_ns, deadline_ns)
        self.advance()

    def _break_up(self, instance: int) -> None:
        """What the driver does when it is told to; how far the run has come differs from step to step."""
        given = self.busy[instance]
        executed = len(self.steps) % (len(given) + 1)
        begun = min(executed + 1, len(given))
        self.busy[instance] = given[executed:begun]
        self.steady.discard(instance)
        not_begun = len(given) - begun
        self._verb(
            lambda side: side.broken_up(instance, self.now_ns, executed=executed, not_begun=not_begun),
            "broken_up",
            (instance, executed, not_begun),
        )

    def refuse_waiting(self) -> None:
        self._verb(lambda side: side.refuse_waiting(self.now_ns), "refuse_waiting", None)

    def stop(self) -> None:
        self._verb(lambda side: side.stop(self.now_ns), "stop", None)

    def finish(self) -> None:
        """Let everything come to its end: with instances at work and time passing, every ticket ends."""
        if not self.members:
            self.add_instance()
        for _ in range(4 * len(self.live) + 4):
            for instance in list(self.busy):
                self.complete(instance)
            self.advance_to_deadline()
        if self.live:
            raise self._violation(f"tickets {list(self.live)} never ended")
        snapshot = self.core.snapshot()
        if snapshot.queued or snapshot.executing or self.core.next_deadline_ns() is not None:
            raise self._violation(f"nothing is left to do, but the core says {snapshot}")

    # checks

    def _verb(
        self,
        call: Callable[[SchedulerCore | ReferenceScheduler], None],
        name: str,
        argument: object,
        ticket: Ticket | None = None,
    ) -> None:
        self.steps.append((self.now_ns, name, argument))
        self.taken[name] += 1
        expected: str | None = None
        refusal: str | None = None
        try:
            call(self.reference)
        except Unavailable as error:
            expected = error.message
        try:
            call(self.core)
        except Unavailable as error:
            refusal = error.message
        if expected != refusal:
            raise self._violation(f"submit should say {expected!r}, the core says {refusal!r}")
        if ticket is not None:
            if refusal is not None:
                del self.live[ticket]
            else:
                self.accepted.append(ticket)
                self._note_deadline(ticket)
        if self.reference.halved:
            self.reference.halved = 0
            self.taken[HALVED] += 1
        decisions = self._perform()
        self._check_decisions(self.reference.take_decisions(), decisions)
        self._check_state()
        for instance in decisions.broken:
            self._break_up(instance)

    def _note_deadline(self, ticket: Ticket) -> None:
        for entry in reversed(self.reference.entries):
            if entry.ticket is ticket:
                self.live[ticket] = entry.ends_ns
                return

    def _perform(self) -> Decisions:
        """Take the core's actions and do to the ledger what they say."""
        actions = self.core.take_actions()
        if not actions:
            return NOTHING
        decisions = Decisions()
        for action in actions:
            match action:
                case Dispatch(instance, tickets, singly, steady=steady):
                    if singly is not self.runs:
                        raise self._violation(f"{tickets} were given as {'a run' if singly else 'a batch'}")
                    self._check_given(instance, list(tickets))
                    self.busy[instance] = list(tickets)
                    if steady:
                        self.steady.add(instance)
                    decisions.dispatched.append((instance, list(tickets), steady))
                case BreakUp(instance):
                    if len(self.busy.get(instance, ())) < 2 or instance in decisions.broken:
                        raise self._violation(f"instance {instance} has no run to break up")
                    decisions.broken.add(instance)
                case Retired(instance):
                    decisions.retired.add(instance)
                case Respond(tickets):
                    for ticket in tickets:
                        self._end(ticket, action)
                    decisions.responded.extend(tickets)
                case Refuse(ticket, outcome):
                    deadline_ns = self._end(ticket, action)
                    if outcome is Outcome.TIMED_OUT and deadline_ns is None and not self._may_expire():
                        raise self._violation(f"{ticket} has no time limit but was refused: {outcome}")
                    decisions.refused.add((ticket, outcome))
                    self.taken[outcome.name] += 1
        return decisions

    def _may_expire(self) -> bool:
        return any(rules.default_timeout_ns for rules in self.options.levels)

    def _end(self, ticket: Ticket, action: object) -> int | None:
        if ticket not in self.live:
            raise self._violation(f"{ticket} had ended already (or was never accepted): {action}")
        return self.live.pop(ticket)

    def _check_given(self, instance: int, tickets: list[Ticket]) -> None:
        if instance in self.busy or instance not in self.members:
            raise self._violation(f"instance {instance} was given {tickets} while it was not idle")
        if not tickets:
            raise self._violation(f"instance {instance} was given nothing")
        if self.runs and len(tickets) > RUN_REQUESTS_MAX:
            raise self._violation(f"run {tickets} is longer than {RUN_REQUESTS_MAX}")
        if not self.runs:
            self._check_batch(tickets)
        for ticket in tickets:
            if ticket not in self.live:
                raise self._violation(f"{ticket} had ended but was dispatched")
            if any(ticket in others for others in self.busy.values()):
                raise self._violation(f"{ticket} runs twice")

    def _check_batch(self, tickets: list[Ticket]) -> None:
        rows = sum(ticket.batch_size for ticket in tickets)
        if rows > self.options.batch_size_max and len(tickets) > 1:
            raise self._violation(f"batch {tickets} has {rows} rows, at most {self.options.batch_size_max} fit")
        if len({ticket.signature for ticket in tickets}) != 1:
            raise self._violation(f"batch {tickets} holds incompatible tickets")

    def _check_decisions(self, expected: Decisions, actual: Decisions) -> None:
        if expected == actual:
            return
        if not self.options.preserve_ordering:  # then the order of answers is not promised
            for decisions in (expected, actual):
                decisions.responded.sort(key=repr)
        for what in ("dispatched", "responded", "refused", "broken", "retired"):
            should, does = getattr(expected, what), getattr(actual, what)
            if should != does:
                raise self._violation(f"{what}: should be {should}, is {does}")

    def _check_state(self) -> None:
        reference, core = self.reference, self.core
        queued = executing = 0
        for entry in reference.entries:
            queued += entry.phase is Phase.QUEUED
            executing += entry.phase is Phase.EXECUTING
            if entry.ticket.phase is not entry.phase:
                raise self._violation(f"{entry.ticket} should be {entry.phase}, is {entry.ticket.phase}")
        at_hand = reference.at_hand()
        queued, executing = queued + at_hand, executing - at_hand
        snapshot = core.snapshot()
        if (snapshot.queued, snapshot.executing, snapshot.idle_instances) != (queued, executing, len(reference.idle)):
            raise self._violation(f"{snapshot}, but {queued} wait, {executing} run, {len(reference.idle)} instances are idle")
        deadline_ns, should_ns = core.next_deadline_ns(), reference.next_deadline_ns()
        if deadline_ns != should_ns:
            raise self._violation(f"next deadline should be {should_ns}, is {deadline_ns}")
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            raise self._violation(f"it is {self.now_ns} and the core still waits for {deadline_ns}")
        for ticket, ends_ns in self.live.items():
            if ends_ns is not None and ends_ns <= self.now_ns:
                raise self._violation(f"{ticket} should have ended at {ends_ns}, it is {self.now_ns}")

    def _violation(self, text: str) -> Violation:
        history = "\n".join(f"  {at_ns:>6} {name} {argument}" for at_ns, name, argument in self.steps)
        return Violation(f"{text}\n{self.options}\n{history}")
