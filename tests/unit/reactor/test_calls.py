"""Calls of threads, the life of a reactor, and what others do beside it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import trio
import trio.lowlevel
import trio.testing

from tests.unit.reactor.doubles import counters, in_a_thread, settle
from tpy.demand import Demand
from tpy.reactor import Reactor, reactor_of_run
from tpy.testing.loop_guard import LoopGuard


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
