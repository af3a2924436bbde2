"""The seam for work that takes milliseconds of CPU: in a thread, or, in simulation, at once.

Virtual clocks do not wait for threads: they would jump to the next deadline while one works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

T = TypeVar("T")


class Offload(Protocol):
    """Calls `work` and returns what it returns, or raises what it raises."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


async def in_thread(work: Callable[[], T], /) -> T:
    """In one of Trio's worker threads, which is left behind when cancelled."""
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


async def at_once(work: Callable[[], T], /) -> T:
    """On the loop, for simulation."""
    await trio.lowlevel.checkpoint()
    return work()
