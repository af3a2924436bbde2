"""Instances that the Trio thread drives itself: what is given to them is executed once, answered once, and taken back in time."""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.engine.fakes import RecordingSink, Rig, config, dynamic, instances, request, rig, values
from tests.engine.queued_fakes import FakeQueued, QueuedBackend, first_value
from tests.submitting import submit_to
from tests.virtual_executor import VirtualExecutor
from tpy.backend import InstanceFailure
from tpy.backend.engine import EngineLimits
from tpy.clock import Clock
from tpy.errors import Unavailable
from tpy.observers import RequestObserver
from tpy.testing.loop_guard import LoopGuard
from tpy.testing.trio_clock import TrioClock
from tpy.units import NS_PER_MS, NS_PER_S, NS_PER_US
from tpy_data.engine.channels.channel import BatchJob
from tpy_data.engine.channels.process_channel import ProcessChannel
from tpy_data.engine.requests.batch import Batch
from tpy_data.executors.executor import Job


def _now_ns() -> int:
    return round(trio.current_time() * NS_PER_S)


class QueuedRig:
    """A data plane with queued instances; `jobs` are those that came to a thread."""

    def __init__(self, plane: Rig, backend: QueuedBackend, jobs: list[Job]) -> None:
        self.plane = plane
        self.backend = backend
        self.jobs = jobs

    @property
    def instance(self) -> FakeQueued:
        (instance,) = self.backend.living
        return instance

    def submit(self, number: float, **fields: int) -> RecordingSink:
        return self.plane.submit(request(value=number, **fields))

    async def step(self, count: int = 1) -> None:
        """The worker goes on, and everybody takes notice."""
        for _ in range(count):
            self.instance.step()
        await trio.testing.wait_all_tasks_blocked()

    async def warm(self) -> None:
        """Have a run of 4 given next."""
        for count in (1, 3):
            sinks = [self.submit(-1) for _ in range(count)]
            while not all(sink.responses for sink in sinks):
                await self.step()


@asynccontextmanager
async def queued_rig(*, count: int = 1, latency_ms: int = 0, **changes: object) -> AsyncIterator[QueuedRig]:
    jobs: list[Job] = []

    def note(worker: str, job: Job) -> int:
        if isinstance(job, BatchJob):
            jobs.append(job)
            return latency_ms * NS_PER_MS
        return 0

    async with trio.open_nursery() as nursery:
        backend = QueuedBackend(_now_ns)
        async with rig(backend=backend, executor=VirtualExecutor(nursery, note)) as plane:
            await plane.serve(config(instance_group=instances(count), **changes))
            await trio.testing.wait_all_tasks_blocked()
            yield QueuedRig(plane, backend, jobs)
        nursery.cancel_scope.cancel()


