"""Quick batches of an engine are executed on the loop."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import trio

from tests.engine.ensembles import ensemble, step
from tests.engine.fakes import Rig, ScriptedBackend, config, dynamic, identity, instances, request, rig, values
from tpy import reactor
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure
from tpy.config.model_config import DynamicBatching
from tpy.limits import (
    LOOP_EXECUTION_STREAK_MIN,
)
from tpy.units import NS_PER_S
from tpy_data.engine.channels import loop_rule
from tpy_data.executors.executor import ThreadExecutor

STREAK = LOOP_EXECUTION_STREAK_MIN


def depth() -> int:
    """The frames on this thread's stack. `inspect.stack` takes milliseconds."""
    count, frame = 0, inspect.currentframe()
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count


class Placed:
    """A backend whose instances may be executed in any thread, which notes the one of each batch."""

    def __init__(self) -> None:
        self.backend = ScriptedBackend(self._execute)
        self.backend.any_thread = True
        self.dies_at = -1
        self.on_loop: list[bool] = []
        self.depths: list[int] = []
        self._loop = threading.get_ident()

    def _execute(self, batch: ExecutionBatch) -> list[ExecutionResult]:
        self.depths.append(depth())
        self.on_loop.append(threading.get_ident() == self._loop)
        if batch.requests[0].inputs["IN"].array[0, 0] == self.dies_at:
            raise InstanceFailure("it died")
        return identity(batch)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Placed:
    for limit in ("QUICK_BATCHES_NS_MAX", "HAND_OVER_NS_MIN", "LOOP_TURN_NS_MAX"):
        monkeypatch.setattr(loop_rule, limit, 60 * NS_PER_S)  # however slow the machine
    monkeypatch.setattr(reactor, "LOOP_TURN_NS_MAX", 60 * NS_PER_S)
    return Placed()


async def _ask_often(r: Rig, count: int = 2 * STREAK) -> None:
    for number in range(count):
        assert values(await r.submit(request(value=number)).wait()) == [number] * 2


@pytest.mark.parametrize("batching", [None, dynamic()])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_quick_model_is_executed_on_the_loop(placed: Placed, batching: DynamicBatching | None, count: int) -> None:
    with trio.fail_after(30):
        async with rig(backend=placed.backend, executor=ThreadExecutor()) as r:
            await r.serve(config(dynamic_batching=batching, instance_group=instances(count)))
            await _ask_often(r, 2 * count * STREAK)
            (statistics,) = r.plane.statistics("m")
            assert statistics.execution_count == statistics.inference.success.count == 2 * count * STREAK
    assert not any(placed.on_loop[: count * STREAK])
    assert [number for number, on_loop in enumerate(placed.on_loop) if not on_loop][count * STREAK :] in ([], [63])


@pytest.mark.parametrize(
    "changes", [{}, {"dynamic_batching": dynamic()}, {"max_batch_size": 1}, {"instance_group": instances(4)}], ids=str
)
async def test_requests_that_come_together_are_executed_on_the_loop_too(placed: Placed, changes: dict[str, Any]) -> None:
    with trio.fail_after(30):
        async with rig(backend=placed.backend, executor=ThreadExecutor()) as r:
            await r.serve(config(**changes))
            for _ in range(8 * STREAK):
                for sink in [r.submit() for _ in range(4)]:
                    await sink.wait()
    assert all(placed.on_loop[-STREAK:])


async def test_an_instance_that_dies_on_the_loop_is_started_again(placed: Placed) -> None:
    placed.dies_at = STREAK + 1
    with trio.fail_after(30):
        async with rig(backend=placed.backend, executor=ThreadExecutor()) as r:
            await r.serve(config())
            for number in range(STREAK + 4):
                sink = r.submit(request(value=number))
                await sink.wait()
                assert sink.response.error is None or (number, sink.error) == (placed.dies_at, "Internal: it died")
            (statistics,) = r.plane.statistics("m")
            assert (statistics.inference.success.count, statistics.failures.backend) == (STREAK + 3, 1)
    assert placed.on_loop[STREAK : STREAK + 2] == [True, True]
    assert placed.on_loop[STREAK + 2] is False, "the new instance has a rule of its own"


async def test_an_ensemble_of_quick_models_needs_no_deep_stack(placed: Placed) -> None:
    """Each step is answered before it is given away."""
    chain = [step("m", f"T{number}", f"T{number + 1}") for number in range(1, 39)]
    with trio.fail_after(30):
        async with rig(backend=placed.backend, executor=ThreadExecutor()) as r:
            await r.serve(config())
            await r.serve(ensemble("e", step("m", "IN", "T1"), *chain, step("m", "T39", "OUT")))
            await _ask_often(r, STREAK)
            placed.depths.clear()
            assert values(await r.submit(request(model="e")).wait()) == [1, 1]
    assert placed.on_loop[STREAK:] == [True] * 40
    assert max(placed.depths) - min(placed.depths) < 20
