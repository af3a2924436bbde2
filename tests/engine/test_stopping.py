"""Stopping versions and the data plane while loads, instances and requests are under way, in virtual time."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.engine.fakes import ScriptedBackend, config, dynamic, identity, instances, request, rig, values
from tests.engine.sequences import CAPABILITIES, sequence_backend, sequence_config
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure, InstancePlacement, LoadedModel, ModelContext
from tpy.config.model_config import TransactionPolicy
from tpy.errors import Internal, NotFound, Unavailable
from tpy.messages import ModelState, SequencePosition
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


class Dying(ScriptedBackend):
    """Every batch kills its instance; `healthy` says whether another one can be made then."""

    def __init__(self) -> None:
        super().__init__(self.die)
        self.healthy = False
        self.on_create = self.create

    def die(self, batch: ExecutionBatch) -> list[ExecutionResult]:
        raise InstanceFailure("lost")

    def create(self, placement: InstancePlacement) -> None:
        if self.batches and not self.healthy:
            raise Internal("no room")


async def test_nobody_waits_for_an_instance_that_cannot_be_made_again(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = Dying()
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(config())
        running, waiting = r.submit(), r.submit()
        await running.wait()
        assert (running.at_ms, running.error) == (10, "Internal: lost")
        await waiting.wait()
        assert waiting.at_ms == 1000, "the first attempt is made when a second has passed since the start"
        assert waiting.error == (
            "Unavailable: no instance of the model is left to run the request, and none could be started again"
        )
        assert r.plane.statistics("m")[0].inference.fail.count == 2
        backend.healthy, backend.execute = True, identity
        await r.wait_state(1, 1, ModelState.READY)
        assert values(await r.submit().wait()) == [1, 1]


async def test_a_dead_version_can_be_unloaded_with_requests_in_its_queue(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with rig(backend=Dying(), latency_ms=10) as r:
        await r.serve(config())
        sinks = [r.submit() for _ in range(3)]
        await sinks[0].wait()
        r.want(config(), ())
        await r.wait_state(1, 1, UNAVAILABLE)
        await trio.sleep(1.5)
        assert r.states() == {(1, 1): ("UNAVAILABLE", "unloaded")}
        assert [sink.at_ms for sink in sinks] == [10, 1000, 1000]


async def test_one_instance_that_lives_is_enough_for_the_queue(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = Dying()
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(config(instance_group=instances(2)))
        backend.execute = lambda batch: backend.die(batch) if values_of(batch) == [-1, -1] else identity(batch)
        deadly, others = r.submit(request(value=-1)), [r.submit() for _ in range(5)]
        await deadly.wait()
        assert deadly.error == "Internal: lost"
        await trio.sleep(5)
        assert [sink.at_ms for sink in others] == [10, 20, 30, 40, 50]
        assert r.states() == {(1, 1): ("READY", "")}


@pytest.mark.parametrize("first", ["m_0_0", "m_0_1"])
async def test_fewer_instances_are_those_that_live(autojump_clock: MockClock, loop_guard: LoopGuard, first: str) -> None:
    backend = Dying()
    async with rig(backend=backend, load_ms=lambda worker: 1 if worker == first else 2) as r:
        await r.serve(config(instance_group=instances(2)))
        backend.execute = lambda batch: backend.die(batch) if values_of(batch) == [-1, -1] else identity(batch)
        await r.submit(request(value=-1)).wait()
        await trio.sleep(0.1)
        assert backend.instances == [{"m_0_0": "m_0_1", "m_0_1": "m_0_0"}[first]], "the one that was made first is dead"
        r.want(config(instance_group=instances(1)), {1: 1})
        await r.store.wait_for(lambda s: all(seen.config_revision == 2 for seen in s.observed.values()))
        assert r.states() == {(1, 1): ("READY", "")}
        assert values(await r.submit().wait()) == [1, 1]


def values_of(batch: ExecutionBatch) -> list[float]:
    return list(batch.requests[0].inputs["IN"].array.ravel().tolist())


async def test_nothing_of_a_model_is_kept_after_its_unload(autojump_clock: MockClock) -> None:
    async with rig() as r:
        models: list[weakref.ref[object]] = []
        load = r.backend.load

        def remember(context: ModelContext) -> LoadedModel:
            model = load(context)
            models.append(weakref.ref(model))
            return model

        r.backend.load = remember  # type: ignore[method-assign]  # to see what it returns
        await r.serve(config())
        await r.submit().wait()
        r.want(config(), ())
        await r.wait_state(1, 1, UNAVAILABLE)
        await trio.testing.wait_all_tasks_blocked()
        gc.collect()
        assert [model() for model in models] == [None]


KINDS: dict[str, Any] = {
    "default": {},
    "dynamic": {"dynamic_batching": dynamic()},
    "ordered": {"dynamic_batching": dynamic(preserve_ordering=True)},
    "decoupled": {"model_transaction_policy": TransactionPolicy(decoupled=True)},
}


@pytest.mark.parametrize("kind", [*KINDS, "sequence"])
async def test_what_executes_for_ever_is_refused_at_the_end(autojump_clock: MockClock, loop_guard: LoopGuard, kind: str) -> None:
    """With what waits behind it; what comes of it later goes nowhere, and is no second answer."""
    sequence = kind == "sequence"
    backend = sequence_backend() if sequence else ScriptedBackend()
    backend.capabilities = CAPABILITIES
    async with rig(backend=backend, latency_ms=lambda worker: 5000) as r:
        await r.serve(sequence_config() if sequence else config(**KINDS[kind]))
        ids = (7, 7, 8) if sequence else (0, 0, 0)
        sinks = [
            r.submit(request(sequence=SequencePosition(correlation_id=id, start=number != 1)) if id else request())
            for number, id in enumerate(ids)
        ]
        await trio.sleep(1)
        assert not any(sink.responses for sink in sinks)
        r.plane.refuse_open()
        for sink in sinks:
            assert sink.error.endswith("Server is stopping, scheduler for model has stopped accepting new inference requests")
            assert sink.at_ms == 1000
        with pytest.raises(Unavailable):
            r.submit(request(sequence=SequencePosition(correlation_id=9, start=True)) if sequence else None)
        r.plane.refuse_open()
        await trio.sleep(20)
        assert r.plane.statistics("m")[0].pending_requests == 0
    assert all(len(sink.responses) == 1 for sink in sinks)
