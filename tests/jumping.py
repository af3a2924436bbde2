"""Virtual time that jumps, for tasks that look at something now and then, in threads."""

from __future__ import annotations

import os
from collections.abc import Callable

import trio
import trio.testing


async def jump_until(clock: trio.testing.MockClock, step_s: float, is_so: Callable[[], bool]) -> None:
    """Jump by this step again and again, until that is so."""
    while not is_so():
        await trio.testing.wait_all_tasks_blocked(0)
        clock.jump(step_s)
        await trio.to_thread.run_sync(os.getpid)  # threads that look have their turn