async def test_no_thread_is_needed(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with queued_rig() as r:
        await r.warm()
        sinks = [r.submit(number) for number in range(10)]
        while not all(sink.responses for sink in sinks):
            await r.step()
        assert [values(sink.response) for sink in sinks] == [[number] * 2 for number in range(10)]
        (statistics,) = r.plane.plane.statistics("m")
        assert statistics.execution_count == statistics.inference.success.count == 14
    assert r.jobs == []
    assert r.backend.begun[4:] == list(range(10)), "in order"
    assert r.backend.living == []


async def test_a_silent_instance_is_checked_each_second(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with queued_rig() as r:
        sink = r.submit(1)
        await trio.sleep(0.9)
        assert r.instance.checks == 1
        await trio.sleep(2)
        assert r.instance.checks == 3
        await r.step()
        assert values(sink.response) == [1, 1]
        await trio.sleep(1.5)
        checks = r.instance.checks
        await trio.sleep(5)
        assert r.instance.checks == checks, "while it has something to do"


async def test_a_check_that_finds_it_gone_fails_its_batch(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with queued_rig() as r:
        sink = r.submit(1)
        instance = r.instance
        await trio.sleep(0.5)
        instance.hangs = True
        await trio.sleep(0.6)
        assert sink.error == "Internal: it died"
        assert r.instance is not instance


async def test_an_instance_takes_as_many_as_it_likes(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with queued_rig() as r:
        await r.warm()
        r.instance.takes = 1
        sinks = [r.submit(number) for number in range(5)]
        for count in range(5):
            assert len(r.instance.held) == 1
            await r.step()
            assert [len(sink.responses) for sink in sinks] == [1] * (count + 1) + [0] * (4 - count)
        assert r.backend.begun[4:] == list(range(5))


async def test_quick_answers_leave_together_unless_one_takes_long_and_the_rest_is_given_back(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with queued_rig() as r:
        await r.warm()
        first = r.submit(0)
        sinks = [r.submit(number) for number in range(1, 6)]
        await r.step()
        assert first.responses
        await r.step()
        assert not sinks[0].responses
        assert r.backend.begun[4:] == [0, 1, 2]
        await trio.sleep(0.003)
        assert values(sinks[0].response) == [1, 1]
        (statistics,) = r.plane.plane.statistics("m")
        assert statistics.pending_requests == 3
        for _ in range(12):
            await r.step()
        assert [values(sink.response) for sink in sinks] == [[number] * 2 for number in range(1, 6)]
        assert r.backend.begun[4:] == list(range(6))


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_request_that_ended_before_its_turn_is_not_executed(
    how: str, autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with queued_rig() as r:
        await r.warm()
        r.submit(0)
        sinks = [RecordingSink() for _ in range(4)]
        handles = [
            submit_to(
                r.plane.plane.inference,
                request(value=1 + number, timeout_us=1000 if how == "timeout" and number == 2 else 0),
                sink,
            )
            for number, sink in enumerate(sinks)
        ]
        await r.step()
        if how == "cancel":
            handles[2].cancel()
        else:
            await trio.sleep(0.0015)
            assert sinks[2].error == "Unavailable: Request timeout expired"
        for _ in range(12):
            await r.step()
        assert r.backend.begun[4:] == [0, 1, 2, 4]
        assert [len(sink.responses) for sink in sinks] == [1, 1, how == "timeout", 1]


async def test_cancelling_what_was_executed_a_moment_ago_answers_nobody(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    """The batch that is revoked for the cancellation was executed already."""
    async with queued_rig() as r:
        await r.warm()
        r.submit(0)
        sinks = [RecordingSink() for _ in range(3)]
        handles = [submit_to(r.plane.plane.inference, request(value=1 + number), sink) for number, sink in enumerate(sinks)]
        await r.step()
        for _ in range(3):
            r.instance.step()  # nobody has looked yet
        handles[2].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert [len(sink.responses) for sink in sinks] == [1, 1, 0]
        (statistics,) = r.plane.plane.statistics("m")
        assert (statistics.inference.success.count, statistics.failures.canceled) == (7, 1)


async def test_nothing_is_begun_while_a_worker_has_yet_to_give_back_what_it_had(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    """It tells of the batch that it executed first, and then that those behind it are not started."""
    async with queued_rig() as r:
        await r.warm()
        r.submit(0)
        sinks = [RecordingSink() for _ in range(4)]
        handles = [submit_to(r.plane.plane.inference, request(value=1 + number), sink) for number, sink in enumerate(sinks)]
        await r.step()
        r.instance.tells_apart = True
        handles[3].cancel()
        for _ in range(3):
            await r.step()
        assert [len(sink.responses) for sink in sinks] == [1, 1, 1, 0]


async def test_the_death_of_a_worker_costs_what_it_executed(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with queued_rig() as r:
        await r.warm()
        r.submit(0)
        sinks = [r.submit(number) for number in range(1, 5)]
        await r.step()
        r.instance.step()
        r.instance.die()
        await trio.testing.wait_all_tasks_blocked()
        assert values(sinks[0].response) == [1, 1]
        assert sinks[1].error == "Internal: it died"
        await trio.sleep(2)  # until there is another
        for _ in range(4):
            await r.step()
        assert [values(sink.response) for sink in sinks[2:]] == [[3, 3], [4, 4]]
    assert r.backend.begun[4:] == [0, 1, 2, 3, 4]


async def test_what_killed_a_worker_is_not_taken_back(
    autojump_clock: MockClock, loop_guard: LoopGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop takes back what is behind it at the moment at which the thread finds the worker dead."""
    async with queued_rig() as r:
        await r.warm()
        r.submit(0)
        sinks = [RecordingSink() for _ in range(4)]
        handles = [submit_to(r.plane.plane.inference, request(value=1 + number), sink) for number, sink in enumerate(sinks)]
        await r.step()
        fail = Batch.fail

        def cancelled_first(self: Batch, failure: InstanceFailure, clock: Clock) -> None:
            handles[2].cancel()
            fail(self, failure, clock)

        monkeypatch.setattr(Batch, "fail", cancelled_first)
        r.instance.die()
        await trio.testing.wait_all_tasks_blocked()
        assert sinks[0].error == "Internal: it died"
        await trio.sleep(2)  # until there is another
        for _ in range(4):
            await r.step()
        assert [len(sink.responses) for sink in sinks] == [1, 1, 0, 1]
    assert r.backend.begun[4:] == [0, 1, 2, 4]


async def test_an_instance_that_goes_ends_what_it_holds(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with queued_rig() as r:
        await r.warm()
        r.submit(0)
        sinks = [r.submit(number) for number in range(1, 5)]
        await r.step()
        r.plane.want(config(), ())
        await trio.sleep(1)
        for _ in range(4):
            await r.step()
        assert [values(sink.response) for sink in sinks] == [[number] * 2 for number in range(1, 5)]
    assert r.backend.begun[4:] == list(range(5))
    assert r.backend.living == []


async def test_one_of_two_instances_that_goes_is_over_with_its_batch_first(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    """Its close waits for the batch, whose end the loop is told of from the instance's thread."""
    async with queued_rig(count=2) as r:
        sinks = [r.submit(number) for number in (1, 2)]
        await trio.testing.wait_all_tasks_blocked()
        r.plane.want(config(), {1: 1})
        await trio.sleep(1)
        while not all(sink.responses for sink in sinks):
            r.backend.living[0].step()
            await trio.testing.wait_all_tasks_blocked()
        assert [values(sink.response) for sink in sinks] == [[1, 1], [2, 2]]
        assert len(r.backend.living) == 1


async def slow_run(r: QueuedRig) -> list[RecordingSink]:
    """A slow instance that holds 4 batches, and two requests that wait."""
    r.backend.took_ns = NS_PER_MS
    first = r.submit(0)
    sinks = [r.submit(number) for number in range(1, 7)]
    await r.step()
    assert values(first.response) == [0, 0]
    return sinks


async def test_a_slow_instance_goes_on_and_each_answer_leaves_at_once(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with queued_rig() as r:
        sinks = await slow_run(r)
        for number in range(4):
            (statistics,) = r.plane.plane.statistics("m")
            assert statistics.pending_requests == 5 - number
            assert r.backend.begun == list(range(number + 2)), "the next is begun before anybody was asked"
            r.instance.step()
            await trio.testing.wait_all_tasks_blocked()
            assert [len(sink.responses) for sink in sinks] == [1] * (number + 1) + [0] * (5 - number)
        for _ in range(2):
            await r.step()
        assert [values(sink.response) for sink in sinks] == [[number] * 2 for number in range(1, 7)]
        assert not r.jobs


async def test_what_is_answered_is_let_go(autojump_clock: MockClock) -> None:
    others = [each for each in gc.get_objects() if type(each) is Batch]  # of tests before
    known = {id(each) for each in others}
    async with queued_rig() as r:
        sinks = await slow_run(r)
        await r.step()
        assert sinks[0].responses
        r.backend.batches.clear()  # what the fake remembers
        gc.collect()
        found = [each for each in gc.get_objects() if type(each) is Batch and each.tickets]
        alive = [first_value(each) for each in found if id(each) not in known]
        assert sorted(alive) == [2, 3, 4, 5]
        for _ in range(5):
            await r.step()


async def test_a_prefetched_request_that_was_cancelled_is_not_executed(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with queued_rig() as r:
        r.backend.took_ns = NS_PER_MS
        sinks = [RecordingSink() for _ in range(6)]
        handles = [submit_to(r.plane.plane.inference, request(value=number), sink) for number, sink in enumerate(sinks)]
        await r.step()
        handles[3].cancel()
        for _ in range(5):
            await r.step()
        assert r.backend.begun == [0, 1, 2, 4, 5]
        assert [len(sink.responses) for sink in sinks] == [1, 1, 1, 0, 1, 1]


async def test_a_batch_behind_another_begins_when_that_has_ended_not_when_the_loop_takes_notice(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with queued_rig() as r:
        r.plane.observers.add(RequestObserver())
        await r.warm()
        await trio.sleep(1)  # 0 is no time of a batch
        alone, *sinks = [r.submit(number) for number in range(3)]
        await r.step()  # the two behind it are given together
        assert alone.responses
        assert len(r.instance.held) == 2
        (before,) = r.plane.plane.statistics("m")
        await trio.sleep(0.000_1)
        r.instance.step_unnoticed()
        await trio.sleep(0.000_2)
        r.instance.step_unnoticed()
        await trio.sleep(0.000_05)
        r.instance.notice()
        assert all(sink.responses for sink in sinks)
        (after,) = r.plane.plane.statistics("m")
    took = {
        name: (getattr(after.inference, name).ns - getattr(before.inference, name).ns) // NS_PER_US
        for name in ("success", "queue", "compute_input", "compute_infer", "compute_output")
    }
    assert took == {"success": 2 * 350, "queue": 0 + 100, "compute_input": 100 + 200, "compute_infer": 0, "compute_output": 0}


class Walk:
    """Random requests, cancellations, steps and deaths of workers, more and fewer instances; then what must hold."""

    def __init__(self, r: QueuedRig, seed: int, changes: dict[str, Any]) -> None:
        self.r = r
        self.changes = changes
        self.chance = random.Random(seed)
        self.sinks: dict[int, RecordingSink] = {}
        self.handles: dict[int, object] = {}
        self.cancelled: dict[int, int] = {}
        """To how many answers there were then."""
        self.never: set[int] = set()
        """Cancelled or refused before an instance had begun them."""

    def submit(self) -> None:
        for _ in range(self.chance.choice((1, 1, 2, 5, 9))):
            number = len(self.sinks) + 1
            timeout_us = self.chance.choice((0, 0, 0, 1500))
            sink = RecordingSink()
            with suppress(Unavailable):  # no instance is alive
                self.handles[number] = submit_to(self.r.plane.plane.inference, request(value=number, timeout_us=timeout_us), sink)
                self.sinks[number] = sink

    def cancel(self) -> None:
        live = [number for number, sink in self.sinks.items() if not sink.responses and number not in self.cancelled]
        if live:
            number = self.chance.choice(live)
            if number not in self.r.backend.begun:
                self.never.add(number)
            self.cancelled[number] = 0
            self.handles[number].cancel()  # type: ignore[attr-defined]  # a RequestHandle

    async def act(self) -> None:
        living = [instance for instance in self.r.backend.living if not instance.dead]
        chosen = self.chance.choice(living) if living else None
        match self.chance.choices(range(10), (20, 6, 50, 4, 4, 0.5, 30, 4, 4, 0.4))[0]:
            case 0:
                self.submit()
            case 1:
                self.cancel()
            case 2 if chosen is not None:
                chosen.step()
            case 3:
                with suppress(Unavailable):
                    copy = self.r.plane.plane.inference.resolve("m")
                    copy.engine.recall()  # type: ignore[union-attr]  # as calls of models do
            case 5 if chosen is not None:
                chosen.die()
            case 6:
                await trio.testing.wait_all_tasks_blocked()
            case 7:
                await trio.sleep(self.chance.choice((0.0005, 0.002, 0.01)))
            case 8 if chosen is not None:
                chosen.takes = self.chance.choice((1, 2, 100))
            case 9:
                groups = instances(self.chance.choice((1, 2, 3)))
                self.r.plane.want(config(instance_group=groups, **self.changes), {1: 1})
            case _:
                pass

    async def settle(self) -> None:
        with trio.fail_after(600):
            while not all(sink.responses or number in self.cancelled for number, sink in self.sinks.items()):
                for instance in list(self.r.backend.living):
                    instance.step()
                await trio.sleep(0.01)

    def check(self) -> None:
        backend = self.r.backend
        assert len(set(backend.begun)) == len(backend.begun), "nothing is executed twice"
        assert not self.never & {int(value) for value in backend.begun}, "nor when it had ended before its turn"
        succeeded = 0
        for number, sink in self.sinks.items():
            assert len(sink.responses) == (0 if number in self.cancelled else 1)
            for response in sink.responses:
                if response.error is None:
                    assert values(response) == [number] * 2
                    succeeded += 1
                else:
                    assert response.error.reason() in ("Internal: it died", "Unavailable: Request timeout expired")
        (statistics,) = self.r.plane.plane.statistics("m")
        assert statistics.pending_requests == 0
        assert statistics.inference.success.count == succeeded
        assert statistics.failures.canceled == len(self.cancelled)


@pytest.mark.parametrize("batching", ["default", "dynamic"])
@pytest.mark.parametrize("seed", range(20))
async def test_random_walks(seed: int, batching: str, autojump_clock: MockClock) -> None:
    changes = {"dynamic_batching": dynamic()} if batching == "dynamic" else {}
    async with queued_rig(count=1 + seed % 3, **changes) as r:
        r.backend.took_ns = (0, NS_PER_MS)[seed // 3 % 2]
        walk = Walk(r, seed, changes)
        for _ in range(300):
            await walk.act()
        await walk.settle()
        walk.check()
    assert r.backend.living == []


@pytest.mark.parametrize("is_engine", [False, True])
async def test_only_an_engine_is_given_requests_while_it_has_others(is_engine: bool) -> None:
    instance = FakeQueued(QueuedBackend(_now_ns), "m_0")
    instance.engine_limits = EngineLimits(sequences=3) if is_engine else None
    async with trio.open_nursery() as nursery:
        channel = ProcessChannel(instance, VirtualExecutor(nursery).open_worker("m_0"), TrioClock(trio.lowlevel.current_clock()))
        batches = [Batch("m_0", ()) for _ in range(2)]
        for batch in batches:
            channel.give([batch])
        assert list(instance.held) == batches[: 1 + is_engine]
        nursery.cancel_scope.cancel()
