"""Instances that work on several batches at a time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class OverlappingInstance(Protocol):
    """A ModelInstance may have this as well: one that copies a batch to its device while it computes another one does."""

    @property
    def credit(self) -> int:
        """The number of batches that a dynamic batcher should give it at a time, at least 1. It is read once, when the instance
        is made."""
        ...
