"""Calls at the end of a turn."""

from __future__ import annotations

import trio
import trio.lowlevel
import trio.testing

from tests.unit.reactor.doubles import counters, settle
from tpy.clock import SystemClock
from tpy.demand import Demand
from tpy.limits import LOOP_TURN_NS_MAX
from tpy.reactor import Reactor, reactor_of_run


async def test_it_comes_when_all_that_is_ready_was_read(reactor: Reactor) -> None:
    order: list[str] = []
    with counters(reactor, 3) as made:
        for number, counter in enumerate(made):

            def work(number: int = number) -> Demand:
                order.append(f"read {number}")
                reactor.after_turn(lambda: order.append(f"after {number}"))
                return Demand.READ

            counter.work = work
            counter.add()
        await settle()
    assert sorted(order[:3]) == ["read 0", "read 1", "read 2"]
    assert [entry.replace("after", "read") for entry in order[3:]] == order[:3]


async def test_outside_of_a_turn_it_comes_soon(reactor: Reactor) -> None:
    order: list[str] = []
    done = trio.Event()
    reactor.after_turn(lambda: order.append("one"))
    reactor.after_turn(done.set)
    assert order == []
    await done.wait()
    assert order == ["one"]
    reactor.run_sync_soon(lambda: reactor.after_turn(lambda: order.append("of a call")))
    await settle()
    assert order == ["one", "of a call"]


async def test_what_follows_from_it_needs_no_deeper_stack_and_is_no_endless_turn(reactor: Reactor) -> None:
    left, turns = [3000], trio.Event()

    def again() -> None:
        left[0] -= 1
        if left[0]:
            reactor.after_turn(again)
        else:
            turns.set()

    reactor.after_turn(again)
    await turns.wait()


class Stepped(SystemClock):
    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


async def test_in_a_long_turn_there_is_one_and_tasks_have_theirs_between(form: str) -> None:
    clock = Stepped()
    reactor = reactor_of_run(clock)
    order: list[str] = []

    def work() -> Demand:
        clock.ns += LOOP_TURN_NS_MAX + 1
        for number in range(3):
            reactor.after_turn(lambda number=number: execute(number))
        return Demand.READ

    def execute(number: int) -> None:
        clock.ns += LOOP_TURN_NS_MAX + 1
        order.append(f"after {number}")
        trio.lowlevel.spawn_system_task(note)

    async def note() -> None:
        order.append("task")

    with reactor.running():
        await settle()
        with counters(reactor) as [counter]:
            counter.work = work
            counter.add()
            await settle()
    if form == "in place":
        assert order == ["after 0", "task", "after 1", "task", "after 2", "task"]
    assert [entry for entry in order if entry != "task"] == ["after 0", "after 1", "after 2"]


async def test_has_more_says_whether_something_waits(reactor: Reactor) -> None:
    found: list[bool] = []
    with counters(reactor, 2) as [one, other]:

        def work() -> Demand:
            reactor.after_turn(lambda: found.append(reactor.has_more))
            if len(found) == 1:
                other.add()  # arrives meanwhile
            return Demand.READ

        one.work = work
        for _ in range(2):
            one.add()
            await settle()
        assert found == [False, True]
    assert not reactor_of_run().polled


async def test_what_is_left_when_the_reactor_stops_is_done_all_the_same() -> None:
    reactor, done = reactor_of_run(), trio.Event()
    with reactor.running():
        reactor.after_turn(done.set)
    with trio.fail_after(5):
        await done.wait()
    assert reactor.has_more, "nobody knows"
    later = trio.Event()
    reactor.after_turn(later.set)
    with trio.fail_after(5):
        await later.wait()


async def test_after_a_call_that_raises_the_turn_is_over(reactor: Reactor) -> None:
    found: list[int] = []
    with counters(reactor) as [counter]:

        def work() -> Demand:
            raise ValueError

        counter.work = work
        counter.add()
        await settle()
        reactor.after_turn(lambda: found.append(1))
        await settle()
    assert found == [1]
