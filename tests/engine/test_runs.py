"""Requests that an instance executes one after the other for one hand-over: each is still a batch of its own."""

from __future__ import annotations

import threading

import pytest
import trio.testing
from trio.testing import MockClock

from tests.engine.fakes import RecordingSink, ScriptedBackend, config, identity, request, rig, values
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure
from tpy.testing.loop_guard import LoopGuard
from tpy_data.engine.batch_run import BatchRun
from tpy_data.engine.executor import Job, ThreadExecutor
from tpy_data.engine.singles_run import SinglesRun
from tpy_data.engine.virtual_executor import VirtualExecutor


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
            handles = [r.plane.inference.submit(request(value=number), sink) for number, sink in enumerate(sinks)]
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
        handles = [r.plane.inference.submit(request(value=number), sink) for number, sink in enumerate(sinks)]

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
