"""Work of the control plane in threads, few at a time: a thread that computes makes the server's loop wait for the interpreter,
and forty threads that read configurations held up health checks by 100 ms.

`Offload` is the seam for work that takes milliseconds of CPU: in a thread, or, in simulation, at once.

Virtual clocks do not wait for threads: they would jump to the next deadline while one works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import anyio
from anyio.lowlevel import RunVar

from tpy import limits

T = TypeVar("T")


class Offload(Protocol):
    """Calls `work` and returns what it returns, or raises what it raises."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


_parsers: RunVar[anyio.CapacityLimiter] = RunVar("_parsers")
_scanners: RunVar[anyio.CapacityLimiter] = RunVar("_scanners")


async def in_thread(work: Callable[[], T], /) -> T:
    """Calls `work`, which computes, in a worker thread, which is abandoned on cancellation."""
    limiter = _limiter(_parsers, limits.CONTROL_PARSING_THREADS_MAX)
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)


async def scan_in_thread(work: Callable[[], T], /) -> T:
    """Calls `work`, which looks at files, in a worker thread that is abandoned on cancellation: a file system that hangs must not
    block the shutdown."""
    limiter = _limiter(_scanners, limits.CONTROL_SCANNING_THREADS_MAX)
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)


def _limiter(of: RunVar[anyio.CapacityLimiter], threads_max: int) -> anyio.CapacityLimiter:
    """Returns the limiter of this event loop."""
    try:
        return of.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(threads_max)
        of.set(limiter)
        return limiter


async def inline(work: Callable[[], T], /) -> T:
    """Calls `work` on the loop, for simulation."""
    await anyio.lowlevel.checkpoint()
    return work()
