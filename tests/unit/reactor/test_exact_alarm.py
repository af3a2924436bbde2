"""ExactAlarm: rings on time, without a turn of Trio, and where the system has no timers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.unit.reactor.doubles import IoWaits, settle
from tpy.alarm import Alarm
from tpy.clock import SystemClock
from tpy.exact_alarm import ExactAlarm
from tpy.kernel_timer import KernelTimer
from tpy.reactor import Reactor
from tpy.testing.trio_clock import TrioClock
from tpy.units import NS_PER_MS, NS_PER_S

CLOCK = SystemClock()


class Rings:
    """An alarm, and how late each of its rings was."""

    def __init__(self, clock: SystemClock | TrioClock = CLOCK) -> None:
        self.alarm = ExactAlarm(clock, self.ring)
        self.clock = clock
        self.deadline_ns = 0
        self.late_ns: list[int] = []
        self.has_rung = trio.Event()

    def ring(self, now_ns: int) -> None:
        assert now_ns >= self.deadline_ns
        self.late_ns.append(self.clock.now_ns() - self.deadline_ns)
        self.has_rung.set()

    def set(self, ahead_ns: int) -> None:
        self.has_rung = trio.Event()
        self.deadline_ns = self.clock.now_ns() + ahead_ns
        self.alarm.bring_forward(self.deadline_ns)

    async def one(self, ahead_ns: int) -> int:
        self.set(ahead_ns)
        await self.has_rung.wait()
        return self.late_ns[-1]


@asynccontextmanager
async def ringing(rings: Rings) -> AsyncIterator[Rings]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rings.alarm.run)
        await settle()
        yield rings
        nursery.cancel_scope.cancel()


async def test_short_deadlines_are_kept_by_the_kernels_timer() -> None:
    """epoll's time-out makes a millisecond of 200 us; one of a thousand is the timer's, however busy the machine is."""
    by_epoll = Alarm(CLOCK)
    usual_ns: list[int] = []
    for _ in range(30):
        deadline_ns = CLOCK.now_ns() + 200_000
        by_epoll.bring_forward(deadline_ns)
        assert await by_epoll.wait() >= deadline_ns
        usual_ns.append(CLOCK.now_ns() - deadline_ns)
    async with ringing(Rings()) as rings:
        for _ in range(1000):
            if await rings.one(200_000) < 0.75 * min(usual_ns):
                break
    assert min(rings.late_ns) < 0.75 * min(usual_ns)


async def test_no_ring_costs_a_turn_of_trio(reactor: Reactor, form: str) -> None:
    if form != "in place":
        pytest.skip("a task of Trio reads here")
    async with ringing(Rings()) as rings:
        await rings.one(NS_PER_MS)  # opens the timer
        await settle()
        waits, left = IoWaits(), 10

        def ring_again(now_ns: int) -> None:
            nonlocal left
            left -= 1
            if left:
                alarm.bring_forward(CLOCK.now_ns() + NS_PER_MS)
            else:
                done.set()

        alarm, done = ExactAlarm(CLOCK, ring_again), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run)
            await settle()
            trio.lowlevel.add_instrument(waits)
            alarm.bring_forward(CLOCK.now_ns() + NS_PER_MS)
            await done.wait()
            trio.lowlevel.remove_instrument(waits)
            nursery.cancel_scope.cancel()
    assert waits.count < 5


async def test_a_near_deadline_opens_the_timer_while_a_far_one_is_waited_for() -> None:
    async with ringing(Rings()) as rings:
        rings.set(3600 * NS_PER_S)
        await settle()
        await rings.one(NS_PER_MS)
        await wait_until_past(rings)


async def wait_until_past(rings: Rings) -> None:
    """An earlier ring is forgotten: a later deadline is waited for, and one that is past rings at once."""
    for ahead_ns in (20 * NS_PER_MS, -NS_PER_MS):
        assert await rings.one(ahead_ns) >= 0


async def test_the_nearer_of_two_deadlines_rings_and_the_other_is_forgotten() -> None:
    async with ringing(Rings()) as rings:
        rings.set(8 * NS_PER_MS)
        rings.set(2 * NS_PER_MS)
        rings.alarm.bring_forward(CLOCK.now_ns() + 9 * NS_PER_MS)
        await rings.has_rung.wait()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert len(rings.late_ns) == 1


def have_no_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelTimer, "open", staticmethod(lambda: None))


def refuse_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Reactor, polled: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Reactor, "add", refuse)


@pytest.mark.parametrize("lack", [have_no_timers, refuse_descriptors])
async def test_where_the_system_has_no_room_epolls_time_outs_do(
    reactor: Reactor, lack: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    lack(monkeypatch)
    before = len(os.listdir("/proc/self/fd"))
    rings = Rings()
    rings.set(NS_PER_MS)  # before it runs
    async with ringing(rings):
        await rings.has_rung.wait()
        await wait_until_past(rings)
        await rings.one(NS_PER_MS)
        assert len(os.listdir("/proc/self/fd")) <= before


async def test_one_that_ends_holds_no_descriptor(reactor: Reactor) -> None:
    before = len(os.listdir("/proc/self/fd"))
    rings = Rings()
    async with ringing(rings):
        await rings.one(NS_PER_MS)
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) <= before  # what earlier tests left open may be closed meanwhile
    rings.set(NS_PER_MS)  # nobody hears it


async def test_a_bug_is_raised_by_the_task_that_runs_it() -> None:
    def fail(now_ns: int) -> None:
        raise ZeroDivisionError

    alarm = ExactAlarm(CLOCK, fail)
    with pytest.RaisesGroup(ZeroDivisionError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run)
            await settle()
            alarm.bring_forward(CLOCK.now_ns() + NS_PER_MS)


async def test_virtual_time_has_no_timers(autojump_clock: MockClock) -> None:
    rings = Rings(TrioClock(trio.lowlevel.current_clock()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rings.alarm.run)
        await rings.one(200_000)
        await rings.one(3600 * NS_PER_S)
        nursery.cancel_scope.cancel()
