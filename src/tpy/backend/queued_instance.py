"""Instances that execute elsewhere, and need no thread of the server's to wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from tpy.backend.contract import InstanceFailure
from tpy.backend.execution import ExecutionBatch, ExecutionResult
from tpy.errors import TpyError

Outcome = Sequence[ExecutionResult] | TpyError
"""The end of a batch: one result per request, in order, or an error for all of them."""


class BatchListener(Protocol):
    """Is told what becomes of batches. Any thread; must not block."""

    def completed(self, batch: Any, outcome: Outcome, following: Any) -> None:
        """The oldest batch that the instance held is completed; all four of its times are set. It turns to `following`, None if
        it holds no more."""
        ...

    def failed(self, failure: InstanceFailure, held: Sequence[Any]) -> None:
        """Nothing can be executed any more, while the instance held these. The failure is what became of the oldest, if there is
        one; those behind it were not started (with `begun` False, nor was that one)."""
        ...

    def settled(self) -> None:
        """That is all for the moment; others may be begun if none is open."""
        ...


@runtime_checkable
class QueuedInstance(Protocol):
    """A ModelInstance may have this as well. Nothing here blocks. While batches are open there is no `execute`.

    `held` are the batches that were begun, and are neither completed nor revoked, in order. Another thread may take from it.
    """

    held: deque[Any]

    @property
    def is_busy(self) -> bool:
        """True while it holds batches, or has not confirmed those that were revoked."""
        ...

    @property
    def end_reason(self) -> str:
        """As `WatchedInstance`."""
        ...

    def begin(self, batches: Sequence[ExecutionBatch], listener: BatchListener) -> int:
        """Have the first of these batches executed, one after the other. Returns how many of them. It is not busy now. 0: the
        instance has failed, which the listener is not told."""
        ...

    def revoke(self) -> Sequence[Any]:
        """Start nothing more. Returns the last of the batches that it holds, which are thereby not started."""
        ...

    def check(self) -> float:
        """Look whether the instance still lives, and whether it takes longer than it may. Returns after how many seconds to look
        again, while a batch is open."""
        ...
