"""The thread executor, for real: instances in threads of their own, one hand-off back per batch, nothing lost at the end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.engine.fakes import RecordingSink, ScriptedBackend, config, dynamic, identity, instances, request, values
from tests.shortage import threads_cannot_start
from tests.submitting import submit_to
from tpy.backend import ExecutionBatch, ExecutionResult
from tpy.clock import SystemClock
from tpy.errors import Unavailable
from tpy.ids import Generation, ModelId, Version
from tpy.state import DesiredModel, DesiredVersion, ModelStateStore
from tpy.testing.loop_guard import LoopGuard
from tpy_data.engine import DataPlaneOptions, open_data_plane
from tpy_data.executors.executor import ThreadExecutor, call, see_through


async def test_a_data_plane_with_threads(loop_guard: LoopGuard) -> None:
    threads: set[str] = set()
    both, met = threading.Barrier(2, timeout=30), threading.Event()

    def meet(batch: ExecutionBatch) -> list[ExecutionResult]:
        threads.add(threading.current_thread().name)
        if not met.is_set():
            both.wait()  # passes only when two instances execute at the same time
            met.set()
        return identity(batch)

    backend = ScriptedBackend(meet)
    clock = SystemClock()
    store = ModelStateStore(clock)
    desired = store.desired_writer()
    async with open_data_plane(DataPlaneOptions(), store, store.observed_writer(), backend, clock) as plane:
        version = DesiredVersion(version=Version(1), generation=Generation(1), directory=Path("m/1"))
        desired.put(
            DesiredModel(
                id=ModelId("m"),
                directory=Path("m"),
                config=config(instance_group=instances(2), dynamic_batching=dynamic()),
                config_revision=1,
                versions={Version(1): version},
            )
        )
        await store.wait_for(lambda s: any(o.description for o in s.observed.values()))
        sinks = [RecordingSink() for _ in range(16)]
        for number, sink in enumerate(sinks):
            submit_to(plane.inference, request(4, 2, value=number), sink)
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 8
        (statistics,) = plane.statistics()
        assert statistics.inference.success.count == 16
        assert statistics.inference.compute_infer.ns > 0
    assert threads == {"m_0_0", "m_0_1"}
    assert (backend.instances, backend.loaded) == ([], [])


async def test_a_call_returns_raises_and_survives_sys_exit() -> None:
    executor = ThreadExecutor()
    worker = executor.open_worker("w")
    try:
        assert await call(worker, lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await call(worker, lambda: 1 // 0)

        def leave() -> None:
            raise SystemExit(1)

        with pytest.raises(Exception, match="SystemExit: 1"):
            await call(worker, leave)
        assert await call(worker, lambda: threading.current_thread().name) == "w"
    finally:
        worker.close()


async def test_a_given_up_call_goes_on_and_its_result_is_released(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "tpy_data.executors.executor")
    worker = ThreadExecutor().open_worker("w")
    begun, go = threading.Event(), threading.Event()
    released: list[int] = []
    never: list[int] = []

    def slow() -> int:
        begun.set()
        assert go.wait(30)
        return 5

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: call(worker, slow, release=released.append))
        await trio.to_thread.run_sync(begun.wait)
        nursery.start_soon(lambda: call(worker, lambda: never.append(1)))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    go.set()
    await see_through(worker, lambda: None, grace_s=1)
    await see_through(worker, lambda: None, grace_s=1)  # behind the release, which comes when the result is back
    assert released == [5]
    assert never == [], "a call that had not begun is never begun"
    assert "call abandoned, its thread still runs" in caplog.text
    worker.close()


async def test_a_release_is_seen_through_although_its_owner_is_cancelled() -> None:
    worker = ThreadExecutor().open_worker("w")
    begun, go = threading.Event(), threading.Event()
    released: list[int] = []

    def release() -> None:
        begun.set()
        assert go.wait(30)
        released.append(1)

    scope = trio.CancelScope()

    async def own() -> None:
        with scope:
            await see_through(worker, release, grace_s=30)
        assert released == [1], "it was waited for"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(own)
        await trio.to_thread.run_sync(begun.wait)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        go.set()
    worker.close()


async def test_a_pool_has_as_many_threads_as_it_may_and_no_more() -> None:
    worker = ThreadExecutor().open_worker("pool", threads_max=3)
    running = 0
    most = 0
    lock = threading.Lock()

    def work() -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1
        return threading.current_thread().name

    names: set[str] = set()
    async with trio.open_nursery() as nursery:

        async def one() -> None:
            names.add(await call(worker, work))

        for _ in range(30):
            nursery.start_soon(one)
    worker.close()
    assert most <= 3
    assert names <= {"pool-0", "pool-1", "pool-2"}


async def test_a_worker_without_memory_for_a_thread_says_so_each_time() -> None:
    """The second call waited for a thread that had not come to be."""
    worker = ThreadExecutor().open_worker("w")
    for _ in range(2):
        with threads_cannot_start(), pytest.raises(Unavailable, match="can't start new thread"):
            await call(worker, lambda: 1)
    assert await call(worker, lambda: 1) == 1
    worker.close()


async def test_a_pool_whose_next_thread_cannot_start_goes_on_with_those_it_has() -> None:
    worker = ThreadExecutor().open_worker("pool", threads_max=2)
    assert await call(worker, lambda: 1) == 1
    with threads_cannot_start():
        assert await call(worker, lambda: 2) == 2
    worker.close()


def test_a_job_that_outlives_the_loop_ends_its_thread_quietly() -> None:
    go, began = threading.Event(), threading.Event()
    ended: list[threading.Thread] = []

    def late() -> None:
        ended.append(threading.current_thread())
        began.set()
        go.wait(30)

    async def main() -> None:
        worker = ThreadExecutor().open_worker("late")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, worker, late)
            await trio.to_thread.run_sync(began.wait)
            nursery.cancel_scope.cancel()

    trio.run(main)
    go.set()
    ended[0].join(30)
    assert not ended[0].is_alive()
