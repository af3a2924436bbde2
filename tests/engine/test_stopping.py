"""Stopping versions and the data plane while loads, instances and requests are under way, in virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.engine.fakes import config, instances, rig, values
from tpy.errors import NotFound
from tpy.messages import ModelState
from tpy.testing.loop_guard import LoopGuard

UNAVAILABLE = ModelState.UNAVAILABLE


async def test_an_unload_takes_effect_at_once_also_while_instances_are_being_made(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    create_ms = iter([1, 60_000])
    async with rig(latency_ms=50, load_ms=lambda worker: next(create_ms, 1) if worker.startswith("m_") else 1) as r:
        await r.serve(config())
        r.want(config(instance_group=instances(2)), {1: 1})
        await trio.sleep(1)
        running, queued = r.submit(), r.submit()
        r.want(config(), ())
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(NotFound, match="has no available versions"):
            r.submit()
        assert r.states() == {(1, 1): ("UNLOADING", "")}
        assert values(await running.wait()) == values(await queued.wait()) == [1, 1]
        await r.wait_state(1, 1, UNAVAILABLE)
        assert r.states() == {(1, 1): ("UNAVAILABLE", "unloaded")}
        assert (r.backend.instances, r.backend.loaded) == ([], [])


@pytest.mark.parametrize("hangs", ["load", "m_0"])
async def test_shutdown_waits_for_no_load(autojump_clock: MockClock, loop_guard: LoopGuard, hangs: str) -> None:
    async with rig(load_ms=lambda worker: 100_000_000 if worker == hangs else 1) as r:
        await trio.sleep(1)
        r.want(config())
        await trio.sleep(1)
        assert r.states() == {(1, 1): ("LOADING", "")}
    assert trio.current_time() < 2.1
    assert r.states() == {}


async def test_shutdown_waits_for_no_new_instances_but_for_requests(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    create_ms = iter([1, 100_000_000])
    async with rig(latency_ms=500, load_ms=lambda worker: next(create_ms, 1) if worker.startswith("m_") else 1) as r:
        await r.serve(config())
        r.want(config(instance_group=instances(2)), {1: 1})
        await trio.sleep(1)
        sink = r.submit()
    assert values(sink.response) == [1, 1]
    assert trio.current_time() < 2
    assert (r.backend.instances, r.backend.loaded) == ([], [])
