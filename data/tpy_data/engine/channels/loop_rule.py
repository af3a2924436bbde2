"""LoopRule: which batches are executed on the loop, in place of the instance's thread."""

from __future__ import annotations

from collections.abc import Sequence
from operator import gt

from tpy.limits import (
    HAND_OVER_KEPT,
    HAND_OVER_NS_MAX,
    HAND_OVER_NS_MIN,
    HAND_OVERS_MEASURED,
    LOOP_EXECUTION_INPUT_BYTES_MAX,
    LOOP_EXECUTION_PAUSE,
    LOOP_EXECUTION_STREAK_MAX,
    LOOP_EXECUTION_STREAK_MIN,
    LOOP_TURN_NS_MAX,
    QUICK_BATCHES_NS_MAX,
)
from tpy.messages import held_bytes
from tpy.reactor import Reactor
from tpy_data.engine.requests.batch import Batch
from tpy_data.engine.requests.ticket import RequestTicket

_LATE_MAX = LOOP_EXECUTION_STREAK_MIN // 2  # more than one alone counts for: the machine may have stood still


class LoopRule:
    """Of one instance and its replacements, whose `execute` may be called on any thread. On the Trio thread.

    Handing a batch to a thread and back wakes two threads, which then contend for the interpreter. That costs more than a small
    model takes, however many requests there are. So a batch is executed on the loop if the instance's last ones were quick, and
    it is no larger than they were: not in its rows and bytes, nor in any dimension of an input. When those on the loop took
    longer than handing over takes, which is measured, and others came meanwhile, the next ones are left to the thread; after one
    that held the loop up, more of them. What takes long in the thread may have waited there for the interpreter, and says
    nothing then; two quick ones outweigh one that has computed as long, or waited for longer than a turn may take.

    It holds the loop up no longer than the model has taken lately, unless its time depends on the values of its inputs,
    or on what it waits for ([decision](../../../../docs/adr/0063-quick-batches-at-the-end-of-a-turn.md)).
    """

    __slots__ = (
        "_bytes_max",
        "_calm",
        "_hand_over_ns",
        "_kept",
        "_late",
        "_measured",
        "_quick",
        "_rows_max",
        "_shapes",
        "_streak",
        "_there_ns",
        "turns",
    )

    def __init__(self, turns: Reactor) -> None:
        self.turns = turns
        self._quick = 0  # less twice the slow ones that count; below 0 while the thread is to have them
        self._shapes: dict[str, tuple[int, ...]] = {}  # of their requests, by input, the greatest extent in each dimension
        self._bytes_max = 0  # the largest
        self._rows_max = 0
        self._streak = LOOP_EXECUTION_STREAK_MIN  # the number of quick ones that there must have been
        self._late = 0  # how long others had to wait for executions on the loop, less the executions for which nobody had
        self._calm = 0  # executions on the loop since the streak became longer
        self._hand_over_ns = HAND_OVER_NS_MIN  # the time that handing over takes, to the thread and back
        self._there_ns = 0  # the time that it took to the thread, since that was set
        self._measured = 0  # the number of times
        self._kept = 0  # the number of executions on the loop since it was set

    def restarted(self) -> None:
        """Another instance takes the place of this one. What held the loop up is not forgotten."""
        self._quick = self._bytes_max = self._rows_max = self._late = 0
        self._forget_hand_overs()
        self._shapes.clear()

    def allows(self, batches: Sequence[Batch]) -> bool:
        """Returns whether these batches, which their instance is given now, are to be executed on the loop."""
        return self._quick >= self._streak and all(map(self._is_no_larger, batches))

    @property
    def allows_some(self) -> bool:
        """True while any may be executed there."""
        return self._quick >= self._streak

    def handed_over(self, there_ns: int) -> None:
        """It took so long until the thread began. The way back takes about as long, and then waits for what the loop does."""
        self._there_ns += min(there_ns, HAND_OVER_NS_MAX // 2)
        self._measured += 1
        if self._measured == HAND_OVERS_MEASURED:
            mean_ns = 2 * self._there_ns // HAND_OVERS_MEASURED
            self._forget_hand_overs()
            self._hand_over_ns = max(mean_ns, HAND_OVER_NS_MIN)

    def _forget_hand_overs(self) -> None:
        self._hand_over_ns = HAND_OVER_NS_MIN
        self._there_ns = self._measured = 0
        self._kept = 0

    def executed(self, batch: Batch, *, on_loop: bool, waiting: int = 0) -> None:
        """A batch is over. `waiting`: others that are to be executed on the loop."""
        if not batch.is_executed:
            return
        took_ns = batch.took_ns
        if on_loop:
            is_late = took_ns > QUICK_BATCHES_NS_MAX or (took_ns > self._hand_over_ns and (waiting or self.turns.has_more))
            unit_ns = HAND_OVER_NS_MIN if took_ns > QUICK_BATCHES_NS_MAX else self._hand_over_ns
            self._late = max(0, self._late + (min(took_ns // unit_ns, _LATE_MAX) if is_late else -1))
            self._kept += 1
            if self._kept == HAND_OVER_KEPT:
                self._forget_hand_overs()
            self._calm += 1
            if took_ns > LOOP_TURN_NS_MAX:
                self.restarted()
                self._streak, self._calm = min(8 * self._streak, LOOP_EXECUTION_STREAK_MAX), 0
                return
            if self._late > _LATE_MAX:
                self.restarted()
                self._quick = -LOOP_EXECUTION_PAUSE
                return
            if self._streak > LOOP_EXECUTION_STREAK_MIN and self._calm >= 8 * self._streak:
                self._streak, self._calm = self._streak // 8, 0
        if took_ns > QUICK_BATCHES_NS_MAX:
            if not on_loop and (batch.cpu_ns is None or batch.cpu_ns > QUICK_BATCHES_NS_MAX or took_ns > LOOP_TURN_NS_MAX):
                self._quick = max(self._quick - 2, -LOOP_EXECUTION_PAUSE)
        elif batch.results and batch.results[0].error is None:  # an error says nothing about what the model takes
            if self._quick < self._streak:
                self._quick += 1
            if not on_loop:  # else it is no larger than others
                self._note(batch)

    def _is_no_larger(self, batch: Batch) -> bool:
        """Returns whether the inputs are in the host's memory, and no larger than the inputs of quick ones."""
        size = rows = 0
        for ticket in batch.tickets:
            if ticket.residency is not None and ticket.residency.inputs:
                return False
            for name, tensor in ticket.inputs.items():
                known, shape = self._shapes.get(name), tensor.array.shape
                if known is None or len(known) != len(shape) or any(map(gt, shape, known)):
                    return False
            size += _bytes_of(ticket)
            rows += ticket.batch_size
        return size <= self._bytes_max and rows <= self._rows_max

    def _note(self, batch: Batch) -> None:
        size = sum(map(_bytes_of, batch.tickets))
        if size > LOOP_EXECUTION_INPUT_BYTES_MAX:
            return
        self._bytes_max = max(self._bytes_max, size)
        self._rows_max = max(self._rows_max, sum(ticket.batch_size for ticket in batch.tickets))
        for ticket in batch.tickets:
            for name, tensor in ticket.inputs.items():
                known, shape = self._shapes.get(name), tensor.array.shape
                if known is None or len(known) != len(shape):
                    self._shapes[name] = shape
                elif known != shape:
                    self._shapes[name] = tuple(map(max, known, shape))


def _bytes_of(ticket: RequestTicket) -> int:
    """The bytes of a request's inputs; above LOOP_EXECUTION_INPUT_BYTES_MAX any number that is greater."""
    return held_bytes(list(ticket.inputs.values()), LOOP_EXECUTION_INPUT_BYTES_MAX + 1)
