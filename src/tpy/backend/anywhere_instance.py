"""Instances that need no thread of their own."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class AnywhereInstance(Protocol):
    """A ModelInstance may have this as well: one whose `execute` may be called in any thread, one call at a time. A program that
    has the server in it may then execute it itself, which saves two changes of threads."""

    @property
    def runs_anywhere(self) -> bool:
        """Returns whether it is so. It is read once, when the instance is made."""
        ...
