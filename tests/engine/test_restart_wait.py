"""--instance-restart-wait: while a failed instance is started again, requests that have not begun wait for it, within bounds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.engine.ensembles import CHAIN, MembersBackend, same, serve_all, submit
from tests.engine.fakes import Rig, ScriptedBackend, config, identity, rig, values
from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult, InstanceFailure, InstancePlacement
from tpy.errors import Internal, NotFound, Unavailable
from tpy.messages import ModelState
from tpy.testing.loop_guard import LoopGuard
from tpy_data.engine.instances.restarts import RestartOptions

_NOT_READY = r"^Request for unknown model: '.' version 1 is not at ready state$"


def die(batch: ExecutionBatch) -> Sequence[ExecutionResult]:
    """The end of an instance."""
    raise InstanceFailure("the process died")


def dying(request: ExecutionRequest) -> ExecutionResult:
    """As `die`."""
    raise InstanceFailure("the process died")


async def kill(r: Rig) -> None:
    """Have the only instance of `m` fail with a request, which is lost."""
    r.backend.execute = die
    hit = r.submit()
    await hit.wait()
    assert hit.error == "Internal: the process died"
    r.backend.execute = identity
    await trio.testing.wait_all_tasks_blocked()
    assert r.states()[1, 1] == ("UNAVAILABLE", "Internal: the process died")


async def require_not_ready(r: Rig) -> None:
    """Readiness says no."""
    assert r.plane.inference.ready_versions("m") == ()
    with pytest.raises(Unavailable, match=_NOT_READY):
        await r.plane.check_ready("m")


async def test_requests_wait_for_the_new_instance_and_readiness_says_no(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10, restarts=RestartOptions(wait_s=5.0)) as r:
        await r.serve(config())
        await kill(r)
        waiting = [r.submit(), r.submit()]
        await trio.sleep(0.5)
        waiting.append(r.submit())
        await require_not_ready(r)
        for sink in waiting:
            assert values(await sink.wait()) == [1, 1]
        await r.wait_state(1, 1, ModelState.READY)
        assert await r.plane.check_ready("m")
        await trio.sleep(60)
        assert values(await r.submit().wait()) == [1, 1]


async def test_they_wait_no_longer_than_that(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = ScriptedBackend()
    slow_ms = 5
    async with rig(backend=backend, load_ms=lambda worker: slow_ms, restarts=RestartOptions(wait_s=5.0)) as r:
        await r.serve(config())
        await trio.sleep(100)
        slow_ms = 20_000
        await kill(r)
        began = trio.current_time()
        early = r.submit()
        await trio.sleep(3)
        late = r.submit()
        for sink in (early, late):
            await sink.wait()
            assert sink.error.startswith("Unavailable: no instance of the model is left to run the request")
            assert trio.current_time() - began == pytest.approx(5)
        with pytest.raises(Unavailable, match=_NOT_READY):
            r.submit()
        await r.wait_state(1, 1, ModelState.READY)
        assert values(await r.submit().wait()) == [1, 1]


async def test_they_are_refused_when_there_will_be_none(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = ScriptedBackend()
    async with rig(backend=backend, load_ms=10, restarts=RestartOptions(wait_s=60.0)) as r:
        await r.serve(config())
        await trio.sleep(100)

        def broken(placement: InstancePlacement) -> None:
            raise Internal("still broken")

        backend.on_create = broken
        await kill(r)
        began = trio.current_time()
        sink = r.submit()
        await sink.wait()
        assert sink.error.startswith("Unavailable: no instance of the model is left")
        assert trio.current_time() - began < 1
        with pytest.raises(Unavailable, match=_NOT_READY):
            r.submit()
        backend.on_create = lambda placement: None
        await r.wait_state(1, 1, ModelState.READY)
        assert values(await r.submit().wait()) == [1, 1]


async def test_unloading_meanwhile_refuses_them(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(
        latency_ms=10, load_ms=lambda worker: 30_000 if worker.startswith("m") else 0, restarts=RestartOptions(wait_s=5.0)
    ) as r:
        await r.serve(config())
        await kill(r)
        began = trio.current_time()
        waiting = r.submit()
        r.want(config(), ())
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NotFound, match="has no available versions"):
            r.submit()
        await waiting.wait()
        assert waiting.error.startswith("Unavailable: no instance of the model is left")
        assert trio.current_time() - began == pytest.approx(5)
        await r.wait_state(1, 1, ModelState.UNAVAILABLE)


async def test_ensembles_wait_with_their_members(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = MembersBackend()
    async with rig(backend=backend, latency_ms=10, load_ms=10, restarts=RestartOptions(wait_s=5.0)) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        backend.answers["a"] = dying
        await submit(r).final.wait()
        backend.answers["a"] = same
        await trio.testing.wait_all_tasks_blocked()
        assert r.states("e")[1, 1][0] == "UNAVAILABLE"
        assert r.plane.inference.ready_versions("e") == ()
        stream = submit(r)
        await r.wait_state(1, 1, ModelState.READY, "e")
        await trio.sleep(1)
        assert stream.values == [1]


async def test_a_crash_loop_is_unavailable_and_its_pauses_grow(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10, restarts=RestartOptions(wait_s=5.0, loop_failures=3, loop_window_s=300.0)) as r:
        await r.serve(config())
        pauses: list[int] = []
        waits: list[int | None] = []
        for _ in range(6):
            await trio.sleep(2)
            r.backend.execute = die
            await r.submit().wait()
            failed_s = trio.current_time()
            r.backend.execute = identity
            await trio.testing.wait_all_tasks_blocked()
            if pauses and pauses[-1] > 1:
                assert r.states()[1, 1][0] == "UNAVAILABLE"
                assert "crash loop: it failed 3 times in 5 minutes, last: " in r.states()[1, 1][1]
                for version in (None, 1):
                    with pytest.raises(Unavailable) as refused:  # nothing waits for it
                        r.plane.inference.resolve("m", version)
                    waits.append(refused.value.wait_s)
            await r.wait_state(1, 1, ModelState.READY)
            pauses.append(round(trio.current_time() - failed_s))
            assert values(await r.submit().wait()) == [1, 1]
        assert pauses == [0, 0, 8, 16, 32, 60]
        assert waits == [16, 16, 32, 32, 60, 60]
        assert [each.instance_restarts for each in r.plane.statistics()] == [6]
        await trio.sleep(301)
        r.backend.execute = die
        await r.submit().wait()
        r.backend.execute = identity
        await trio.sleep(1)
        assert r.states()[1, 1][0] == "READY"


async def test_none_is_a_crash_loop_by_default(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10, restarts=RestartOptions(wait_s=5.0)) as r:
        await r.serve(config())
        for _ in range(20):
            r.backend.execute = die
            await r.submit().wait()
            r.backend.execute = identity
            await trio.sleep(2)
            assert values(await r.submit().wait()) == [1, 1]
