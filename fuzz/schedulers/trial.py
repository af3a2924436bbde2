"""Trial: a scheduler core and the reference scheduler on one virtual clock, compared and checked after every verb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fuzz.schedulers.reference import NOTHING, Decisions, ReferenceScheduler
from fuzz.target import Violation
from tpy.errors import Refusal
from tpy.limits import PREFETCHED_BATCHES_MAX, QUICK_BATCHES_MAX
from tpy.messages import SequencePosition
from tpy_data.schedulers.core.contract import Dispatch, Outcome, Phase, Refuse, Respond, Retired, Revoke, SchedulerCore, Ticket
from tpy_data.schedulers.core.dynamic_options import DynamicOptions

INVARIANT = (
    "every accepted ticket ends exactly once (answered, refused or cancelled), exactly when and where a naive scheduler says; "
    "a batch fits the model and its tickets go together; the queue is served in order; no deadline is met early or late; with "
    "an idle instance nobody waits beyond the queue delay; what an instance did not start "
    "keeps its place; counts are exact; cancelling at any moment changes none of this"
)

HALVED = "halved"
"""Among the rules that a history takes: a batch held half of what waited."""

PREFETCHED = "prefetched"
"""An instance got a batch behind others."""


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

    def __init__(
        self,
        core: SchedulerCore,
        options: DynamicOptions,
        *,
        credit: bool,
        taken: Counter[str] | None = None,
        reference: ReferenceScheduler | None = None,
    ) -> None:
        self.taken: Counter[str] = Counter() if taken is None else taken
        """The number of times that each verb was called and each outcome came."""
        self.core = core
        self.reference = reference or ReferenceScheduler(options, credit=credit)
        self.options = options
        self.credit = credit
        self.now_ns = 0
        self.accepted: list[Ticket] = []
        self.live: dict[Ticket, int | None] = {}
        """Accepted tickets that have not ended, each with its end-to-end deadline; kept apart from the reference."""
        self.busy: dict[int, list[list[Ticket]]] = {}
        """The batches that each instance holds, as far as the core was not told that they are over."""
        self.members: list[int] = []
        self.credits: dict[int, int] = {}
        self.submitted = 0
        self.instances = 0
        self.steps: list[tuple[object, ...]] = []

    # rules

    def add_instance(self, *, prefetch: bool = False, credit: int = 1) -> None:
        instance = self.instances
        self.instances += 1
        self.members.append(instance)
        self.credits[instance] = credit
        self._verb(
            lambda side: side.add_instance(instance, self.now_ns, prefetch=prefetch, credit=credit),
            "add_instance",
            (instance, prefetch, credit),
        )

    def remove_instance(self, instance: int) -> None:
        self.members.remove(instance)
        self._verb(lambda side: side.remove_instance(instance, self.now_ns), "remove_instance", instance)

    def fail(self, instance: int) -> None:
        """The instance fails before it has started what it holds."""
        if any(ticket in self.reference.given_back for batch in self.busy.get(instance, ()) for ticket in batch):
            return  # what its model gave back was started
        self.taken["fail"] += 1
        self.remove_instance(instance)
        held = self.busy.pop(instance, [])
        if held:
            self._verb(lambda side: side.revoked(instance, self.now_ns, len(held)), "revoked", (instance, len(held)))

    def retire_instance(self, instance: int) -> None:
        self.members.remove(instance)
        self._verb(lambda side: side.retire_instance(instance, self.now_ns), "retire_instance", instance)

    def reschedule(self, ticket: Ticket) -> None:
        """The ticket is of the first batch of an instance."""
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
        self.prepare(ticket)
        self.live[ticket] = ticket.deadline_ns
        self._verb(
            lambda side: side.submit(ticket, self.now_ns),
            "submit",
            (ticket, batch_size, signature, priority, timeout_ns, deadline_in_ns),
            ticket=ticket,
        )

    def prepare(self, ticket: NumberedTicket) -> None:
        """Give a new ticket what it needs besides."""

    def cancel(self, ticket: Ticket) -> None:
        self.live.pop(ticket, None)
        self._verb(lambda side: side.cancel(ticket, self.now_ns), "cancel", ticket)
        if ticket.phase is not Phase.ENDED:
            raise self._violation(f"{ticket} was cancelled and is {ticket.phase}")

    def submit_alike(self, count: int) -> None:
        """This many requests of one row that go together."""
        for _ in range(count):
            self.submit(batch_size=1, signature="a", priority=0, timeout_ns=0, deadline_in_ns=None)

    def complete(self, instance: int, *times_ns: int) -> None:
        """The oldest batches of an instance are over, in these times; no more of them than it holds."""
        held = self.busy[instance]
        times_ns = (times_ns or (0,))[: len(held)]
        del held[: len(times_ns)]
        if not held:
            del self.busy[instance]
        self._verb(lambda side: side.done(instance, self.now_ns, times_ns), "done", (instance, times_ns))

    def recall(self) -> None:
        self._verb(lambda side: side.recall(self.now_ns), "recall", None)

    def advance(self) -> None:
        self._verb(lambda side: side.advance(self.now_ns), "advance", None)

    def advance_to_deadline(self) -> None:
        """Act as the driver's timer; the clock stands still when nothing is due."""
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None:
            self.now_ns = max(self.now_ns, deadline_ns)
        self.advance()

    def _revoke(self, instance: int) -> None:
        """Act as the driver on a Revoke: what is over is told first; how much that is differs from step to step."""
        over = len(self.steps) % 3
        if over and instance in self.busy:
            self.complete(instance, *[1] * over)
        held = self.busy.get(instance, [])
        # A batch is started when the one before it is over, or is about to be.
        count = max(0, len(held) - len(self.steps) % 2)
        if count:
            del held[-count:]
            if not held:
                del self.busy[instance]
        self._verb(lambda side: side.revoked(instance, self.now_ns, count), "revoked", (instance, count))

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
        except Refusal as error:
            expected = error.message
        try:
            call(self.core)
        except Refusal as error:
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
        for instance in decisions.revoking:
            self._revoke(instance)

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
                case Dispatch(instance, batches):
                    given = [list(batch) for batch in batches]
                    self._check_given(instance, given)
                    self.busy.setdefault(instance, []).extend(given)
                    decisions.dispatched.append((instance, given))
                case Revoke(instance):
                    if len(self.busy.get(instance, ())) < 2 or instance in decisions.revoking:
                        raise self._violation(f"instance {instance} holds nothing that could be revoked")
                    decisions.revoking.add(instance)
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

    def _check_given(self, instance: int, batches: list[list[Ticket]]) -> None:
        held = len(self.busy.get(instance, ()))
        if instance not in self.members or not batches:
            raise self._violation(f"instance {instance} was given {batches}")
        if held and held + len(batches) > (PREFETCHED_BATCHES_MAX if self.credit else self.credits[instance]):
            raise self._violation(f"instance {instance} was given {batches} behind {held} others")
        if len(batches) > (QUICK_BATCHES_MAX if self.credit else 1):
            raise self._violation(f"instance {instance} was given {len(batches)} batches")
        if held or len(batches) > 1:
            self.taken[PREFETCHED] += 1
        running = [ticket for others in self.busy.values() for batch in others for ticket in batch]
        for batch in batches:
            self._check_batch(batch)
            for ticket in batch:
                if ticket not in self.live:
                    raise self._violation(f"{ticket} had ended but was dispatched")
                if ticket in running:
                    raise self._violation(f"{ticket} runs twice")

    def _check_batch(self, tickets: list[Ticket]) -> None:
        if not tickets or (self.credit and len(tickets) > 1):
            raise self._violation(f"{tickets} are not a batch")
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
        for what in ("dispatched", "responded", "refused", "revoking", "retired"):
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
        prefetched = reference.prefetched()
        queued, executing = queued + prefetched, executing - prefetched
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
