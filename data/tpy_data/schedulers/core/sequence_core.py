"""SequenceCore: the sequence batcher, both strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from tpy.errors import QueueFull, Unavailable, invariant
from tpy.messages import QueueActivity, SequencePosition
from tpy_data.schedulers.core.contract import (
    Action,
    CoreSnapshot,
    Dispatch,
    Outcome,
    Phase,
    Refuse,
    Respond,
    Retired,
    SequenceEnd,
    SequenceEnded,
    Ticket,
)
from tpy_data.schedulers.core.deadlines import Deadlines
from tpy_data.schedulers.core.dynamic_options import NO_START_DELAY, StartDelay
from tpy_data.schedulers.core.sequence_backlog import SequenceBacklog
from tpy_data.schedulers.core.sequence_batcher import SlotBatcher
from tpy_data.schedulers.core.sequence_explanation import explain
from tpy_data.schedulers.core.sequence_ids import SequenceIds
from tpy_data.schedulers.core.sequence_line import QueuedSequence, SequenceLine
from tpy_data.schedulers.core.sequence_options import SequenceOptions
from tpy_data.schedulers.core.sequence_slots import FreeSlots, IdleTimes, SequenceInstance


class SequenceCore:
    """Gives sequences slots, and instances the next requests of the sequences in their slots.

    A new sequence takes the lowest free slot, otherwise it waits in the backlog with all its requests. It stays in its slot until
    its END was executed, or it was without a request for too long (from when its last one was over), or it is cancelled. At most
    one request of it is executed at a time. Which of the next requests run together is the batchers' business.

    A START while a sequence of the same id is live begins a new one behind it in the same place; an id whose END has come is free
    for another sequence at once.

    Time limits: a request's timeout counts only in the backlog, where the first that passes ends its whole sequence. The
    transport's deadline refuses a request wherever it is. A sequence that lost a request that waited, because it was cancelled or
    its deadline passed, cannot go on: what waits behind it is cancelled (in the backlog, all of it), and what was before it
    still runs. A verb called at or after a limit treats it as passed before it does anything else; `cancel` forgets its ticket
    first. Priorities have no effect, as in Triton.

    A verb costs O(log n) for each ticket that it concerns, besides forming batches.
    """

    __slots__ = (
        "_actions",
        "_arrivals",
        "_backlog",
        "_deadlines",
        "_delay",
        "_delayed",
        "_executing",
        "_given_back",
        "_idle",
        "_ids",
        "_instances",
        "_make_batcher",
        "_options",
        "_queued",
        "_sequences",
        "_slots",
        "_stirred",
        "_stopped",
    )

    def __init__(
        self, options: SequenceOptions, make_batcher: Callable[[], SlotBatcher], delay: StartDelay = NO_START_DELAY
    ) -> None:
        self._options = options
        self._delay = delay if delay.queued else None  # None once it has begun
        self._make_batcher = make_batcher
        self._instances: dict[int, SequenceInstance] = {}
        self._slots = FreeSlots(options.slots)
        self._ids = SequenceIds(options)
        self._backlog = SequenceBacklog()
        self._idle = IdleTimes(options.idle_ns_max)
        self._deadlines = Deadlines()
        self._given_back: set[Ticket] = set()
        self._stirred: dict[int, None] = {}  # instances that may have something to run now
        self._delayed: dict[int, int] = {}  # idle instances whose next batch waits for company, and until when
        self._actions: list[Action] = []
        self._arrivals = 0
        self._queued = self._executing = self._sequences = 0
        self._stopped = False

    def add_instance(self, instance: int, now_ns: int, *, prefetch: bool = False, credit: int = 1, tokens: int = 0) -> None:
        """A new instance with all its slots; the backlog moves in at once."""
        self._expire(now_ns)
        invariant(instance not in self._instances, f"instance {instance} was added twice")
        self._instances[instance] = SequenceInstance(instance, self._make_batcher())
        self._slots.add(instance)
        self._dispatch(now_ns)

    def remove_instance(self, instance: int, now_ns: int) -> None:
        """The instance is gone, and the sequences in its slots with it: what waits in them is refused."""
        member = self._member(instance)
        member.retiring = False  # or it could retire before it is removed
        self._expire(now_ns)
        member.removed = True
        self._slots.forget(instance)
        self._delayed.pop(instance, None)
        for line in list(member.lines.values()):
            self._ids.lose(line)
            self._refuse_line(line, Outcome.SEQUENCE_LOST, SequenceEnd.LOST, now_ns)
        if not member.running:
            del self._instances[instance]
        self._dispatch(now_ns)

    def retire_instance(self, instance: int, now_ns: int) -> None:
        """The instance keeps its sequences until they are over, and takes no others."""
        self._expire(now_ns)
        member = self._member(instance)
        member.retiring = True
        self._slots.forget(instance)
        self._retire_if_empty(member)
        self._dispatch(now_ns)

    def submit(self, ticket: Ticket, now_ns: int) -> None:
        """Accept a ticket; one whose deadline is already over is refused at once, as if it had been there before.

        Raises InvalidArgument for one that is in no sequence, or in one that has not begun, or that has more rows than one;
        Unavailable when too much waits, after `stop`, and for a sequence that was lost.
        """
        self.advance(now_ns)
        if self._stopped:
            raise Unavailable(Outcome.STOPPING.value)
        position = self._ids.position(ticket)
        self._check_room(position)
        ticket.sequence = position
        ticket.phase = Phase.QUEUED
        ticket.queued_ns = now_ns
        line, sequence = self._join(position)
        ticket.live = sequence
        self._number(ticket, now_ns)
        sequence.waiting.append(ticket)
        self._queued += 1
        self._idle.end(line)
        if line.slot is None:
            self._backlog.join(ticket, now_ns)
        if position.end:
            self._close(sequence, SequenceEnd.ENDED)
        if ticket.deadline_ns is not None:
            self._deadlines.add(ticket, ticket.deadline_ns)
            self._expire(now_ns)
        self._settle(line, now_ns)
        self._dispatch(now_ns)

    def cancel(self, ticket: Ticket, now_ns: int) -> None:
        """Forget the ticket. If it waits, the sequence ends with what was before it; if it is executing, the sequence goes on."""
        if ticket.phase is Phase.EXECUTING:
            self._end_executing(ticket)
        elif ticket.phase is Phase.QUEUED:
            self._drop(ticket, None, now_ns)
        self._expire(now_ns)
        self._dispatch(now_ns)

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """Makes the ticket the next of its sequence again when its execution is over, without flags. Its deadline stays."""
        self.advance(now_ns)
        if ticket.phase is not Phase.ENDED:
            invariant(ticket.phase is Phase.EXECUTING, "a ticket was given back that is not executing")
            self._given_back.add(ticket)

    def done(self, instance: int, now_ns: int, times_ns: Sequence[int] = (0,)) -> None:
        """The batch is over; its tickets get their answers, and the next ones of their sequences may run."""
        self._expire(now_ns)
        member = self._member(instance, removed=True)
        tickets, member.running = member.running, ()
        invariant(tickets, f"instance {instance} completed a batch that it was not given")
        done: list[Ticket] = []
        for ticket in tickets:
            sequence = _sequence_of(ticket)
            sequence.line.executing = None
            if self._given_back and self._waits_again(ticket, lost=member.removed, now_ns=now_ns):
                continue
            if ticket.phase is Phase.EXECUTING:
                self._end_executing(ticket)
                done.append(ticket)
            if self._options.iterative and sequence.closed is None:
                self._close(sequence, SequenceEnd.ENDED)
        if done:
            self._actions.append(Respond(done))
        if member.removed:
            del self._instances[instance]
        for ticket in tickets:
            self._after_execution(_sequence_of(ticket), now_ns)
        member.batcher.ended(len(tickets), times_ns[-1], now_ns)
        self._stirred[instance] = None
        self._dispatch(now_ns)

    def next_deadline_ns(self) -> int | None:
        """The earliest of: a ticket's deadline, a timeout in the backlog, the end of a sequence's idle time, the end of the wait
        for company."""
        first_ns = self._deadlines.first_ns()
        for at_ns in (self._backlog.first_ns(), self._idle.first_ns(), *self._delayed.values()):
            if at_ns is not None and (first_ns is None or at_ns < first_ns):
                first_ns = at_ns
        return first_ns

    def advance(self, now_ns: int) -> None:
        """Apply every limit that has passed, and send what has waited long enough for company."""
        self._expire(now_ns)
        self._dispatch(now_ns)

    def refuse_waiting(self, now_ns: int) -> None:
        """Refuse everything that waits; the sequences of which anything waited are over."""
        self._expire(now_ns)
        for line in self._lines():
            if any(True for _ in line.tickets()):
                self._refuse_line(line, Outcome.NO_INSTANCE, SequenceEnd.REFUSED, now_ns)
        self._dispatch(now_ns)

    def stop(self, now_ns: int) -> None:
        """Refuse everything that waits, end all sequences, and accept nothing more."""
        self._stopped = True
        self._expire(now_ns)
        for line in self._lines():
            self._refuse_line(line, Outcome.STOPPING, SequenceEnd.REFUSED, now_ns)
        self._dispatch(now_ns)

    def refuse_executing(self, now_ns: int) -> None:
        """Refuse everything that executes."""
        self._expire(now_ns)
        for member in self._instances.values():
            for ticket in member.running:
                if ticket.phase is Phase.EXECUTING:
                    self._end_executing(ticket)
                    self._actions.append(Refuse(ticket, Outcome.STOPPING))

    def recall(self, now_ns: int) -> None:
        """Nothing to take back: an instance holds one batch at a time, which it starts at once."""
        self.advance(now_ns)

    def revoked(self, instance: int, now_ns: int, batches: int) -> None:
        """Never called: what an instance that fails had not started is lost with its sequences."""

    def take_actions(self) -> list[Action]:
        """The decisions since the last call."""
        actions = self._actions
        self._actions = []
        return actions

    def snapshot(self) -> CoreSnapshot:
        """Counts; a running ticket that was refused or cancelled is not counted any more."""
        idle = sum(not member.running for member in self._instances.values())
        return CoreSnapshot(queued=self._queued, executing=self._executing, idle_instances=idle, sequences=self._sequences)

    def explain(self, now_ns: int) -> QueueActivity:
        """As `SchedulerCore.explain`. Costs as much as there are sequences in slots."""
        return explain(
            [member for member in self._instances.values() if not member.removed],
            self._backlog,
            self._options,
            now_ns,
            snapshot=self.snapshot(),
            due_ns=min(self._delayed.values(), default=None),
            held_back=self._delay is not None and self._holds_back(self._delay),
        )

    # what may come in

    def _check_room(self, position: SequencePosition) -> None:
        """Raises Unavailable when the request must not come in now."""
        options = self._options
        if self._queued >= options.waiting_max:
            raise QueueFull("Exceeds maximum queue size")
        if position.start and self._sequences >= options.live_max:
            raise QueueFull(
                f"model '{options.model_name}' has {options.live_max} live sequences, the most that this server keeps"
            )

    def _join(self, position: SequencePosition) -> tuple[SequenceLine, QueuedSequence]:
        """The sequence that the request belongs to and its line; a START begins a new sequence, and a new line if there is no
        line."""
        line = self._ids.live.get(position.correlation_id)
        previous = None if line is None else line.open_sequence()
        if line is not None and previous is not None and not position.start:
            return line, previous
        if line is None:
            line = SequenceLine(position.correlation_id)
            self._ids.begin(line)
            place = self._slots.take()
            if place is None:
                self._backlog.add(line)
            else:
                self._move_in(line, place)
        sequence = line.begin()
        self._sequences += 1
        if previous is not None:
            self._close(previous, SequenceEnd.RESTARTED)
            self._prune(previous)
        return line, sequence

    def _number(self, ticket: Ticket, now_ns: int) -> None:
        self._arrivals += 1
        ticket.arrival = self._arrivals
        ticket.ready_ns = now_ns

    # what waits goes on

    def _move_in(self, line: SequenceLine, place: tuple[int, int]) -> None:
        line.move_in(*place)
        self._instances[place[0]].lines[place[1]] = line

    def _settle(self, line: SequenceLine, now_ns: int) -> None:
        """Draw the conclusions from what has become of a line: what it offers next, or that it is over."""
        member = None if line.instance is None else self._instances.get(line.instance)
        if member is not None and member.offer(line, now_ns):
            self._stirred[member.number] = None
        if line.sequences:
            return
        self._idle.end(line)
        if line.slot is None:
            self._backlog.discard(line)
        elif member is not None and member.lines.pop(line.slot, None) is not None and not member.removed:
            self._slots.give(member.number, line.slot)
            self._retire_if_empty(member)

    def _dispatch(self, now_ns: int) -> None:
        """Give free slots to the backlog, and idle instances the batches that are worth running."""
        while self._backlog and (place := self._slots.take()) is not None:
            line = self._backlog.take_first()
            if line is not None:
                self._move_in(line, place)
                self._settle(line, now_ns)
        if self._delay is not None and self._holds_back(self._delay):
            return
        while self._stirred:
            number, _ = self._stirred.popitem()
            member = self._instances.get(number)
            self._delayed.pop(number, None)
            if member is None or member.running or member.removed:
                continue
            batch = member.batcher.take(now_ns)
            if batch is not None:
                self._run(member, batch.tickets, batch.places)
            elif (due_ns := member.batcher.due_ns()) is not None:
                self._delayed[number] = due_ns

    def _holds_back(self, delay: StartDelay) -> bool:
        """True when too little waits to begin at all."""
        in_slots = sum(1 for m in self._instances.values() for line in m.lines.values() for _ in line.tickets())
        if in_slots < delay.queued or self._queued - in_slots < delay.backlogged:
            return True
        self._delay = None
        return False

    def _run(self, member: SequenceInstance, tickets: Sequence[Ticket], places: Sequence[Ticket | None]) -> None:
        for ticket in tickets:
            sequence = _sequence_of(ticket)
            sequence.waiting.popleft()
            sequence.line.executing = ticket
            sequence.line.offered = None
            ticket.phase = Phase.EXECUTING
        self._queued -= len(tickets)
        self._executing += len(tickets)
        member.running = tickets
        self._actions.append(Dispatch(member.number, (tickets,), slots=places))

    def _waits_again(self, ticket: Ticket, *, lost: bool, now_ns: int) -> bool:
        """Has a ticket that the model gave back wait again, or refuses it if it can never run. Returns whether it did."""
        if ticket not in self._given_back:
            return False
        self._given_back.remove(ticket)
        if ticket.phase is Phase.ENDED:
            return False
        sequence = _sequence_of(ticket)
        if lost or self._stopped:
            self._end_executing(ticket)
            self._actions.append(Refuse(ticket, Outcome.SEQUENCE_LOST if lost else Outcome.STOPPING))
            return True
        self._executing -= 1
        self._queued += 1
        ticket.phase = Phase.QUEUED
        ticket.sequence = SequencePosition(correlation_id=sequence.correlation_id)
        self._number(ticket, now_ns)
        sequence.waiting.appendleft(ticket)
        return True

    def _after_execution(self, sequence: QueuedSequence, now_ns: int) -> None:
        line = sequence.line
        self._prune(sequence)
        self._settle(line, now_ns)
        if line.sequences and line.idle:
            self._idle.begin(line, now_ns)

    # what ends

    def _expire(self, now_ns: int) -> None:
        """Apply every time limit that has passed: of requests, of the backlog, of idle sequences, of forming batches."""
        while (ticket := self._deadlines.pop_due(now_ns)) is not None:
            if ticket.phase is Phase.EXECUTING:
                self._end_executing(ticket)
                self._actions.append(Refuse(ticket, Outcome.TIMED_OUT))
            else:
                self._drop(ticket, Outcome.TIMED_OUT, now_ns)
        while (line := self._backlog.pop_due(now_ns)) is not None:
            self._refuse_line(line, Outcome.SEQUENCE_TIMED_OUT, SequenceEnd.TIMED_OUT, now_ns)
        while (line := self._idle.pop_due(now_ns)) is not None:
            for sequence in list(line.sequences):
                self._close(sequence, SequenceEnd.IDLE)
                self._prune(sequence)
            self._settle(line, now_ns)
        for instance, due_ns in self._delayed.items():
            if due_ns <= now_ns:
                self._stirred[instance] = None

    def _drop(self, ticket: Ticket, outcome: Outcome | None, now_ns: int) -> None:
        """Take a waiting ticket out, and with it what its sequence has behind it (in the backlog: all of it)."""
        sequence = _sequence_of(ticket)
        line, waiting = sequence.line, sequence.waiting
        dropped = []
        while waiting and ticket.phase is Phase.QUEUED:
            dropped.append(waiting.pop())
            if dropped[-1] is ticket:
                ticket.phase = Phase.ENDED
        if line.slot is None:
            dropped.extend(reversed(waiting))
            waiting.clear()
        for one in reversed(dropped):
            self._end_waiting(one)
            reason = outcome if one is ticket else Outcome.CANCELLED
            if reason is not None:
                self._actions.append(Refuse(one, reason))
        self._close(sequence, SequenceEnd.CANCELLED)
        self._prune(sequence)
        self._settle(line, now_ns)

    def _refuse_line(self, line: SequenceLine, outcome: Outcome, why: SequenceEnd, now_ns: int) -> None:
        """Refuse what waits in a line, and end its sequences."""
        for sequence in list(line.sequences):
            if sequence.closed is None or sequence.waiting:
                self._close(sequence, why)
            while sequence.waiting:
                ticket = sequence.waiting.popleft()
                self._end_waiting(ticket)
                self._actions.append(Refuse(ticket, outcome))
            self._prune(sequence)
        self._settle(line, now_ns)

    def _end_waiting(self, ticket: Ticket) -> None:
        self._queued -= 1
        self._deadlines.discard(ticket)
        self._backlog.leave(ticket)
        ticket.phase = Phase.ENDED

    def _end_executing(self, ticket: Ticket) -> None:
        self._executing -= 1
        self._deadlines.discard(ticket)
        ticket.phase = Phase.ENDED

    def _close(self, sequence: QueuedSequence, why: SequenceEnd) -> None:
        """No further request joins the sequence; if it is its line's last, none joins the line."""
        sequence.closed = why
        if sequence.line.open_sequence() is None:
            self._ids.end(sequence.line)

    def _prune(self, sequence: QueuedSequence) -> None:
        """Let go of the sequence if nothing of it is left."""
        line = sequence.line
        if sequence.closed is not None and line.over(sequence) and sequence in line.sequences:
            del line.sequences[sequence]
            self._sequences -= 1
            self._actions.append(SequenceEnded(sequence, sequence.closed))

    def _retire_if_empty(self, member: SequenceInstance) -> None:
        if member.retiring and not member.lines:
            del self._instances[member.number]
            self._actions.append(Retired(member.number))

    # what there is

    def _member(self, instance: int, *, removed: bool = False) -> SequenceInstance:
        member = self._instances.get(instance)
        if member is None or (member.removed and not removed):
            invariant(False, f"instance {instance} is not a member")
            raise AssertionError  # unreachable; tells the type checker so
        return member

    def _lines(self) -> list[SequenceLine]:
        in_slots = [line for member in self._instances.values() for line in member.lines.values()]
        return in_slots + self._backlog.lines()


def _sequence_of(ticket: Ticket) -> QueuedSequence:
    """The sequence that this core has given the ticket."""
    return cast(QueuedSequence, ticket.live)
