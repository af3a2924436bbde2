"""Instances that execute elsewhere, and need no thread of the server's to wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tpy.backend.contract import InstanceFailure
from tpy.backend.execution import ExecutionBatch, ExecutionResult
from tpy.errors import TpyError

Outcome = Sequence[ExecutionResult] | TpyError
"""The end of a batch: one result per request, in order, or an error for all of them."""


class BatchListener(Protocol):
    """Is told what becomes of batches. Any thread; must not block."""

    def completed(self, outcome: Outcome) -> None:
        """The oldest batch that was begun is completed; all four of its times are set."""
        ...

    def failed(self, failure: InstanceFailure) -> None:
        """Nothing can be executed any more. That is what became of the oldest batch that was begun, if there is one; those behind
        it were not started (with `begun` False, nor was that one)."""
        ...

    def settled(self) -> None:
        """That is all for the moment; others may be begun if none is open."""
        ...


@runtime_checkable
class QueuedInstance(Protocol):
    """A ModelInstance may have this as well. Nothing here blocks. While batches are open there is no `execute`."""

    @property
    def open_batches(self) -> int:
        """The number of batches that were begun, and are neither completed nor known as not started."""
        ...

    @property
    def end_reason(self) -> str:
        """As `WatchedInstance`."""
        ...

    def begin(self, batches: Sequence[ExecutionBatch], listener: BatchListener) -> int:
        """Have the first of these batches executed, one after the other. Returns how many of them. None are open now. 0: the
        instance has failed, which the listener is not told."""
        ...

    def revoke(self) -> int:
        """Start nothing more. Returns how many of the last batches, beyond those that were revoked before, are thereby not
        started."""
        ...

    def check(self) -> float:
        """Look whether the instance still lives, and whether it takes longer than it may. Returns after how many seconds to look
        again, while a batch is open."""
        ...
