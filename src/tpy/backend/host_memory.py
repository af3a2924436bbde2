"""Instances whose memory is not this process's."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class HasHostMemory(Protocol):
    """A ModelInstance may have this as well: one in a process of its own does. Of others the growth of this process counts."""

    def host_memory_bytes(self) -> int:
        """Returns its memory on the host, now. Called once, in the instance's thread, when it has been made and warmed up."""
        ...
