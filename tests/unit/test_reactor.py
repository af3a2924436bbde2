"""The reactor: what arrives is read in place of Trio's waiting, and Trio misses nothing by that."""

from __future__ import annotations

import os
import random
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.lowlevel
import trio.testing

from tpy import reactor as module
from tpy.demand import Demand
from tpy.limits import DEADLINES_UNREAD_S_MAX
from tpy.reactor import Reactor, reactor_of_run
from tpy.testing.loop_guard import LoopGuard


@pytest.fixture(params=["in place", "as a task"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The form of all reactors: a task of Trio reads where the system does not tell which epoll set is Trio's."""
    if request.param == "as a task":
        monkeypatch.setattr(module, "_epoll_with", lambda descriptor: -1)
    return request.param


@pytest.fixture
async def reactor(form: str) -> AsyncIterator[Reactor]:
    """One that runs."""
    made = reactor_of_run()
    with made.running():
        await settle()
        yield made
    assert not made.polled


async def settle() -> None:
    """Wait until nothing has happened for a while."""
    await trio.testing.wait_all_tasks_blocked(0.003)


class Counter:
    """An eventfd that is read by the reactor: `work` is done for each time that it is."""

    def __init__(self, work: Callable[[], Demand] = lambda: Demand.READ) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.is_continuing = False
        self.taken = 0
        self.errors: list[BaseException | None] = []
        self.work = work

    def fileno(self) -> int:
        return self.descriptor

    def receive(self) -> Demand:
        self.taken += os.eventfd_read(self.descriptor)
        return self.work()

    def proceed(self) -> Demand:
        return self.work()

    def end(self, error: BaseException | None = None) -> None:
        self.errors.append(error)

    def add(self, count: int = 1) -> None:
        os.eventfd_write(self.descriptor, count)


@contextmanager
def counters(reactor: Reactor, count: int = 1) -> Iterator[list[Counter]]:
    made = [Counter() for _ in range(count)]
    for counter in made:
        reactor.add(counter)
    try:
        yield made
    finally:
        for counter in made:
            reactor.discard(counter)
            os.close(counter.descriptor)


def in_a_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


class IoWaits(trio.abc.Instrument):
    """Counts the turns of Trio."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


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
                assert module._epoll_with(mark) == -1
        finally:
            os.close(mark)
            os.close(elsewhere)


async def test_calls_of_threads_run_in_their_order(reactor: Reactor) -> None:
    order: list[tuple[int, int]] = []
    done = trio.Event()

    def note(thread: int, number: int) -> None:
        assert trio.lowlevel.in_trio_run()
        order.append((thread, number))
        if len(order) == 4 * 200:
            done.set()

    threads = [in_a_thread(lambda thread=thread: call_all(reactor, note, thread)) for thread in range(4)]
    await done.wait()
    for thread in threads:
        thread.join()
    for thread_number in range(4):
        assert [number for thread, number in order if thread == thread_number] == list(range(200))


def call_all(reactor: Reactor, note: Callable[[int, int], None], thread: int) -> None:
    for number in range(200):
        reactor.run_sync_soon(lambda number=number: note(thread, number))


async def test_a_call_within_a_call_waits_for_its_turn(reactor: Reactor) -> None:
    order: list[str] = []
    done = trio.Event()

    def first() -> None:
        reactor.run_sync_soon(second)
        order.append("first")

    def second() -> None:
        order.append("second")
        done.set()

    reactor.run_sync_soon(first)
    assert order == []
    await done.wait()
    assert order == ["first", "second"]


async def test_who_has_more_to_do_goes_on_while_nothing_arrives(reactor: Reactor) -> None:
    done = trio.Event()
    with counters(reactor) as [counter]:
        left = [100]

        def more() -> Demand:
            left[0] -= 1
            if not left[0]:
                done.set()
            return Demand.CONTINUE if left[0] else Demand.READ

        counter.work = more
        counter.add()
        await done.wait()
        assert counter.taken == 1
        await settle()


async def test_a_bug_in_one_ends_that_one(reactor: Reactor) -> None:
    with counters(reactor, 2) as [broken, other]:

        def fail() -> Demand:
            raise LookupError("a bug")

        broken.work = fail
        broken.add()
        other.add()
        await settle()
        assert [str(error) for error in broken.errors] == ["a bug"]
        broken.add()
        other.add()
        await settle()
        assert (broken.taken, other.taken) == (1, 2)


async def test_trio_idles_and_jumps_as_without_it(reactor: Reactor, autojump_clock: trio.testing.MockClock) -> None:
    with counters(reactor) as [counter]:
        began_s = trio.current_time()
        await trio.sleep(1000)
        counter.add()
        await trio.sleep(1000)
        assert counter.taken == 1
        assert trio.current_time() - began_s == 2000
    assert autojump_clock.autojump_threshold == 0


async def test_calls_come_after_it_stopped_and_when_it_runs_again() -> None:
    async def fresh() -> None:
        reactor = reactor_of_run()
        seen: list[int] = []
        reactor.run_sync_soon(lambda: seen.append(1))
        await settle()
        for number in (2, 4):
            with reactor.running():
                reactor.run_sync_soon(lambda number=number: seen.append(number))
            reactor.run_sync_soon(lambda number=number: seen.append(number + 1))
            await settle()
        assert seen == [1, 2, 3, 4, 5]

    await trio.to_thread.run_sync(trio.run, fresh)


async def test_a_call_is_refused_after_the_run() -> None:
    async def run() -> Reactor:
        with reactor_of_run().running():
            return reactor_of_run()

    over = await trio.to_thread.run_sync(trio.run, run)
    with pytest.raises(trio.RunFinishedError):
        over.run_sync_soon(lambda: None)


@pytest.mark.parametrize("error", [LookupError, SystemExit])
async def test_a_bug_in_a_call_ends_the_run(error: type[BaseException]) -> None:
    async def run() -> None:
        def fail() -> None:
            raise error("a bug")

        reactor = reactor_of_run()
        with reactor.running():
            await settle()
            reactor.run_sync_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(trio.TrioInternalError):
        await trio.to_thread.run_sync(trio.run, run)


async def test_threads_may_call_at_any_time_while_it_stops_and_runs_again() -> None:
    async def run() -> int:
        reactor = reactor_of_run()
        seen: list[int] = []
        thread = in_a_thread(lambda: [reactor.run_sync_soon(lambda: seen.append(1)) for _ in range(5000)])
        while thread.is_alive():
            with reactor.running():
                await trio.lowlevel.checkpoint()
        await settle()
        return len(seen)

    assert await trio.to_thread.run_sync(trio.run, run) == 5000


async def test_nothing_is_lost_whoever_sends_whenever(reactor: Reactor) -> None:
    """Descriptors, calls, tasks and deadlines, as threads please: each is seen, none twice."""
    numbers = random.Random(7)
    calls: list[int] = []
    with counters(reactor, 5) as made:
        sent = [0] * len(made)

        def send(seed: int) -> None:
            own = random.Random(seed)
            for _ in range(300):
                if own.random() < 0.5:
                    at = own.randrange(len(made))
                    with lock:
                        sent[at] += 1
                    made[at].add()
                else:
                    reactor.run_sync_soon(lambda: calls.append(seed))
                    with lock:
                        called[0] += 1

        lock, called = threading.Lock(), [0]
        threads = [in_a_thread(lambda seed=seed: send(seed)) for seed in range(4)]
        while any(thread.is_alive() for thread in threads):
            if numbers.random() < 0.5:
                await trio.sleep(numbers.random() / 500)
            else:
                await trio.lowlevel.checkpoint()
            counter = made[numbers.randrange(len(made))]
            reactor.discard(counter)
            reactor.add(counter)
        await settle()
        assert [counter.taken for counter in made] == sent
        assert len(calls) == called[0]


async def test_a_guard_of_the_loop_sees_what_takes_long_in_it(reactor: Reactor, form: str) -> None:
    guard = LoopGuard(step_cpu_ns_max=1_000_000)
    trio.lowlevel.add_instrument(guard)
    try:
        with counters(reactor) as [counter]:

            def work() -> Demand:
                for _ in range(1_000_000):
                    pass
                return Demand.READ

            counter.work = work
            counter.add()
            await settle()
    finally:
        trio.lowlevel.remove_instrument(guard)
        guard.close()
    assert any(line.startswith("reactor: ") for line in guard.slow), form
