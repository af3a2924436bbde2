"""LoopRule: which batches are executed on the loop, in place of the instance's thread."""

from __future__ import annotations

from tpy.limits import (
    LOOP_EXECUTION_INPUT_BYTES_MAX,
    LOOP_EXECUTION_NS_MAX,
    LOOP_EXECUTION_STREAK_MAX,
    LOOP_EXECUTION_STREAK_MIN,
    LOOP_EXECUTION_THREAD_EVERY,
    LOOP_TURN_NS_MAX,
)
from tpy.messages import held_bytes
from tpy_data.engine.requests.batch import Batch


class LoopRule:
    """Of one instance, whose `execute` may be called on any thread. On the Trio thread.

    Handing a batch to a thread and back wakes two threads, which costs more than a small model takes. It pays when requests come
    while another one is executed: they are read, given and answered together. So a batch is executed on the loop only if

    - it is a sole request, and so were the last ones: each found the instance idle. One in LOOP_EXECUTION_THREAD_EVERY is given
      to the thread all the same, as others that come meanwhile can be noticed only there;
    - the last ones were quick, and its inputs are no larger than theirs. After one that held the loop up more must have been.

    It holds the loop up no longer than the model has taken lately, unless its time depends on the values of its inputs.
    """

    __slots__ = ("_bytes_max", "_quick", "_sole", "_streak")

    def __init__(self) -> None:
        self._sole = 0
        """Batches in a row that were sole requests to an idle instance."""
        self._quick = 0
        """Sole requests in a row that were executed quickly."""
        self._bytes_max = 0
        """The largest inputs among these, in bytes."""
        self._streak = LOOP_EXECUTION_STREAK_MIN
        """The number that both must have reached."""

    def chooses(self, batch: Batch) -> bool:
        """Returns whether to execute this batch, which found the instance idle, on the loop."""
        if len(batch.tickets) > 1:
            self._sole = 0
            return False
        self._sole += 1
        return (
            self._quick >= self._streak
            and self._sole >= self._streak
            and self._sole % LOOP_EXECUTION_THREAD_EVERY != 0
            and input_bytes(batch) <= self._bytes_max
        )

    def busy(self) -> None:
        """Batches were given that did not find the instance idle, or several at a time."""
        self._sole = 0

    def executed(self, batch: Batch, *, on_loop: bool) -> None:
        """A batch is over."""
        if len(batch.tickets) > 1 or not batch.is_executed:
            return
        if batch.took_ns <= LOOP_EXECUTION_NS_MAX:
            self._quick += 1
            size = input_bytes(batch)
            if self._bytes_max < size <= LOOP_EXECUTION_INPUT_BYTES_MAX:
                self._bytes_max = size
            return
        self._quick = self._bytes_max = 0
        if on_loop and batch.took_ns > LOOP_TURN_NS_MAX:
            self._streak = min(8 * self._streak, LOOP_EXECUTION_STREAK_MAX)


def input_bytes(batch: Batch) -> int:
    """The bytes of the inputs of a batch's first request; from LOOP_EXECUTION_INPUT_BYTES_MAX on any number that is greater."""
    return held_bytes(list(batch.tickets[0].inputs.values()), LOOP_EXECUTION_INPUT_BYTES_MAX + 1)
