"""Requests that an instance executes one after the other for one hand-over: each is still a batch of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import trio.testing
from trio.testing import MockClock

from tests.engine.fakes import RecordingSink, ScriptedBackend, config, identity, request, rig, values
from tests.submitting import submit_to
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure
from tpy.limits import RUN_SLICE_NS_MAX
from tpy.testing.loop_guard import LoopGuard
from tpy.units import NS_PER_MS
from tpy_data.engine.batch_run import BatchRun, InstanceSlot
from tpy_data.engine.executor import Job, ThreadExecutor
from tpy_data.engine.singles_run import SinglesRun
from tpy_data.engine.ticket import RequestTicket
from tpy_data.engine.virtual_executor import VirtualExecutor
from tpy_data.schedulers.core import run_ahead


async def test_quick_requests_are_handed_over_together_and_executed_alone(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    jobs: list[Job] = []

    def note(worker: str, job: Job) -> int:
        if isinstance(job, (BatchRun, SinglesRun)):
            jobs.append(job)
        return 0

    async with trio.open_nursery() as nursery, rig(executor=VirtualExecutor(nursery, note)) as r:
        await r.serve(config())
        sinks = [r.submit(request(1 + number % 3, 2, value=number)) for number in range(40)]
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 2 * (1 + number % 3)
        (statistics,) = r.plane.statistics("m")
        assert statistics.execution_count == 40
        assert {size.batch_size: size.compute_infer.count for size in statistics.batches} == {1: 14, 2: 13, 3: 13}
        nursery.cancel_scope.cancel()
    assert [len(batch.requests) for batch in r.backend.batches] == [1] * 40
    assert [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches] == list(range(40))
    assert len(jobs) == 6, "1, 2, 4, 8, 16 and the last 9"


async def test_slow_requests_wait_where_they_can_be_seen_and_cancelled(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(config())
        sinks = [r.submit() for _ in range(5)]
        for number, sink in enumerate(sinks):
            await sink.wait()
            (statistics,) = r.plane.statistics("m")
            assert statistics.pending_requests == max(0, 3 - number)
            assert sink.at_ms == 10 * (number + 1)


async def test_the_failure_of_an_instance_costs_only_the_request_that_it_executed(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    def die_at_20(batch: ExecutionBatch) -> list[ExecutionResult]:
        if batch.requests[0].inputs["IN"].array[0, 0] == 20:
            raise InstanceFailure("it died")
        return identity(batch)

    async with rig(backend=ScriptedBackend(die_at_20)) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(40)]
        for number, sink in enumerate(sinks):
            await sink.wait()
            if number == 20:
                assert sink.error == "Internal: it died"
            else:
                assert values(sink.response) == [number] * 2
                assert sink.at_ms == (0 if number < 20 else 1000), "the rest waits for the new instance"
        (statistics,) = r.plane.statistics("m")
        assert (statistics.execution_count, statistics.failures.backend) == (40, 1)
    executed = [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches]
    assert executed == list(range(40)), "each once, in order"


async def test_an_error_of_one_request_is_not_that_of_its_neighbours(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    def fail_odd(batch: ExecutionBatch) -> list[ExecutionResult]:
        if batch.requests[0].inputs["IN"].array[0, 0] % 2:
            raise ValueError("odd")
        return identity(batch)

    async with rig(backend=ScriptedBackend(fail_odd)) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(20)]
        for number, sink in enumerate(sinks):
            await sink.wait()
            assert (sink.response.error is None) == (number % 2 == 0)


async def test_nobody_waits_for_a_slow_request_of_the_same_run() -> None:
    go, at_work = threading.Event(), threading.Event()

    def slow_at_20(batch: ExecutionBatch) -> list[ExecutionResult]:
        if batch.requests[0].inputs["IN"].array[0, 0] == 20:
            at_work.set()
            assert go.wait(30)
        return identity(batch)

    with trio.fail_after(30):
        async with rig(backend=ScriptedBackend(slow_at_20), executor=ThreadExecutor()) as r:
            await r.serve(config())
            sinks = [RecordingSink() for _ in range(40)]
            handles = [submit_to(r.plane.inference, request(value=number), sink) for number, sink in enumerate(sinks)]
            for number in range(20):
                assert values(await sinks[number].wait()) == [number] * 2
            await trio.to_thread.run_sync(at_work.wait)
            while r.plane.statistics("m")[0].pending_requests < 19:
                await trio.lowlevel.checkpoint()  # until the run is broken up
            handles[30].cancel()
            go.set()
            for number in range(20, 40):
                if number != 30:
                    assert values(await sinks[number].wait()) == [number] * 2
            (statistics,) = r.plane.statistics("m")
            assert statistics.execution_count == statistics.inference.success.count == 39
            assert statistics.failures.canceled == 1
    executed = [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches]
    assert executed == [number for number in range(40) if number != 30]


async def test_a_version_drains_what_it_has_begun_and_not(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig() as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(30)]
        r.want(config(), ())
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 2


@pytest.mark.parametrize("gone", [(1,), (0, 1, 2), (2, 3)])
async def test_a_request_that_nobody_waits_for_is_passed_over(
    autojump_clock: MockClock, loop_guard: LoopGuard, gone: tuple[int, ...]
) -> None:
    async with rig() as r:
        await r.serve(config())
        sinks = [RecordingSink() for _ in range(7)]
        handles = [submit_to(r.plane.inference, request(value=number), sink) for number, sink in enumerate(sinks)]

        class Canceller(RecordingSink):
            def deliver(self, response: object) -> None:
                super().deliver(response)  # type: ignore[arg-type]  # as it came
                for number in gone:
                    handles[3 + number].cancel()

        # Answered together with the second and third; the other four are on their way then.
        handles[2].sink = Canceller()  # type: ignore[attr-defined]  # a ticket
        for number, sink in enumerate(sinks):
            if number != 2 and number - 3 not in gone:
                assert values(await sink.wait()) == [number] * 2
        (statistics,) = r.plane.statistics("m")
        assert statistics.failures.canceled == len(gone)
        assert statistics.execution_count == 7 - len(gone)


async def test_a_slow_instance_goes_on_with_what_it_has_at_hand_and_each_answer_leaves_at_once(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    given: list[Job] = []

    def note(worker: str, job: Job) -> int:
        if not isinstance(job, (BatchRun, SinglesRun)):
            return 0
        given.append(job)
        return 10 * NS_PER_MS

    async with trio.open_nursery() as nursery, rig(executor=VirtualExecutor(nursery, note)) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(9)]
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 2
            assert sink.at_ms == 10 * (number + 1)
        nursery.cancel_scope.cancel()
    assert len(dict.fromkeys(given)) == 3, "one alone, and two runs of four"


@pytest.mark.parametrize(("steady", "executed", "told"), [(True, 4, 3), (False, 1, 0)])
def test_the_thread_of_an_instance_with_a_steady_run_goes_on_when_its_time_is_over(
    steady: bool, executed: int, told: int
) -> None:
    clock, worker, owner = StepClock(), ToldWorker(), Owner()

    class Slow:
        def execute(self, batch: ExecutionBatch) -> list[ExecutionResult]:
            clock.ns += RUN_SLICE_NS_MAX + 1
            return identity(batch)

        def close(self) -> None:
            pass

    slot = InstanceSlot(0, "m_0", Slow(), worker, lambda: None, lambda why: None)
    tickets = [RequestTicket(request(), {}, batch_size=1, signature=None, sink=RecordingSink(), owner=owner) for _ in range(4)]
    run = SinglesRun(slot, tickets, clock, owner, steady=steady)
    run.begin()
    run.run()
    assert len(run.take_finished()) == executed
    assert run.take_waiting() == 4 - executed
    assert (len(worker.told), run.brief, run.took_ns) == (told, False, RUN_SLICE_NS_MAX + 1)
    for call in worker.told:
        call()
    assert owner.progressed == [run] * told


class StepClock:
    """Stands still unless it is told to go on."""

    ns = 0

    def now_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return 0


class ToldWorker:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Callable[[], None]] = []

    def put(self, job: Job) -> None:
        raise AssertionError("nothing is put here")

    def tell(self, call: Callable[[], None]) -> None:
        self.told.append(call)

    def close(self) -> None:
        pass


class Owner:
    """Notes which runs went on."""

    def __init__(self) -> None:
        self.progressed: list[object] = []

    def run_progressed(self, run: object) -> None:
        self.progressed.append(run)


async def test_an_instance_that_dies_in_a_steady_run_loses_only_what_it_executed(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    def die_at_2(batch: ExecutionBatch) -> list[ExecutionResult]:
        if batch.requests[0].inputs["IN"].array[0, 0] == 2:
            raise InstanceFailure("it died")
        return identity(batch)

    async with rig(backend=ScriptedBackend(die_at_2), latency_ms=10) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(6)]
        for number, sink in enumerate(sinks):
            await sink.wait()
            if number == 2:
                assert sink.error == "Internal: it died"
            else:
                assert values(sink.response) == [number] * 2
    executed = [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches]
    assert executed == list(range(6)), "each once, in order"


async def test_a_request_at_hand_that_nobody_waits_for_or_that_is_late_is_passed_over(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(config())
        sinks = [RecordingSink() for _ in range(5)]
        late = {3: {"timeout_us": 15_000}}
        handles = [
            submit_to(r.plane.inference, request(value=number, **late.get(number, {})), sink) for number, sink in enumerate(sinks)
        ]
        await sinks[0].wait()
        handles[2].cancel()
        for number in (1, 3, 4):
            await sinks[number].wait()
        assert sinks[3].error is not None
        assert sinks[3].at_ms == 15
        assert sinks[4].at_ms == 30
    executed = [batch.requests[0].inputs["IN"].array[0, 0] for batch in r.backend.batches]
    assert executed == [0, 1, 4]


async def test_unloading_lets_a_steady_run_come_to_its_end(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(config())
        sinks = [r.submit(request(value=number)) for number in range(5)]
        await sinks[0].wait()
        r.want(config(), ())
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 2


async def test_the_answer_of_a_quick_request_does_not_wait_for_a_slow_one_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a steady run: it has no time slice, and is not broken up."""
    monkeypatch.setattr(run_ahead, "RUN_SLICE_NS_MAX", 0)  # every instance is slow
    go, at_work = threading.Event(), threading.Event()

    def work(batch: ExecutionBatch) -> list[ExecutionResult]:
        number = batch.requests[0].inputs["IN"].array[0, 0]
        if number == 2:
            at_work.set()
            assert go.wait(30)
        return identity(batch)

    with trio.fail_after(30):
        async with rig(backend=ScriptedBackend(work), executor=ThreadExecutor()) as r:
            await r.serve(config())
            sinks = [r.submit(request(value=number)) for number in range(4)]
            await trio.to_thread.run_sync(at_work.wait)
            assert values(await sinks[1].wait()) == [1, 1]
            assert not sinks[2].responses
            go.set()
            for number, sink in enumerate(sinks):
                assert values(await sink.wait()) == [number] * 2
