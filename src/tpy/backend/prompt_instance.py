"""Instances that execute elsewhere, and need no thread of the server's to wait for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tpy.backend.execution import ExecutionBatch, ExecutionResult
from tpy.errors import TpyError

Outcome = Sequence[ExecutionResult] | TpyError
"""What became of a batch: one result per request, in order, or an error for all of them."""


@runtime_checkable
class PromptInstance(Protocol):
    """A ModelInstance may have this as well. The Trio thread gives it batches, and takes what becomes of them; nothing of that
    may block. Whatever could is left to `finish`, in the instance's thread.

    One caller at a time has the instance: from a `begin` on, until `open_batches` is 0, there is no `execute`, and from the
    moment that `finish` was asked for, nothing but `take_back` from anywhere else.
    """

    @property
    def is_prompt(self) -> bool:
        """Whether batches may be begun so at all. Does not change."""
        ...

    @property
    def open_batches(self) -> int:
        """How many batches were begun, and are neither over nor known as never to be begun."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether only `finish` gets any further."""
        ...

    def fileno(self) -> int:
        """Readable when there may be something to `collect`."""
        ...

    def begin(self, batches: Sequence[ExecutionBatch]) -> bool:
        """Have these batches executed, one after the other.

        False: nothing was begun, they are for `execute`.
        """
        ...

    def collect(self, take: Callable[[Outcome], None]) -> None:
        """Call `take` for each batch that is over and was not taken yet, in order; all four times of such a batch are set. Ends
        at once, maybe stuck."""
        ...

    def take_back(self) -> int:
        """Begin nothing more. How many of the last batches, beyond those that were taken back before, are thereby not begun."""
        ...

    def finish(self, take: Callable[[Outcome], None]) -> None:
        """As `collect`, until no batch is open. Blocks. Raises InstanceFailure, as `execute` does: that is then what became of
        the oldest open batch, and those behind it were not begun (with `begun` False, nor was that one)."""
        ...
