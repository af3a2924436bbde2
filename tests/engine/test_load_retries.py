"""--model-load-retry-count: a load that failed is tried again."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from tests.engine.fakes import ScriptedBackend, config, rig
from tpy.errors import Internal
from tpy.messages import ModelState
from tpy.testing.loop_guard import LoopGuard


@pytest.mark.parametrize("step", ["on_load", "on_create"])
@pytest.mark.parametrize(("failures", "serves"), [(0, True), (2, True), (3, False)])
async def test_a_failed_load_is_tried_again_as_often_as_wanted(
    autojump_clock: MockClock, loop_guard: LoopGuard, step: str, failures: int, serves: bool
) -> None:
    """Each attempt begins from nothing."""
    backend = ScriptedBackend()
    alive: list[int] = []

    def fail(_: object) -> None:
        alive.append(len(backend.loaded) + len(backend.instances))
        if len(alive) <= failures:
            raise Internal("not yet")

    setattr(backend, step, fail)
    async with rig(backend=backend, load_retries=2, load_ms=5) as r:
        r.want(config())
        await r.wait_state(1, 1, ModelState.READY if serves else ModelState.UNAVAILABLE)
        if not serves:
            assert r.states()[1, 1] == ("UNAVAILABLE", "Internal: not yet")
    assert alive == [int(step == "on_create")] * min(failures + 1, 3)
