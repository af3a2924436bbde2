"""Alarm and LoopGuard: waking on time, and finding what blocks."""

from __future__ import annotations

import gc
import time

import pytest
import trio
from trio.testing import MockClock

from tpy.alarm import Alarm
from tpy.testing.loop_guard import LoopGuard
from tpy.testing.trio_clock import TrioClock
from tpy.units import NS_PER_MS


async def test_the_earliest_deadline_wakes_and_is_forgotten(autojump_clock: MockClock) -> None:
    clock = TrioClock(trio.lowlevel.current_clock())
    alarm = Alarm(clock)
    woken: list[int] = []

    async def wait() -> None:
        while True:
            woken.append(await alarm.wait() // NS_PER_MS)

    async with trio.open_nursery() as nursery:
        alarm.bring_forward(50 * NS_PER_MS)  # before anybody waits
        nursery.start_soon(wait)
        await trio.sleep(0.01)
        alarm.bring_forward(80 * NS_PER_MS)  # later: not needed, the waiter asks again at 50
        alarm.bring_forward(30 * NS_PER_MS)
        await trio.sleep(0.1)
        assert woken == [30]
        alarm.bring_forward(20 * NS_PER_MS)  # past: at once
        await trio.sleep(0.001)
        assert woken == [30, 110]
        nursery.cancel_scope.cancel()


async def test_the_returned_time_is_never_before_the_deadline(autojump_clock: MockClock) -> None:
    alarm = Alarm(TrioClock(trio.lowlevel.current_clock()))
    for deadline_ns in (1, 333_333_333, 1_000_000_007, 3_141_592_653_589):
        alarm.bring_forward(deadline_ns)
        assert await alarm.wait() >= deadline_ns


async def test_the_guard_finds_a_step_that_blocks() -> None:
    guard = LoopGuard()
    trio.lowlevel.add_instrument(guard)
    await trio.lowlevel.checkpoint()
    guard.check()
    until_ns = time.thread_time_ns() + 60 * NS_PER_MS
    while time.thread_time_ns() < until_ns:
        pass
    await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(guard)
    guard.close()
    with pytest.raises(AssertionError, match="the Trio loop was blocked by: "):
        guard.check()


async def test_the_guard_does_not_count_garbage_collection() -> None:
    guard = LoopGuard(step_cpu_ns_max=20 * NS_PER_MS)
    trio.lowlevel.add_instrument(guard)
    await trio.lowlevel.checkpoint()
    collected_ns = -time.thread_time_ns()
    while collected_ns + time.thread_time_ns() < 40 * NS_PER_MS:
        gc.collect()
    await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(guard)
    guard.close()
    guard.check()
