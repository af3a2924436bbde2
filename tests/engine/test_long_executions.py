"""An instance that executes for long: what the store, the statistics and the model's readiness say, until the batch is over."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.engine.fakes import Rig, config, instances, rig
from tpy.config import ModelConfig, validate
from tpy.config.model_config import ModelParameter
from tpy.messages import ModelState
from tpy.state import ObservedVersion


def seen(r: Rig) -> ObservedVersion:
    [version] = r.store.snapshot().observed.values()
    return version


def limited(seconds: str) -> dict[str, ModelParameter]:
    return {"TPY_NOT_READY_AFTER_SECONDS": ModelParameter(string_value=seconds)}


async def test_the_store_and_the_statistics_say_so(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=50_000) as r:
        await r.serve(config())
        sink = r.submit()
        remarks = []
        for now_s in (5, 11, 21, 41, 49):
            await trio.sleep(now_s - trio.current_time())
            [statistics] = r.plane.statistics("m")
            remarks.append((now_s, seen(r).remark.partition(": ")[2], statistics.executing_s))
        assert remarks == [
            (5, "", 0),
            (11, "instance 'm_0' for more than 10 s", pytest.approx(11, abs=1)),
            (21, "instance 'm_0' for more than 20 s", pytest.approx(21, abs=1)),
            (41, "instance 'm_0' for more than 40 s", pytest.approx(41, abs=1)),
            (49, "instance 'm_0' for more than 40 s", pytest.approx(49, abs=1)),
        ]
        assert seen(r).state is ModelState.READY
        assert await r.plane.check_ready("m"), "as in Triton"
        await sink.wait()
        await trio.sleep(1.1)
        assert seen(r).remark == ""
        assert r.plane.statistics("m")[0].executing_s == 0


async def test_instances_that_finish_batches_are_not_hanging(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=8_000) as r:
        await r.serve(config(parameters=limited("9")))
        for _ in range(10):
            r.submit()
        for _ in range(70):
            await trio.sleep(1)
            assert seen(r).remark == ""
            assert await r.plane.check_ready("m")


async def test_a_model_can_be_not_ready_then(autojump_clock: MockClock) -> None:
    """Only while none of its instances finishes anything, and only if its configuration says so."""
    async with rig(latency_ms=lambda name: 40_000) as r:
        await r.serve(config(instance_group=instances(2), parameters=limited("3")))
        first = r.submit()
        await trio.sleep(15)
        assert await r.plane.check_ready("m"), "the other instance has nothing to do"
        r.submit()
        await trio.sleep(2)
        assert await r.plane.check_ready("m")
        await trio.sleep(4.1)
        assert not await r.plane.check_ready("m")
        assert seen(r).state is ModelState.READY, "requests are taken"
        await first.wait()
        await trio.sleep(1.1)
        assert await r.plane.check_ready("m")


@pytest.mark.parametrize("value", ["soon", "0", "-1", "inf", "nan"])
def test_the_parameter_is_a_number_of_seconds(value: str) -> None:
    given: ModelConfig = config(parameters=limited(value))
    told = [str(problem) for problem in validate(given)]
    assert any(f"unexpected value '{value}' of parameter TPY_NOT_READY_AFTER_SECONDS" in text for text in told), told
