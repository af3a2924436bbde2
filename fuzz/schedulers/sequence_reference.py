"""SequenceReference: what a core of sequences must decide, written for being right and nothing else.

There are chains: the requests of one correlation id, one sequence after the other where a START came early, in a slot or in the
backlog. At every step everything is looked for anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzz.schedulers.reference import Given, batch_to_send, share_of
from tpy.errors import InvalidArgument, Unavailable
from tpy_data.schedulers.core.contract import Outcome, Phase, SequenceEnd, Ticket
from tpy_data.schedulers.core.sequence_options import DirectOptions, SequenceOptions


@dataclass(eq=False, slots=True)
class Sequence:
    """`began_by` is its name: the ticket with its START. `closed`: why no further request joins it."""

    began_by: Ticket
    closed: SequenceEnd | None = None
    waiting: list[Entry] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Chain:
    """`place`: instance and slot, None in the backlog. `idle_since_ns`: when its last request was over."""

    id: int | str
    sequences: list[Sequence] = field(default_factory=list)
    place: tuple[int, int] | None = None
    executing: Entry | None = None
    idle_since_ns: int | None = None

    def first(self) -> Entry | None:
        waiting = [entry for sequence in self.sequences for entry in sequence.waiting]
        return waiting[0] if waiting and self.executing is None else None


@dataclass(kw_only=True, eq=False, slots=True)
class Entry:
    """A ticket that has not ended, or that is executing. `turn`: its place among the tickets that may run, if it may."""

    ticket: Ticket
    number: int
    chain: Chain
    sequence: Sequence
    ends_ns: int | None
    expires_ns: int | None
    ready_ns: int
    turn: int | None = None
    age: int = 0
    ended: bool = False
    phase: Phase = Phase.QUEUED


@dataclass(slots=True)
class SequenceDecisions:
    """The decisions of one verb. Sets, where no order is promised."""

    dispatched: dict[int, tuple[list[Ticket], list[Ticket | None]]] = field(default_factory=dict)
    responded: set[Ticket] = field(default_factory=set)
    refused: set[tuple[Ticket, Outcome]] = field(default_factory=set)
    ended: set[tuple[Ticket, SequenceEnd]] = field(default_factory=set)
    retired: set[int] = field(default_factory=set)


NOTHING = SequenceDecisions()
"""The decisions of most verbs."""


class SequenceReference:
    """The verbs of SchedulerCore; each returns nothing, `take_decisions` gives what was decided since the last call."""

    def __init__(self, options: SequenceOptions) -> None:
        self.options = options
        self.chains: list[Chain] = []  # the oldest first
        self.instances: list[int] = []
        self.retiring: set[int] = set()
        self.removed: set[int] = set()
        self.running: dict[int, list[Entry]] = {}
        self.histories: dict[int, list[Given]] = {}  # of instances whose batches may be halved
        self.halved = 0
        self.given_back: set[Ticket] = set()
        self.lost: set[int | str] = set()
        self.turns = self.submissions = self.ages = self.made_up = 0
        self.stopped = False
        self.decisions = SequenceDecisions()

    def take_decisions(self) -> SequenceDecisions:
        decisions, self.decisions = self.decisions, SequenceDecisions()
        return decisions

    # verbs

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1) -> None:
        self.expire(now_ns)
        self.instances.append(instance)
        self.go_on(now_ns)

    def remove_instance(self, instance: int, now_ns: int) -> None:
        self.retiring.discard(instance)
        self.expire(now_ns)
        self.instances.remove(instance)
        if instance in self.running:
            self.removed.add(instance)
        for chain in [chain for chain in self.chains if chain.place is not None and chain.place[0] == instance]:
            if chain.sequences[-1].closed is None:
                self.lost.add(chain.id)
            self.refuse_chain(chain, Outcome.SEQUENCE_LOST, SequenceEnd.LOST, now_ns)
        self.go_on(now_ns)

    def retire_instance(self, instance: int, now_ns: int) -> None:
        self.expire(now_ns)
        self.retiring.add(instance)
        self.sweep()
        self.go_on(now_ns)

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        self.advance(now_ns)
        id, start, end = self.admit(ticket)
        chain = self.open_chain(id)
        if chain is None:
            chain = Chain(id, place=self.free_place())
            self.chains.append(chain)
        if start:
            self.lost.discard(id)
            if chain.sequences:
                chain.sequences[-1].closed = SequenceEnd.RESTARTED
            chain.sequences.append(Sequence(ticket))
        sequence = chain.sequences[-1]
        self.submissions += 1
        entry = Entry(
            ticket=ticket,
            number=self.submissions,
            chain=chain,
            sequence=sequence,
            ends_ns=ticket.deadline_ns,
            expires_ns=now_ns + ticket.timeout_ns if ticket.timeout_ns > 0 else None,
            ready_ns=now_ns,
        )
        self.make_youngest(entry)
        sequence.waiting.append(entry)
        chain.idle_since_ns = None
        if end:
            sequence.closed = SequenceEnd.ENDED
        self.expire(now_ns)
        self.have_turn(chain, now_ns)
        self.go_on(now_ns)

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        for entry in self.entries():
            if entry.ticket is ticket and entry.phase is Phase.EXECUTING:
                entry.ended = True
            elif entry.ticket is ticket:
                self.drop(entry, None, now_ns)
        self.advance(now_ns)

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        self.advance(now_ns)
        if any(entry.ticket is ticket and not entry.ended for entry in self.entries()):
            self.given_back.add(ticket)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        self.expire(now_ns)
        done = self.running.pop(instance)
        gone = instance in self.removed
        self.removed.discard(instance)
        for entry in done:
            entry.chain.executing = None
            if entry.ended or entry.ticket not in self.given_back:
                if not entry.ended:
                    self.decisions.responded.add(entry.ticket)
                if self.options.iterative and entry.sequence.closed is None:
                    entry.sequence.closed = SequenceEnd.ENDED
            elif gone or self.stopped:
                self.decisions.refused.add((entry.ticket, Outcome.SEQUENCE_LOST if gone else Outcome.STOPPING))
            else:
                entry.phase, entry.turn, entry.ready_ns = Phase.QUEUED, None, now_ns
                self.make_youngest(entry)
                entry.sequence.waiting.insert(0, entry)
            self.given_back.discard(entry.ticket)
        self.sweep()
        for entry in done:
            self.have_turn(entry.chain, now_ns)
            if entry.chain.first() is None:
                entry.chain.idle_since_ns = now_ns
        if instance in self.histories:
            last = self.histories[instance][-1]
            last.over_ns, last.took_ns, last.waiting = now_ns, times_ns[-1], len(self.ready(instance))
        self.go_on(now_ns)

    def advance(self, now_ns: int) -> None:
        self.expire(now_ns)
        self.go_on(now_ns)

    def refuse_waiting(self, now_ns: int) -> None:
        self.expire(now_ns)
        for chain in list(self.chains):
            if any(sequence.waiting for sequence in chain.sequences):
                self.refuse_chain(chain, Outcome.NO_INSTANCE, SequenceEnd.REFUSED, now_ns)
        self.go_on(now_ns)

    def stop(self, now_ns: int) -> None:
        self.expire(now_ns)
        self.stopped = True
        for chain in list(self.chains):
            self.refuse_chain(chain, Outcome.STOPPING, SequenceEnd.REFUSED, now_ns)
        self.go_on(now_ns)

    # what is asked

    def next_deadline_ns(self) -> int | None:
        waiting = [entry for chain in self.chains for sequence in chain.sequences for entry in sequence.waiting]
        times = [entry.ends_ns for entry in self.entries() if not entry.ended]
        times += [entry.expires_ns for entry in waiting if entry.chain.place is None]
        times += [chain.idle_since_ns + self.options.idle_ns_max for chain in self.chains if chain.idle_since_ns is not None]
        for instance in self.idle_instances():
            times += [entry.ready_ns + self.options.strategy.queue_delay_ns_max for entry in self.ready(instance)]
        return min((time for time in times if time is not None), default=None)

    def entries(self) -> list[Entry]:
        """All that wait or run, also if they have ended while they run."""
        waiting = [entry for chain in self.chains for sequence in chain.sequences for entry in sequence.waiting]
        return waiting + [entry for batch in self.running.values() for entry in batch]

    def idle_instances(self) -> list[int]:
        return [instance for instance in self.instances if instance not in self.running]

    def open_chain(self, id: int | str) -> Chain | None:
        return next((chain for chain in self.chains if chain.id == id and chain.sequences[-1].closed is None), None)

    def free_place(self) -> tuple[int, int] | None:
        taken = {chain.place for chain in self.chains}
        free = [
            (slot, instance)
            for instance in self.instances
            if instance not in self.retiring
            for slot in range(self.options.slots)
            if (instance, slot) not in taken
        ]
        return (min(free)[1], min(free)[0]) if free else None

    def ready(self, instance: int) -> list[Entry]:
        """The tickets that may run there, in order of when they could first."""
        on_it = [chain.first() for chain in self.chains if chain.place is not None and chain.place[0] == instance]
        return sorted((entry for entry in on_it if entry is not None), key=lambda entry: entry.turn or 0)

    # rules

    def admit(self, ticket: Ticket) -> tuple[int | str, bool, bool]:
        """Id, START, END; raises when it is not accepted."""
        name, position = self.options.model_name, ticket.sequence
        id: int | str
        if self.stopped:
            raise Unavailable("Server is stopping, scheduler for model has stopped accepting new inference requests")
        if ticket.batch_size != 1:
            raise InvalidArgument(
                f"inference request to model '{name}' must specify batch-size 1 due to requirements of sequence batcher"
            )
        if position is None or position.correlation_id in (0, ""):
            if not self.options.iterative:
                raise InvalidArgument(f"inference request to model '{name}' must specify a non-zero or non-empty correlation ID")
            self.made_up += 1
            while self.open_chain(self.made_up) is not None:
                self.made_up += 1
            id, start, end = self.made_up, True, False
        else:
            id, start, end = position.correlation_id, position.start, position.end
        if not start and self.open_chain(id) is None and id in self.lost:
            raise Unavailable(
                f"sequence {id} of model '{name}' was lost: the model instance that held it failed or was removed; begin it anew "
                "with the START flag"
            )
        if not start and self.open_chain(id) is None:
            raise InvalidArgument(
                f"inference request for sequence {id} to model '{name}' must specify the START flag on the first request of the "
                "sequence"
            )
        if sum(entry.phase is Phase.QUEUED for entry in self.entries()) >= self.options.waiting_max:
            raise Unavailable("Exceeds maximum queue size")
        if start and sum(len(chain.sequences) for chain in self.chains) >= self.options.live_max:
            raise Unavailable(f"model '{name}' has {self.options.live_max} live sequences, the most that this server keeps")
        return id, start, end

    def make_youngest(self, entry: Entry) -> None:
        self.ages += 1
        entry.age = self.ages

    def have_turn(self, chain: Chain, now_ns: int) -> None:
        """If the chain has a next request that may run, it may do so from now on."""
        first = chain.first()
        if chain.place is not None and first is not None and first.turn is None:
            self.turns += 1
            first.turn = self.turns
            if not isinstance(self.options.strategy, DirectOptions):
                first.ready_ns = now_ns

    def expire(self, now_ns: int) -> None:
        while over := [one for one in self.entries() if not one.ended and one.ends_ns is not None and one.ends_ns <= now_ns]:
            entry = min(over, key=lambda one: (one.ends_ns, one.number))
            if entry.phase is Phase.EXECUTING:
                entry.ended = True
                self.decisions.refused.add((entry.ticket, Outcome.TIMED_OUT))
            else:
                self.drop(entry, Outcome.TIMED_OUT, now_ns)
        for chain in list(self.chains):
            waiting = [entry for sequence in chain.sequences for entry in sequence.waiting]
            if chain.place is None and any(one.expires_ns is not None and one.expires_ns <= now_ns for one in waiting):
                self.refuse_chain(chain, Outcome.SEQUENCE_TIMED_OUT, SequenceEnd.TIMED_OUT, now_ns)
        for chain in list(self.chains):
            if chain.idle_since_ns is not None and chain.idle_since_ns + self.options.idle_ns_max <= now_ns:
                chain.sequences[-1].closed = SequenceEnd.IDLE
        self.sweep()

    def drop(self, entry: Entry, outcome: Outcome | None, now_ns: int) -> None:
        sequence, chain = entry.sequence, entry.chain
        place = sequence.waiting.index(entry)
        keep = place if chain.place is not None else 0
        for number, one in enumerate(sequence.waiting):
            if number == place and outcome is not None:
                self.decisions.refused.add((one.ticket, outcome))
            elif number != place and number >= keep:
                self.decisions.refused.add((one.ticket, Outcome.CANCELLED))
        del sequence.waiting[keep:]
        sequence.closed = SequenceEnd.CANCELLED
        self.sweep()
        self.have_turn(chain, now_ns)

    def refuse_chain(self, chain: Chain, outcome: Outcome, why: SequenceEnd, now_ns: int) -> None:
        for sequence in chain.sequences:
            if sequence.waiting or sequence.closed is None:
                sequence.closed = why
            self.decisions.refused.update((entry.ticket, outcome) for entry in sequence.waiting)
            sequence.waiting.clear()
        self.sweep()

    def sweep(self) -> None:
        """Let go of sequences that are over, of chains without any, of retiring instances without chains."""
        for chain in list(self.chains):
            for sequence in list(chain.sequences):
                runs = chain.executing is not None and chain.executing.sequence is sequence
                if sequence.closed is not None and not sequence.waiting and not runs:
                    chain.sequences.remove(sequence)
                    self.decisions.ended.add((sequence.began_by, sequence.closed))
            if not chain.sequences:
                self.chains.remove(chain)
        for instance in list(self.retiring):
            if not any(chain.place is not None and chain.place[0] == instance for chain in self.chains):
                self.retiring.remove(instance)
                self.instances.remove(instance)
                self.decisions.retired.add(instance)

    def go_on(self, now_ns: int) -> None:
        """Fill the slots, run what may run."""
        for chain in self.chains:
            if chain.place is None:
                chain.place = self.free_place()
                self.have_turn(chain, now_ns)
        for instance in self.idle_instances():
            batch, places = self.batch(instance, now_ns)
            if not batch:
                continue
            self.running[instance] = batch
            for entry in batch:
                entry.phase = Phase.EXECUTING
                entry.sequence.waiting.remove(entry)
                entry.chain.executing = entry
            self.decisions.dispatched[instance] = ([entry.ticket for entry in batch], places)

    def batch(self, instance: int, now_ns: int) -> tuple[list[Entry], list[Ticket | None]]:
        ready = self.ready(instance)
        strategy = self.options.strategy
        if not ready:
            return [], []
        if not isinstance(strategy, DirectOptions):
            count = batch_to_send([one.ticket for one in ready], [one.ready_ns for one in ready], strategy, now_ns)
            if count > 0 and strategy.overlap is not None:
                history = self.histories.setdefault(instance, [])
                share = share_of(count, history, strategy.overlap)
                self.halved += share < count
                count = share
                history.append(Given(count, now_ns))
            return ready[:count], []
        oldest = min(ready, key=lambda entry: entry.age)
        waited_ns = now_ns - min(entry.ready_ns for entry in ready)
        if len(ready) < strategy.ready_min and waited_ns < strategy.queue_delay_ns_max:
            return [], []
        taken = {entry.chain.place[1]: entry for entry in ready if entry.chain.place is not None}
        taken = {slot: entry for slot, entry in taken.items() if entry.ticket.signature == oldest.ticket.signature}
        places = [taken[slot].ticket if slot in taken else None for slot in range(max(taken) + 1)]
        return [taken[slot] for slot in sorted(taken)], places
