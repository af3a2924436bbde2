"""An instance that is started again has a number of its own: what is late of the one before does not concern it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock

from tests.engine.fakes import config, identity, request, rig, values
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure
from tpy_data.engine.versions.version_engine import InstanceSlot, VersionEngine


def lost_on_negative(batch: ExecutionBatch) -> Sequence[ExecutionResult]:
    if batch.requests[0].inputs["IN"].array[0, 0] < 0:
        raise InstanceFailure("lost")
    return identity(batch)


async def test_a_late_failure_is_of_nobody(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    slots: list[tuple[VersionEngine, InstanceSlot]] = []
    add_instance = VersionEngine.add_instance

    def noted(engine: VersionEngine, slot: InstanceSlot) -> None:
        slots.append((engine, slot))
        add_instance(engine, slot)

    monkeypatch.setattr(VersionEngine, "add_instance", noted)
    async with rig() as running:
        running.backend.execute = lost_on_negative
        await running.serve(config())
        await trio.sleep(5)
        await running.submit(request(value=-1)).wait()
        await trio.sleep(1)
        (engine, first), (_, second) = slots
        assert first.number != second.number
        first.failed("late")
        engine.remove_instance(first.number)
        await trio.sleep(5)
        assert running.states() == {(1, 1): ("READY", "")}
        assert engine.instance_count == 1
        assert values(await running.submit().wait()) == [1, 1]
        assert len(slots) == 2
