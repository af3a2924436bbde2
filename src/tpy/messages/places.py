"""The place of a tensor's memory, in Triton's words and one of ours: a memory type, and the device that has it."""

from __future__ import annotations

import enum
from typing import NamedTuple


class MemoryType(enum.Enum):
    """Triton's memory types, by its names, and one more."""

    CPU = "CPU"
    CPU_PINNED = "CPU_PINNED"
    """Host memory that a device copies from and to by itself."""
    GPU = "GPU"
    REGION = "REGION"
    """Shared memory of a client's, in which nothing is used where it is."""


class Place(NamedTuple):
    """`device_id` is 0 for host memory."""

    memory: MemoryType
    device_id: int = 0


HOST = Place(MemoryType.CPU)
