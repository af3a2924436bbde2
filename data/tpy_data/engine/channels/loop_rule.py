"""LoopRule: which batches are executed on the loop, in place of the instance's thread."""

from __future__ import annotations

from collections.abc import Sequence
from operator import gt

from tpy.limits import (
    LOOP_EXECUTION_INPUT_BYTES_MAX,
    LOOP_EXECUTION_STREAK_MAX,
    LOOP_EXECUTION_STREAK_MIN,
    LOOP_EXECUTION_THREAD_EVERY,
    LOOP_TURN_NS_MAX,
    QUICK_BATCHES_NS_MAX,
)
from tpy.messages import held_bytes
from tpy_data.engine.requests.batch import Batch
from tpy_data.engine.requests.ticket import RequestTicket


class SoleRequests:
    """Counts requests that come one at a time, to all instances of a data plane that have a LoopRule. On the Trio thread."""

    __slots__ = ("arriving", "in_row", "with_threads")

    def __init__(self) -> None:
        self.arriving = False  # a request is being submitted to a version none of whose instances holds anything
        self.in_row = 0  # sole requests in a row: each arrived while no thread had a batch
        self.with_threads = 0  # batches that were given to threads of such instances, and are neither reported nor revoked


class LoopRule:
    """Of one instance and its replacements, whose `execute` may be called on any thread. On the Trio thread.

    Handing a batch to a thread and back wakes two threads, which costs more than a small model takes. It pays when requests come
    while another one is executed: they are read, given and answered together, and executed beside each other. So a batch is
    executed on the loop only if

    - it is a sole request that has just arrived, and so were the last ones. One in LOOP_EXECUTION_THREAD_EVERY is given to the
      thread all the same, as others that come meanwhile can be noticed only there;
    - the instance's last ones were quick, and its inputs are no larger than theirs in any dimension. After one that held the loop
      up more must have been, until none has for a while.

    It holds the loop up no longer than the model has taken lately, unless its time depends on the values of its inputs
    ([decision](../../../../docs/adr/0059-quick-batches-on-the-loop.md)).
    """

    __slots__ = ("_bytes_max", "_calm", "_quick", "_shapes", "_streak", "sole")

    def __init__(self, sole: SoleRequests) -> None:
        self.sole = sole
        self._quick = 0  # sole requests in a row that were executed quickly
        self._shapes: dict[str, tuple[int, ...]] = {}  # of these, by input, the greatest extent in each dimension
        self._bytes_max = 0  # and their greatest sum of bytes
        self._streak = LOOP_EXECUTION_STREAK_MIN  # the number of quick ones that there must have been
        self._calm = 0  # quick ones on the loop since one held it up

    def restarted(self) -> None:
        """Another instance takes the place of this one. What held the loop up is not forgotten."""
        self._quick = self._bytes_max = 0
        self._shapes.clear()

    def chooses(self, batches: Sequence[Batch]) -> bool:
        """Returns whether to execute these batches, which their instance is given now, on the loop: then there is one."""
        sole = self.sole
        if not sole.arriving or sole.with_threads or len(batches) > 1 or len(batches[0].tickets) > 1:
            sole.in_row = 0
            return False
        sole.arriving = False
        sole.in_row += 1
        return (
            self._quick >= self._streak
            and sole.in_row >= LOOP_EXECUTION_STREAK_MIN
            and sole.in_row % LOOP_EXECUTION_THREAD_EVERY != 0
            and self._is_no_larger(batches[0].tickets[0])
        )

    def executed(self, batch: Batch, *, on_loop: bool) -> None:
        """A batch is over."""
        if len(batch.tickets) > 1 or not batch.is_executed:
            return
        if batch.took_ns > QUICK_BATCHES_NS_MAX:
            self.restarted()
            if on_loop and batch.took_ns > LOOP_TURN_NS_MAX:
                self._streak, self._calm = min(8 * self._streak, LOOP_EXECUTION_STREAK_MAX), 0
        elif batch.results and batch.results[0].error is None:  # an error says nothing about what the model takes
            self._quick += 1
            self._note(batch.tickets[0])
            if on_loop and self._streak > LOOP_EXECUTION_STREAK_MIN:
                self._calm += 1
                if self._calm >= 8 * self._streak:
                    self._streak, self._calm = self._streak // 8, 0

    def _is_no_larger(self, ticket: RequestTicket) -> bool:
        """Returns whether the inputs are in the host's memory, and no larger than the inputs of quick ones."""
        if ticket.abandoned or (ticket.residency is not None and ticket.residency.inputs):
            return False
        for name, tensor in ticket.inputs.items():
            known, shape = self._shapes.get(name), tensor.array.shape
            if known is None or len(known) != len(shape) or any(map(gt, shape, known)):
                return False
        return _bytes_of(ticket) <= self._bytes_max

    def _note(self, ticket: RequestTicket) -> None:
        if (size := _bytes_of(ticket)) > LOOP_EXECUTION_INPUT_BYTES_MAX:
            return
        self._bytes_max = max(self._bytes_max, size)
        for name, tensor in ticket.inputs.items():
            known, shape = self._shapes.get(name), tensor.array.shape
            if known is None or len(known) != len(shape):
                self._shapes[name] = shape
            elif known != shape:
                self._shapes[name] = tuple(map(max, known, shape))


def _bytes_of(ticket: RequestTicket) -> int:
    """The bytes of a request's inputs; above LOOP_EXECUTION_INPUT_BYTES_MAX any number that is greater."""
    return held_bytes(list(ticket.inputs.values()), LOOP_EXECUTION_INPUT_BYTES_MAX + 1)
