"""The seam for work that takes milliseconds of CPU: in a thread, or, in simulation, at once.

Virtual clocks do not wait for threads: they would jump to the next deadline while one works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import anyio

T = TypeVar("T")


class Offload(Protocol):
    """Calls `work` and returns what it returns, or raises what it raises."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


async def in_thread(work: Callable[[], T], /) -> T:
    """Calls `work` in a worker thread, which is abandoned on cancellation."""
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


async def inline(work: Callable[[], T], /) -> T:
    """Calls `work` on the loop, for simulation."""
    await anyio.lowlevel.checkpoint()
    return work()
