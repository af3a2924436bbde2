"""Instances that can end by themselves, also while nobody uses them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class WatchedInstance(Protocol):
    """A ModelInstance may have this as well: one in a process of its own does. It is replaced as soon as it has ended."""

    @property
    def end_reason(self) -> str:
        """The reason for which it can run nothing any more, for logs and for the index of models."""
        ...

    def end_fileno(self) -> int:
        """A descriptor that is readable from the moment that the instance can run nothing any more, whatever else it is doing.
        Valid until `close`. -1: this one cannot be watched."""
        ...


@runtime_checkable
class ShowsStack(Protocol):
    """An instance that can say where its model is, in the log."""

    def show_stack(self) -> None:
        """Have the stacks of its threads written into the log. Returns at once; any thread."""
        ...
