"""Versions from load to unload: failures, updates under load, resizing, dying instances, warmup, shutdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.engine.fakes import (
    RecordingSink,
    ScriptedBackend,
    config,
    dynamic,
    identity,
    instances,
    request,
    rig,
    values,
)
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure, InstancePlacement, ModelContext
from tpy.config.model_config import (
    InstanceGroup,
    InstanceKind,
    ModelInput,
    ModelOutput,
    SequenceBatching,
    SequenceState,
    TransactionPolicy,
)
from tpy.errors import Internal, NotFound, Unavailable
from tpy.ids import ModelId
from tpy.messages import DataType, ModelState
from tpy.testing.loop_guard import LoopGuard

UNAVAILABLE = ModelState.UNAVAILABLE


async def test_loads_and_unloads(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(load_ms=5) as r:
        r.want(config(instance_group=instances(3)))
        await trio.testing.wait_all_tasks_blocked()
        assert r.states() == {(1, 1): ("LOADING", "")}
        await r.wait_state(1, 1, ModelState.READY)
        assert sorted(r.backend.instances) == ["m_0_0", "m_0_1", "m_0_2"]
        assert trio.current_time() == 0.01, "load, then all instances at the same time"
        r.want(config(), ())
        await r.wait_state(1, 1, UNAVAILABLE)
        assert r.states() == {(1, 1): ("UNAVAILABLE", "unloaded")}
        assert (r.backend.instances, r.backend.loaded) == ([], [])
        r.writer.remove(ModelId("m"))
        await trio.testing.wait_all_tasks_blocked()
        assert r.states() == {}


def ragged() -> ModelInput:
    return ModelInput(name="IN", data_type=DataType.FP32, dims=(2,), allow_ragged_batch=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"backend": "nope"}, "Invalid argument: unable to find backend library for backend 'nope'"),
        ({"input": (ragged(),)}, "input[0].allow_ragged_batch"),
        ({"sequence_batching": SequenceBatching(state=(SequenceState(input_name="S"),))}, "sequence_batching.state"),
        ({"model_transaction_policy": TransactionPolicy(decoupled=True)}, "model_transaction_policy.decoupled"),
        ({"instance_group": (InstanceGroup(count=1, passive=True),)}, "is passive"),
        (
            {"output": (ModelOutput(name="OUT", data_type=DataType.FP32, dims=(2,), label_filename="no.txt"),)},
            "Internal: failed to open text file for read",
        ),
        (
            {"output": (ModelOutput(name="OUT", data_type=DataType.FP32, dims=(2,), label_filename="../../etc/passwd"),)},
            "must stay inside the model's directory",
        ),
    ],
)
async def test_a_failed_load_has_its_reason_in_the_store(
    autojump_clock: MockClock, loop_guard: LoopGuard, changes: dict[str, Any], reason: str
) -> None:
    async with rig() as r:
        r.want(config(**changes))
        await r.wait_state(1, 1, UNAVAILABLE)
        assert reason in r.states()[1, 1][1]
        await r.serve(config("other"))


async def test_a_failed_load_releases_everything_and_is_not_tried_again(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = ScriptedBackend()
    made: list[str] = []

    def second_fails(placement: InstancePlacement) -> None:
        made.append(placement.name)
        if placement.name.endswith("1"):
            raise Internal("no room")

    backend.on_create = second_fails
    async with rig(backend=backend) as r:
        r.want(config(instance_group=instances(3)))
        await r.wait_state(1, 1, UNAVAILABLE)
        assert r.states()[1, 1] == ("UNAVAILABLE", "Internal: no room")
        await trio.sleep(1000)
        assert sorted(made) == ["m_0_0", "m_0_1", "m_0_2"]
        assert (backend.instances, backend.loaded) == ([], [])
        with pytest.raises(NotFound, match=r"has no available versions; the reason: Internal: no room$"):
            r.submit()
        with pytest.raises(Unavailable, match=r"is not at ready state; the reason: Internal: no room$"):
            r.submit(request(model_version=1))


async def test_a_backend_that_raises_anything_at_load_is_contained(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = ScriptedBackend()

    def broken(context: ModelContext) -> None:
        raise KeyError("weights")

    backend.on_load = broken
    async with rig(backend=backend) as r:
        r.want(config())
        await r.wait_state(1, 1, UNAVAILABLE)
        assert r.states()[1, 1] == ("UNAVAILABLE", "Internal: KeyError: 'weights'")


async def test_an_update_under_load_fails_no_request(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=7, load_ms=20) as r:
        await r.serve(config(dynamic_batching=dynamic(3)))
        sinks: list[RecordingSink] = []

        async def client() -> None:
            for _ in range(200):
                sinks.append(r.submit())
                await trio.sleep(0.003)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(client)
            for _ in range(5):
                await trio.sleep(0.05)
                r.want(config(dynamic_batching=dynamic(3)))
        for sink in sinks:
            assert values(await sink.wait()) == [1, 1]
        await trio.testing.wait_all_tasks_blocked(0.001)
        assert [generation for _, _, generation in r.backend.loaded] == [6]
        assert r.states() == {(1, 6): ("READY", "")}


async def test_the_old_one_finishes_what_it_has_before_it_is_unloaded(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config())
        running, queued = r.submit(), r.submit()
        await r.serve(config())
        await trio.testing.wait_all_tasks_blocked()
        assert r.states() == {(1, 1): ("UNLOADING", ""), (1, 2): ("READY", "")}
        fresh = r.submit()
        await fresh.wait()
        assert fresh.at_ms == 100, "the new one does not wait for the old one"
        await queued.wait()
        assert (running.at_ms, queued.at_ms) == (100, 200)
        await trio.testing.wait_all_tasks_blocked(0.001)
        assert r.states() == {(1, 2): ("READY", "")}
        assert r.plane.statistics("m")[0].inference.success.count == 1, "statistics begin anew with a load"


async def test_a_failed_update_leaves_the_old_one_serving(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig() as r:
        await r.serve(config())
        r.backend.on_load = lambda context: (_ for _ in ()).throw(Internal("bad file"))
        r.want(config())
        await r.wait_state(1, 2, UNAVAILABLE)
        assert r.states() == {(1, 1): ("READY", ""), (1, 2): ("UNAVAILABLE", "Internal: bad file")}
        assert values(await r.submit().wait()) == [1, 1]
        r.backend.on_load = lambda context: None
        await r.serve(config())
        await trio.testing.wait_all_tasks_blocked()
        assert r.states() == {(1, 3): ("READY", "")}


async def test_an_old_version_goes_only_when_the_new_ones_serve(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(load_ms=10) as r:
        await r.serve(config())
        r.backend.on_load = lambda context: (_ for _ in ()).throw(Internal("bad")) if context.version == 3 else None
        r.want(config(), {2: 1, 3: 1})
        await r.wait_state(2, 1, ModelState.READY)
        await r.wait_state(3, 1, UNAVAILABLE)
        assert r.states()[1, 1] == ("READY", "")
        r.want(config(), {2: 1})
        await r.wait_state(1, 1, UNAVAILABLE)
        assert r.states() == {(1, 1): ("UNAVAILABLE", "unloaded"), (2, 1): ("READY", "")}
        assert r.plane.inference.resolve("m").description.version == 2


async def test_an_update_during_a_load_wins(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    made: list[str] = []
    backend = ScriptedBackend()
    backend.on_create = lambda placement: made.append(placement.name)
    async with rig(backend=backend, load_ms=100) as r:
        r.want(config())
        await trio.sleep(0.01)
        r.want(config())
        await r.wait_state(1, 2, ModelState.READY)
        await trio.sleep(1)
        assert r.states() == {(1, 2): ("READY", "")}
        assert made == ["m_0"], "the first one is dropped before it has instances"
        assert [generation for _, _, generation in r.backend.loaded] == [2]


async def test_only_the_instances_change_when_only_they_are_changed(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    loads: list[int] = []
    backend = ScriptedBackend()
    backend.on_load = lambda context: loads.append(context.generation)
    async with rig(backend=backend, latency_ms=50, load_ms=1) as r:
        await r.serve(config())
        r.want(config(instance_group=instances(3)), {1: 1})
        await r.store.wait_for(lambda s: all(o.config_revision == 2 for o in s.observed.values()))
        assert len(backend.instances) == 3
        assert r.plane.inference.config("m").instance_group[0].count == 3
        sinks = [r.submit() for _ in range(3)]
        start_ms = trio.current_time() * 1000
        r.want(config(instance_group=instances(1)), {1: 1})
        for sink in sinks:
            await sink.wait()
            assert sink.at_ms == pytest.approx(start_ms + 50)
        await trio.sleep(0.1)
        assert len(backend.instances) == 1
        backend.on_create = lambda placement: (_ for _ in ()).throw(Internal("no room"))
        r.want(config(instance_group=instances(2)), {1: 1})
        await r.store.wait_for(lambda s: any(o.applied_error for o in s.observed.values()))
        refused = next(iter(r.store.snapshot().observed.values()))
        assert (refused.applied_error, refused.refused_revision, refused.config_revision) == ("Internal: no room", 4, 3)
        assert values(await r.submit().wait()) == [1, 1]
    assert loads == [1]


async def test_a_change_is_applied_when_removed_instances_are_closed(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    """A load call waits for it: memory that the next model needs is free then. What is newer does not wait."""
    async with rig(load_ms=1000) as r:
        await r.serve(config(instance_group=instances(3)))
        began = trio.current_time()
        r.want(config(instance_group=instances(2)), {1: 1})
        await r.store.wait_for(lambda s: all(o.config_revision == 2 for o in s.observed.values()))
        assert trio.current_time() - began == pytest.approx(1)
        assert len(r.backend.instances) == 2
        r.want(config(instance_group=instances(1)), {1: 1})
        await trio.sleep(0.1)
        began = trio.current_time()
        r.want(config(instance_group=instances(1), max_batch_size=8), {1: 1})
        await r.store.wait_for(lambda s: all(o.config_revision == 4 for o in s.observed.values()))
        assert trio.current_time() - began < 1


async def test_a_dead_instance_is_replaced_with_growing_pauses(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = ScriptedBackend()
    created: list[float] = []
    broken = True

    def create(placement: InstancePlacement) -> None:
        created.append(trio.current_time())
        if broken and len(created) > 1:
            raise Internal("still broken")

    def die(batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        raise InstanceFailure("the process died")

    backend.on_create, backend.execute = create, die
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(config())
        hit, queued, short = r.submit(), r.submit(), r.submit(request(timeout_us=500_000))
        await hit.wait()
        assert hit.error == "Internal: the process died"
        await trio.testing.wait_all_tasks_blocked()
        assert r.states() == {(1, 1): ("UNAVAILABLE", "Internal: the process died")}
        with pytest.raises(Unavailable, match=r"^Request for unknown model: 'm' version 1 is not at ready state$"):
            r.submit()
        backend.execute = identity
        await short.wait()
        assert short.at_ms == 500
        await queued.wait()
        assert queued.at_ms == 1000, "nobody waits longer than for the first attempt: those who come now are refused, too"
        await trio.sleep(10)
        assert r.states()[1, 1] == ("UNAVAILABLE", "Internal: the process died")
        broken = False
        await r.wait_state(1, 1, ModelState.READY)
        assert values(await r.submit().wait()) == [1, 1]
        assert created == pytest.approx([0, 1, 3, 7, 15])
        assert backend.instances == ["m_0"]


async def test_an_instance_that_had_lived_is_replaced_at_once(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    """And not more than once a second, however often it dies."""
    created: list[float] = []
    backend = ScriptedBackend(lambda batch: die_on_negative(batch))
    backend.on_create = lambda placement: created.append(trio.current_time())
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(config())
        await trio.sleep(5)
        for _ in range(3):
            await r.submit(request(value=-1)).wait()
            await r.wait_state(1, 1, ModelState.READY)
            assert values(await r.submit().wait()) == [1, 1]
        assert created == pytest.approx([0, 5.01, 6.01, 7.01])


async def test_other_instances_go_on_when_one_dies(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10) as r:
        r.backend.execute = lambda batch: die_on_negative(batch)
        await r.serve(config(instance_group=instances(2)))
        sinks = [r.submit(request(value=value)) for value in (1, -1, 2, 3)]
        for sink in sinks:
            await sink.wait()
        assert [sink.response.error is None for sink in sinks] == [True, False, True, True]
        assert r.states() == {(1, 1): ("READY", "")}
        assert len(r.backend.instances) == 1
        await trio.sleep(1.1)
        assert len(r.backend.instances) == 2


def die_on_negative(batch: ExecutionBatch) -> Sequence[ExecutionResult]:
    if batch.requests[0].inputs["IN"].array[0, 0] < 0:
        raise InstanceFailure("lost")
    return identity(batch)


async def test_an_instance_that_is_to_go_while_it_is_replaced_gets_no_work(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    async with rig(latency_ms=10, load_ms=100) as r:
        r.backend.execute = die_on_negative
        await r.serve(config(instance_group=instances(2)))
        began = trio.current_time()
        await r.submit(request(value=-1)).wait()
        assert len(r.backend.instances) == 2, "the one that died is still being closed"
        await trio.sleep_until(began + 1.05)
        assert len(r.backend.instances) == 1, "its replacement is being made"
        r.want(config(instance_group=instances(1)), {1: 1})
        await r.store.wait_for(lambda s: all(o.config_revision == 2 for o in s.observed.values()))
        await trio.sleep(1)
        assert len(r.backend.instances) == 1
        with trio.fail_after(1):
            for sink in [r.submit() for _ in range(8)]:
                assert values(await sink.wait()) == [1, 1]


async def test_unloading_while_an_instance_is_being_replaced(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=10) as r:
        r.backend.execute = die_on_negative
        await r.serve(config())
        await r.submit(request(value=-1)).wait()
        await trio.sleep(0.5)
        r.want(config(), ())
        await trio.sleep(0.001)
        assert r.states() == {(1, 1): ("UNAVAILABLE", "unloaded")}
        assert (r.backend.instances, r.backend.loaded) == ([], [])


async def test_labels_are_part_of_the_description(autojump_clock: MockClock, loop_guard: LoopGuard, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes("cat\r\ndog\x0c\u2028\n\nbird".encode())
    output = ModelOutput(name="OUT", data_type=DataType.FP32, dims=(2,), label_filename="labels.txt")
    async with rig() as r:
        await r.serve(config(output=(output,)), directory=tmp_path)
        assert r.plane.inference.resolve("m").description.output_by_name["OUT"].labels == ("cat", "dog\x0c\u2028", "", "bird")


async def test_gpu_instances_go_to_the_cpu_where_there_is_none(
    autojump_clock: MockClock, loop_guard: LoopGuard, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig() as r:
        await r.serve(config(instance_group=(InstanceGroup(kind=InstanceKind.KIND_GPU, count=1),)))
        assert r.plane.inference.config("m").instance_group[0].kind is InstanceKind.KIND_CPU
    assert "no GPUs are available" in caplog.text


async def test_passive_instances_are_made_and_never_used(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    groups = (InstanceGroup(name="a", count=1), InstanceGroup(name="p", count=2, passive=True))
    async with rig(latency_ms=10) as r:
        await r.serve(config(instance_group=groups))
        assert sorted(r.backend.instances) == ["a_0", "p_0", "p_1"]
        sinks = [r.submit() for _ in range(3)]
        for sink in sinks:
            await sink.wait()
        assert sinks[-1].at_ms == 30
    assert r.backend.instances == []


async def test_namespaces_keep_models_of_one_name_apart(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(model_namespacing=True) as r:
        await r.serve(config(), namespace="/a")
        assert values(await r.submit().wait()) == [1, 1]
        r.want(config(), namespace="/b")
        await r.store.wait_for(lambda s: sum(o.state is ModelState.READY for o in s.observed.values()) == 2)
        with pytest.raises(Exception, match="There are 2 identifiers of model 'm' in global map"):
            r.submit()
        assert [s.namespace for s in r.plane.statistics("m")] == ["/a", "/b"]


async def test_shutdown_finishes_requests_and_unloads(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config())
        sinks = [r.submit() for _ in range(3)]
        r.plane.stop_accepting()
        with pytest.raises(Unavailable) as refused:
            r.submit(request(id="late"))
        assert str(refused.value) == (
            "[request id: late] Server is stopping, scheduler for model has stopped accepting new inference requests"
        )
    assert [values(sink.response) for sink in sinks] == [[1, 1]] * 3
    assert (r.backend.instances, r.backend.loaded) == ([], [])


async def test_shutdown_gives_up_at_the_exit_timeout(
    autojump_clock: MockClock, loop_guard: LoopGuard, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(latency_ms=60_000, exit_timeout_ms=500) as r:
        await r.serve(config())
        running, queued = r.submit(), r.submit()
    assert 0.5 <= trio.current_time() < 11
    assert queued.error.startswith("Unavailable: Server is stopping")
    assert queued.at_ms == 500
    assert running.error.startswith("Unavailable: Server is stopping")
    assert "not unloaded within the exit time-out" in caplog.text


async def test_a_load_that_hangs_blocks_nobody_else(
    autojump_clock: MockClock, loop_guard: LoopGuard, caplog: pytest.LogCaptureFixture
) -> None:
    hanging = iter([100_000_000])
    async with rig(load_ms=lambda worker: next(hanging, 1) if worker == "load" else 1, exit_timeout_ms=100) as r:
        r.want(config("stuck"))
        await trio.sleep(0.01)
        await r.serve(config("fine"))
        assert values(await r.submit(request(model="fine")).wait()) == [1, 1]
        await trio.sleep(100)
    assert caplog.text.count("still loading 'stuck' version 1; it may hang") == 1
