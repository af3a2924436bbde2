"""Credit: an instance that works on several batches at a time gets its next one from the dynamic batcher while it executes."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.engine.fakes import RecordingSink, ScriptedBackend, ScriptedInstance, ScriptedModel, config, dynamic, request, rig
from tpy.backend import InstancePlacement, LoadedModel, ModelContext, ModelInstance


class Overlapping(ScriptedInstance):
    """An `OverlappingInstance`."""

    credit = 2


class OverlappingModel(ScriptedModel):
    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return Overlapping(self.backend, placement.name)


class OverlappingBackend(ScriptedBackend):
    def load(self, context: ModelContext) -> LoadedModel:
        return OverlappingModel(self, (context.name, context.version, context.generation))


@pytest.mark.parametrize(("make", "sizes"), [(ScriptedBackend, [1, 3]), (OverlappingBackend, [1, 1, 2])])
async def test_a_batch_is_formed_for_an_instance_with_credit_left(
    autojump_clock: MockClock, make: type[ScriptedBackend], sizes: list[int]
) -> None:
    backend = make()
    async with rig(backend=backend, latency_ms=100) as running:
        await running.serve(config(dynamic_batching=dynamic()))
        sinks: list[RecordingSink] = []
        for _ in range(4):
            sinks.append(running.submit(request()))
            await trio.sleep(0.01)
        for sink in sinks:
            await sink.wait()
        assert [len(batch.requests) for batch in backend.batches] == sizes
        assert sinks[0].at_ms == 100
