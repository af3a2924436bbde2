"""Work of the control plane in threads."""

from __future__ import annotations

import threading

import pytest
import trio

from tpy import limits
from tpy_control.offload import Offload, in_thread, scan_in_thread


@pytest.mark.parametrize(
    ("offload", "threads_max"),
    [(in_thread, limits.CONTROL_PARSING_THREADS_MAX), (scan_in_thread, limits.CONTROL_SCANNING_THREADS_MAX)],
)
async def test_so_many_work_at_the_same_time(offload: Offload, threads_max: int) -> None:
    all_work = threading.Barrier(threads_max + 1)
    lock = threading.Lock()
    working = most = 0

    def work() -> None:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        all_work.wait(10)
        with lock:
            working -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(3 * threads_max):
            nursery.start_soon(offload, work)
        for _ in range(3):
            await trio.to_thread.run_sync(all_work.wait, 10)
    assert most == threads_max
