"""SequenceTrial: a core of sequences and its reference on one virtual clock, compared and checked after every verb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fuzz.schedulers.sequence_reference import NOTHING, SequenceDecisions, SequenceReference
from fuzz.schedulers.trial import HALVED, NumberedTicket
from fuzz.target import Violation
from tpy.errors import InvalidArgument, Unavailable
from tpy.messages import SequencePosition
from tpy_data.schedulers.core.contract import (
    Dispatch,
    LiveSequence,
    Phase,
    Refuse,
    Respond,
    Retired,
    SchedulerCore,
    SequenceEnded,
    Ticket,
)
from tpy_data.schedulers.core.sequence_options import DirectOptions, SequenceOptions

INVARIANT = (
    "every accepted request ends exactly once, exactly when and where a naive scheduler says; the requests of a sequence run in "
    "order, one at a time, all on one instance and in one slot; a slot runs one sequence at a time; a batch fits the model, its "
    "requests go together, and in direct batches each is in the place of its slot; no slot, sequence or queue place leaks; with "
    "an idle instance nothing that may run waits beyond the delay; cancelling, losing an instance or rescheduling at any moment "
    "keeps all of this"
)


class SequenceTrial:
    """One history. The caller moves the clock (`now_ns`) and calls the rules; a rule raises Violation when anything is wrong."""

    def __init__(self, core: SchedulerCore, options: SequenceOptions, *, taken: Counter[str] | None = None) -> None:
        self.taken: Counter[str] = Counter() if taken is None else taken
        """The number of times that each verb was called and each outcome came."""
        self.core = core
        self.reference = SequenceReference(options)
        self.options = options
        self.now_ns = 0
        self.accepted: list[Ticket] = []
        self.live: set[Ticket] = set()
        """Accepted tickets that have not ended; kept apart from the reference."""
        self.busy: dict[int, list[Ticket]] = {}
        self.members: list[int] = []
        """Instances that were neither removed nor told to retire."""
        self.retiring: list[int] = []
        self.submitted = 0
        self.instances = 0
        self.stopped = False
        self.steps: list[tuple[object, ...]] = []
        self._began_by: dict[LiveSequence, Ticket] = {}
        self._places: dict[LiveSequence, tuple[int | None, int | None]] = {}
        self._last_begun: dict[LiveSequence, int] = {}

    # rules

    def add_instance(self) -> None:
        instance = self.instances
        self.instances += 1
        self.members.append(instance)
        self._verb(lambda side: side.add_instance(instance, self.now_ns), "add_instance", instance)

    def remove_instance(self, instance: int) -> None:
        (self.members if instance in self.members else self.retiring).remove(instance)
        self._verb(lambda side: side.remove_instance(instance, self.now_ns), "remove_instance", instance)

    def retire_instance(self, instance: int) -> None:
        self.members.remove(instance)
        self.retiring.append(instance)
        self._verb(lambda side: side.retire_instance(instance, self.now_ns), "retire_instance", instance)

    def submit(
        self,
        position: SequencePosition | None,
        *,
        batch_size: int = 1,
        signature: str = "a",
        timeout_ns: int = 0,
        deadline_in_ns: int | None = None,
    ) -> None:
        ticket = NumberedTicket(
            self.submitted,
            batch_size=batch_size,
            signature=signature,
            priority=self.submitted % 3,
            timeout_ns=timeout_ns,
            deadline_ns=None if deadline_in_ns is None else self.now_ns + deadline_in_ns,
            sequence=position,
        )
        self.submitted += 1
        self.live.add(ticket)
        flags = "" if position is None else (position.correlation_id, "S" * position.start + "E" * position.end)
        self._verb(
            lambda side: side.submit(ticket, self.now_ns),
            "submit",
            (ticket, flags, batch_size, signature, timeout_ns, deadline_in_ns),
            ticket=ticket,
        )

    def cancel(self, ticket: Ticket) -> None:
        self.live.discard(ticket)
        self._verb(lambda side: side.cancel(ticket, self.now_ns), "cancel", ticket)
        if ticket.phase is not Phase.ENDED:
            raise self._violation(f"{ticket} was cancelled and is {ticket.phase}")

    def reschedule(self, ticket: Ticket) -> None:
        self._verb(lambda side: side.reschedule(ticket, self.now_ns), "reschedule", ticket)

    def complete(self, instance: int, *, took_ns: int = 0) -> None:
        for ticket in self.busy.pop(instance):
            if ticket in self.reference.given_back and ticket.live is not None:
                self._last_begun[ticket.live] -= 1  # it may begin once more
        self._verb(lambda side: side.done(instance, self.now_ns, (took_ns,)), "done", (instance, took_ns))
        if self.reference.halved:
            self.reference.halved = 0
            self.taken[HALVED] += 1

    def advance(self) -> None:
        self._verb(lambda side: side.advance(self.now_ns), "advance", None)

    def advance_to_deadline(self) -> None:
        """Act as the driver's timer; the clock stands still when nothing is due."""
        deadline_ns = self.core.next_deadline_ns()
        if deadline_ns is not None:
            self.now_ns = max(self.now_ns, deadline_ns)
        self.advance()

    def refuse_waiting(self) -> None:
        self._verb(lambda side: side.refuse_waiting(self.now_ns), "refuse_waiting", None)

    def stop(self) -> None:
        self.stopped = True
        self._verb(lambda side: side.stop(self.now_ns), "stop", None)

    def finish(self) -> None:
        """Let everything come to its end: with instances at work and time passing, every ticket and every sequence ends; then all
        slots are free."""
        if not self.members:
            self.add_instance()
        for _ in range(6 * len(self.live) + 6):
            self._complete_all()
            self.advance_to_deadline()
        self._complete_all()
        snapshot = self.core.snapshot()
        if self.live or self.retiring:
            raise self._violation(f"tickets {self.live} never ended, or instances {self.retiring} never retired")
        if snapshot.queued or snapshot.executing or snapshot.sequences or self.core.next_deadline_ns() is not None:
            raise self._violation(f"nothing is left to do, but the core says {snapshot}")
        if not self.stopped:
            self._fill_all_slots()

    def _complete_all(self) -> None:
        for instance in list(self.busy):
            self.complete(instance)

    def _fill_all_slots(self) -> None:
        count = min(len(self.members) * self.options.slots, self.options.live_max, self.options.waiting_max)
        for number in range(count):
            self.submit(SequencePosition(correlation_id=f"last {number}", start=True))
        places = {(live.instance, live.slot) for ticket in self.accepted[-count:] if (live := ticket.live) is not None}
        if len(places) != count or (None, None) in places:
            raise self._violation(f"{count} sequences should have a slot each, but have {places}")

    # checks

    def _verb(
        self,
        call: Callable[[SchedulerCore | SequenceReference], None],
        name: str,
        argument: object,
        ticket: Ticket | None = None,
    ) -> None:
        self.steps.append((self.now_ns, name, argument))
        self.taken[name] += 1
        should_say: str | None = None
        refusal: str | None = None
        try:
            call(self.reference)
        except (Unavailable, InvalidArgument) as error:
            should_say = error.reason()
        try:
            call(self.core)
        except (Unavailable, InvalidArgument) as error:
            refusal = error.reason()
        if should_say != refusal:
            raise self._violation(f"{name} should say {should_say!r}, the core says {refusal!r}")
        if ticket is not None and refusal is not None:
            self.live.discard(ticket)
        elif ticket is not None:
            self.accepted.append(ticket)
            self._note_sequence(ticket)
        decisions = self._perform()
        expected = self.reference.take_decisions()
        if decisions == expected:
            self._check_state()
            return
        for what in ("dispatched", "responded", "refused", "ended", "retired"):
            should, does = getattr(expected, what), getattr(decisions, what)
            if should != does:
                raise self._violation(f"{what}: should be {should}, is {does}")
        self._check_state()

    def _note_sequence(self, ticket: Ticket) -> None:
        live, position = ticket.live, ticket.sequence
        if live is None or position is None or live.correlation_id != position.correlation_id:
            raise self._violation(f"{ticket} was accepted at {position} but is in no such sequence")
        if position.start is (live in self._began_by):
            raise self._violation(f"{ticket} begins a sequence, or not, against its START")
        self._began_by.setdefault(live, ticket)

    def _perform(self) -> SequenceDecisions:
        """Take the core's actions and do to the ledger what they say."""
        actions = self.core.take_actions()
        if not actions:
            return NOTHING
        decisions = SequenceDecisions()
        for action in actions:
            match action:
                case Dispatch(instance, (tickets,), places):
                    self._check_given(instance, list(tickets), list(places))
                    self.busy[instance] = list(tickets)
                    decisions.dispatched[instance] = (list(tickets), list(places))
                case Respond(tickets):
                    for ticket in tickets:
                        self._end(ticket, action)
                    decisions.responded.update(tickets)
                case Refuse(ticket, outcome):
                    self._end(ticket, action)
                    decisions.refused.add((ticket, outcome))
                    self.taken[outcome.name] += 1
                case SequenceEnded(sequence, why):
                    began_by = self._began_by.get(sequence)
                    if began_by is None:
                        raise self._violation(f"a sequence ended that had not begun, or twice: {sequence.correlation_id}")
                    del self._began_by[sequence]
                    decisions.ended.add((began_by, why))
                    self.taken[why.name] += 1
                case Retired(instance):
                    if instance not in self.retiring:
                        raise self._violation(f"instance {instance} retired unasked")
                    self.retiring.remove(instance)
                    decisions.retired.add(instance)
                case _:
                    raise self._violation(f"nobody gave cause for {action}")
        return decisions

    def _end(self, ticket: Ticket, action: object) -> None:
        if ticket not in self.live:
            raise self._violation(f"{ticket} had ended already (or was never accepted): {action}")
        self.live.remove(ticket)

    def _check_given(self, instance: int, tickets: list[Ticket], places: list[Ticket | None]) -> None:
        if instance in self.busy or instance not in self.members + self.retiring:
            raise self._violation(f"instance {instance} was given {tickets} while it was not idle")
        strategy = self.options.strategy
        direct = isinstance(strategy, DirectOptions)
        size_max = self.options.slots if isinstance(strategy, DirectOptions) else strategy.batch_size_max
        if not 1 <= len(tickets) <= size_max or len(places) > size_max or len({ticket.signature for ticket in tickets}) > 1:
            raise self._violation(f"batch {tickets} in {places} does not fit")
        if places and (places[-1] is None or [ticket for ticket in places if ticket is not None] != tickets):
            raise self._violation(f"places {places} are not those of {tickets}")
        running = [other.live for batch in self.busy.values() for other in batch]
        for ticket in tickets:
            live = ticket.live
            if live is None or ticket not in self.live:
                raise self._violation(f"{ticket} has ended")
            place = (live.instance, live.slot)
            if any(other is not None and (other.instance, other.slot) == place for other in running):
                raise self._violation(f"{ticket} runs beside another of its sequence or slot {place}")
            if place != self._places.setdefault(live, place) or place[0] != instance or place[1] is None:
                raise self._violation(f"{ticket} runs on instance {instance}, its sequence is in {place}")
            if direct and places[place[1]] is not ticket:
                raise self._violation(f"{ticket} is not in its place {place[1]}: {places}")
            number = sum(other.live is live for other in self.accepted[: self.accepted.index(ticket)])
            if number < self._last_begun.get(live, 0):
                raise self._violation(f"{ticket} runs after one that came later")
            self._last_begun[live] = number + 1
            running.append(live)

    def _check_state(self) -> None:
        reference, core = self.reference, self.core
        queued = executing = 0
        entries = reference.entries()
        for entry in entries:
            queued += entry.phase is Phase.QUEUED
            executing += entry.phase is Phase.EXECUTING and not entry.ended
            if entry.ticket.phase is not (Phase.ENDED if entry.ended else entry.phase):
                raise self._violation(f"{entry.ticket} should be {entry.phase}, is {entry.ticket.phase}")
        sequences = sum(len(chain.sequences) for chain in reference.chains)
        snapshot = core.snapshot()
        should = (queued, executing, len(reference.idle_instances()), sequences)
        if (snapshot.queued, snapshot.executing, snapshot.idle_instances, snapshot.sequences) != should:
            raise self._violation(f"{snapshot} should be {should}")
        if sequences != len(self._began_by):
            raise self._violation(f"{sequences} sequences are live, but {len(self._began_by)} have begun and not ended")
        deadline_ns, should_ns = core.next_deadline_ns(), reference.next_deadline_ns()
        if deadline_ns != should_ns:
            raise self._violation(f"next deadline should be {should_ns}, is {deadline_ns}")
        if deadline_ns is not None and deadline_ns <= self.now_ns:
            raise self._violation(f"it is {self.now_ns} and the core still waits for {deadline_ns}")

    def _violation(self, text: str) -> Violation:
        history = "\n".join(f"  {at_ns:>6} {name} {argument}" for at_ns, name, argument in self.steps)
        return Violation(f"{text}\n{self.options}\n{history}")
