"""The reactor: what arrives is read in place of Trio's waiting, and Trio misses nothing by that."""

from __future__ import annotations

import os
import select
import socket
import threading
import time

import pytest
import trio
import trio.lowlevel
import trio.testing

from tests.unit.reactor.doubles import IoWaits, counters, in_a_thread, settle
from tpy import reactor as module
from tpy.demand import Demand
from tpy.reactor import DEADLINES_UNREAD_S_MAX, Reactor, reactor_of_run


async def test_what_arrives_while_trio_waits_is_read(reactor: Reactor) -> None:
    done = trio.Event()
    with counters(reactor) as [counter]:

        def third() -> Demand:
            if counter.taken == 3:
                done.set()
            return Demand.READ

        counter.work = third
        thread = in_a_thread(lambda: [counter.add() for _ in range(3)])
        await done.wait()
        thread.join()


async def test_what_arrives_in_place_costs_no_turn_of_trio(reactor: Reactor, form: str) -> None:
    """A task that reads has a turn for each."""
    waits = IoWaits()
    reached = threading.Semaphore(0)
    with counters(reactor) as [counter]:

        def note() -> Demand:
            reached.release()
            return Demand.READ

        counter.work = note

        def send() -> None:
            for _ in range(100):
                counter.add()
                reached.acquire()

        trio.lowlevel.add_instrument(waits)
        await trio.to_thread.run_sync(send)
        trio.lowlevel.remove_instrument(waits)
    assert waits.count < 30 if form == "in place" else waits.count >= 100


async def test_a_task_that_a_callback_wakes_runs_at_once(reactor: Reactor) -> None:
    with counters(reactor) as [counter]:
        woken = trio.Event()

        def wake() -> Demand:
            woken.set()
            return Demand.READ

        counter.work = wake
        for _ in range(20):
            woken = trio.Event()
            thread = in_a_thread(counter.add)
            with trio.fail_after(10):
                await woken.wait()
            thread.join()


async def test_a_deadline_that_a_callback_brings_forward_is_kept(reactor: Reactor) -> None:
    with counters(reactor) as [counter]:
        for _ in range(20):
            with trio.CancelScope() as scope:

                def nearer(scope: trio.CancelScope = scope) -> Demand:
                    scope.deadline = trio.current_time() + 3 * DEADLINES_UNREAD_S_MAX
                    return Demand.READ

                counter.work = nearer
                thread = in_a_thread(counter.add)
                await trio.sleep_forever()
            assert scope.cancelled_caught
            thread.join()


async def test_deadlines_and_tasks_have_their_turn_while_bytes_keep_arriving(reactor: Reactor) -> None:
    with counters(reactor) as [counter]:

        def again() -> Demand:
            counter.add()  # it is never silent
            return Demand.READ

        counter.work = again
        counter.add()
        for _ in range(5):
            await trio.sleep(0.002)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        assert await trio.to_thread.run_sync(lambda: 5) == 5
        assert counter.taken > 5


async def test_what_trio_waits_for_is_seen_while_bytes_keep_arriving(reactor: Reactor) -> None:
    ours, theirs = trio.socket.socketpair()
    with ours, theirs, counters(reactor) as [counter]:

        def again() -> Demand:
            counter.add()
            return Demand.READ

        counter.work = again
        counter.add()
        for number in range(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(theirs.send, bytes([number]))
                assert await ours.recv(1) == bytes([number])


async def test_a_task_runs_whose_descriptor_was_ready_and_that_a_callback_cancels(reactor: Reactor) -> None:
    """Both in one turn: Trio would find nothing ready then."""
    ours, theirs = socket.socketpair()
    scope = trio.CancelScope()
    with ours, theirs, counters(reactor) as [counter]:

        def cancel() -> Demand:
            scope.cancel()
            return Demand.READ

        def both() -> None:
            theirs.send(b"x")
            counter.add()

        counter.work = cancel
        reactor.run_sync_soon(both)
        with trio.fail_after(5), scope:
            await trio.lowlevel.wait_readable(ours)


async def test_bytes_are_read_when_another_process_took_what_trio_was_to_see(reactor: Reactor) -> None:
    """As a connection that another process accepts from the same listening socket."""
    ours, theirs = socket.socketpair()
    woken = trio.Event()
    with ours, theirs, counters(reactor, 2) as [thief, counter]:

        def steal() -> Demand:
            ours.recv(1)
            return Demand.READ

        def wake() -> Demand:
            woken.set()
            return Demand.READ

        def both() -> None:
            theirs.send(b"x")
            thief.add()

        def later() -> None:
            time.sleep(0.1)
            counter.add()

        thief.work, counter.work = steal, wake
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.wait_readable, ours)
            await trio.lowlevel.checkpoint()
            reactor.run_sync_soon(both)
            thread = in_a_thread(later)
            with trio.fail_after(5):
                await woken.wait()
            thread.join()
            nursery.cancel_scope.cancel()


async def test_bytes_are_read_after_the_time_of_a_deadline_that_a_callback_put_off(reactor: Reactor) -> None:
    woken = trio.Event()
    seen_s: list[float] = []
    with counters(reactor, 2) as [first, second], trio.CancelScope() as scope:

        def put_off() -> Demand:
            scope.deadline += 10
            return Demand.READ

        def wake() -> Demand:
            seen_s.append(time.monotonic())
            woken.set()
            return Demand.READ

        def send() -> None:
            time.sleep(0.1)
            first.add()
            time.sleep(1.3)  # the time-out of Trio's, and its second one is not over
            seen_s.append(time.monotonic())
            second.add()

        first.work, second.work = put_off, wake
        scope.deadline = trio.current_time() + 1
        thread = in_a_thread(send)
        await woken.wait()
        thread.join()
    assert seen_s[1] - seen_s[0] < 0.4


async def test_bytes_are_read_after_the_longest_time_that_trio_waits(reactor: Reactor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day, when there is no deadline."""
    monkeypatch.setattr("trio._core._run._MAX_TIMEOUT", 0.5)
    monkeypatch.setattr(module, "IDLE_WAIT_S_MAX", 0.4)
    woken = trio.Event()
    seen_s: list[float] = []
    with counters(reactor) as [counter]:

        def wake() -> Demand:
            seen_s.append(time.monotonic())
            woken.set()
            return Demand.READ

        def send() -> None:
            time.sleep(0.6)
            seen_s.append(time.monotonic())
            counter.add()

        counter.work = wake
        thread = in_a_thread(send)
        await woken.wait()
        thread.join()
    assert seen_s[1] - seen_s[0] < 0.3


async def test_it_stops_while_bytes_arrive() -> None:
    """Its task may have been woken by then."""

    async def run() -> None:
        reactor = reactor_of_run()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for _ in range(50):
                with reactor.running():
                    await settle()
                    with counters(reactor) as [counter]:
                        counter.add()
                        theirs.send(b"x")
                        await trio.lowlevel.wait_readable(ours)
                await trio.lowlevel.checkpoint()
                ours.recv(1)

    await trio.to_thread.run_sync(trio.run, run)


@pytest.mark.parametrize("form", ["in place"], indirect=True)
def test_an_epoll_set_that_knows_a_closed_file_is_not_mistaken_for_that_of_trio() -> None:
    with select.epoll() as other:
        made = os.eventfd(0, os.EFD_CLOEXEC)
        other.register(made)
        elsewhere = os.dup(made)  # as in a process that was forked
        os.close(made)
        mark = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            if mark != made:
                pytest.skip("another thread has taken the number")
            with select.epoll() as right:
                right.register(mark)
                assert module.epoll_with(mark) == -1
        finally:
            os.close(mark)
            os.close(elsewhere)
