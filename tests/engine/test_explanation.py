"""Explanations in virtual time: the reasons why requests wait, the states of instances, and their last batches."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.engine.ensembles import CHAIN, MembersBackend, plus, serve_all, submit
from tests.engine.fakes import Rig, ScriptedBackend, config, dynamic, instances, request, rig
from tests.engine.sequences import of, oldest, sequence_backend, sequence_config
from tests.engine.test_rate_limiter import ANY, group, limited
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure
from tpy.config.model_config import QueuePolicy, ResponseCache
from tpy.errors import InvalidArgument, Unsupported
from tpy.limits import LATENCIES_KEPT_NS
from tpy.messages import EngineActivity, InstanceState, ModelExplanation, ModelState, QueueActivity, WaitReason
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.cache.options import LocalCacheOptions


def explained(r: Rig, model: str = "m") -> ModelExplanation:
    (explanation,) = r.plane.explain(model)
    # As it goes to a client: nothing in it that has no JSON form.
    return msgspec.json.decode(msgspec.json.encode(explanation), type=ModelExplanation)


def queue(r: Rig, model: str = "m") -> QueueActivity:
    return explained(r, model).activity.queue


async def test_a_model_that_nobody_asks_waits_for_nothing(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await r.serve(config(instance_group=instances(2)))
        said = explained(r)
    assert (said.activity, said.advice, said.limit) == (EngineActivity(queue=queue_of(said)), (), "nothing")
    assert queue_of(said).waits_for is WaitReason.NOTHING
    assert queue_of(said).waiting == 0
    assert [each.state for each in said.instances] == [InstanceState.IDLE] * 2
    assert said.recent.busy == 0


def queue_of(said: ModelExplanation) -> QueueActivity:
    return said.activity.queue


async def test_latencies_are_kept_while_somebody_asks(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config())
        await r.submit().wait()
        assert explained(r).latency.requests == 0  # nobody has asked
        for _ in range(3):
            await r.submit().wait()
        sinks = [r.submit(), r.submit()]
        for sink in sinks:
            await sink.wait()
        found = explained(r).latency
        assert found.requests == 5
        assert found.total.p50_ns == pytest.approx(100 * NS_PER_MS, rel=0.004)
        assert found.total.p99_ns == pytest.approx(200 * NS_PER_MS, rel=0.004)
        assert (found.queue.p50_ns, found.queue.p99_ns) == (0, pytest.approx(100 * NS_PER_MS, rel=0.004))
        await trio.sleep(LATENCIES_KEPT_NS / NS_PER_S)
        await r.submit().wait()
        assert explained(r).latency.requests == 0


async def test_counters_of_a_version_that_does_nothing_are_the_same_object(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config())
        await r.submit().wait()
        (before,) = r.plane.counters()
        assert (before.name, before.version, before.requests, before.executions, before.latency_ns) == (
            "m",
            1,
            1,
            1,
            100 * NS_PER_MS,
        )
        assert r.plane.counters()[0] is before
        await r.submit().wait()
        (after,) = r.plane.counters()
        assert (after.requests, after.inferences, after.compute_ns) == (2, 2, 200 * NS_PER_MS)


async def test_requests_that_wait_for_an_instance(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config(instance_group=instances(2)))
        for _ in range(5):
            r.submit(request())
        await trio.sleep(0.03)
        said = explained(r)
    assert queue_of(said).waits_for is WaitReason.INSTANCE
    assert (queue_of(said).executing, queue_of(said).waiting) == (2, 3)
    assert queue_of(said).oldest_ns == 30 * NS_PER_MS
    assert [(each.state, each.executing_ns, each.held) for each in said.instances] == [
        (InstanceState.EXECUTING, 30 * NS_PER_MS, 1)
    ] * 2


async def test_batches_are_remembered_with_their_times(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config(dynamic_batching=dynamic(), max_batch_size=8))
        first = r.submit(request(1, 2))
        others = [r.submit(request(1, 2)) for _ in range(4)]
        await first.wait()
        await trio.sleep(0.05)
        assert explained(r).instances[0].executing_ns == 50 * NS_PER_MS, "since the batch before it, not since the first"
        for sink in others:
            await sink.wait()
        said = explained(r)
    (instance,) = said.instances
    assert instance.recent[0].batch_size == 1
    assert sum(batch.batch_size for batch in instance.recent) == 5
    assert all(batch.end_ns - batch.begin_ns == 100 * NS_PER_MS for batch in instance.recent)
    assert instance.batches == len(instance.recent) == said.recent.batches
    assert instance.recent[-1].end_ns == said.now_ns
    assert sum(size * count for size, count in said.batch_sizes.items()) == 5
    assert said.recent.busy > 0


async def test_a_batch_that_waits_for_company(autojump_clock: MockClock) -> None:
    async with rig() as r:
        await r.serve(config(dynamic_batching=dynamic(delay_ms=100), max_batch_size=8))
        r.submit(request(1, 2))
        await trio.sleep(0.03)
        waiting = queue(r)
        await r.serve(config("p", dynamic_batching=dynamic(delay_ms=100, preferred_batch_size=(4,)), max_batch_size=8))
        r.submit(request(1, 2, model="p"))
        preferring = queue(r, "p")
    assert (waiting.waits_for, waiting.due_ns) == (WaitReason.BATCH_DELAY, 70 * NS_PER_MS)
    assert (preferring.waits_for, preferring.due_ns) == (WaitReason.PREFERRED_BATCH_SIZE, 100 * NS_PER_MS)


async def test_the_queue_has_its_priorities_apart(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=100) as r:
        policy = {2: QueuePolicy(max_queue_size=2)}
        batching = dynamic(priority_levels=2, default_priority_level=1, priority_queue_policy=policy)
        await r.serve(config(dynamic_batching=batching, max_batch_size=1))
        for priority in (1, 1, 2, 2):
            r.submit(request(1, 2, priority=priority))
            await trio.sleep(0.01)
        said = explained(r)
    assert [(each.priority, each.waiting, each.oldest_ns, each.size_max) for each in queue_of(said).levels] == [
        (1, 1, 30 * NS_PER_MS, 0),
        (2, 2, 20 * NS_PER_MS, 2),
    ]
    assert said.limit == "max_queue_size"
    assert "priority 2 is full" in said.advice[0]


async def test_an_instance_that_was_given_more_than_it_has_started(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config())
        for _ in range(3):
            await r.submit(request()).wait()
        for _ in range(2):
            r.submit(request())
        await trio.sleep(0.02)
        waiting = queue(r)
    assert (waiting.waits_for, waiting.executing, waiting.prefetched) == (WaitReason.INSTANCE, 1, 1)


async def test_the_rate_limiter_holds_a_batch_back(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=100, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 4))))
        await r.serve(limited("b", group(("R", 3))))
        r.submit(request(model="a"))
        r.submit(request(model="b"))
        await trio.sleep(0.01)
        said = explained(r, "b")
        assert queue(r, "a").waits_for is WaitReason.NOTHING
    assert said.limit == "rate_limiter"
    (resource,) = said.activity.resources
    assert (resource.name, resource.needed, resource.used, resource.supply) == ("R", 3, 4, 4)
    assert "4 of 4 of resource 'R' of device 0 are in use, and an execution needs 3" in said.advice[0]


async def test_a_sequence_that_the_rate_limiter_holds_back(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(), latency_ms=100, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 1))))
        await r.serve(sequence_config(instance_group=(group(("R", 1)),)))
        r.submit(request(model="a"))
        r.submit(of(1, start=True))
        await trio.sleep(0.01)
        said = explained(r)
    assert queue_of(said).waits_for is WaitReason.RATE_LIMITER
    assert [each.state for each in said.instances] == [InstanceState.HELD_BACK]


async def test_sequences_that_wait_for_slots(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend()) as r:
        await r.serve(sequence_config(oldest(candidates=2)))
        for number in (1, 2, 3):
            r.submit(of(number, start=True))
        await trio.sleep(0.01)
        said = explained(r)
    sequences = queue_of(said).sequences
    assert sequences is not None
    assert (sequences.live, sequences.waiting, sequences.slots) == (3, 1, 2)
    assert (said.limit, queue_of(said).oldest_ns) == ("sequence_slot", 10 * NS_PER_MS)
    assert "All 2 slots have a live sequence and 1 more wait" in said.advice[0]


async def test_an_ensemble_says_what_its_members_do(autojump_clock: MockClock) -> None:
    slow = {"b": 300}
    backend = MembersBackend({"a": plus(1), "b": plus(1)})
    async with rig(backend=backend, latency_ms=lambda worker: slow.get(worker.split("_")[0], 5)) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        for _ in range(3):
            submit(r)
        await trio.sleep(0.1)
        said = explained(r, "e")
    assert (said.batching.scheduler, said.instances) == ("ensemble", ())
    assert (queue_of(said).waits_for, queue_of(said).executing) == (WaitReason.MEMBER, 3)
    assert [(each.name, each.executing + each.waiting) for each in said.activity.members] == [("a", 0), ("b", 3)]
    assert said.activity.members[0].compute_ns == 5 * NS_PER_MS
    assert said.advice == ("2 requests wait for member 'b': its explanation says why.",)


async def test_the_response_cache_counts(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=100, cache=LocalCacheOptions(size_bytes=1 << 20)) as r:
        await r.serve(config(response_cache=ResponseCache(enable=True)))
        await r.submit(request()).wait()
        await r.submit(request()).wait()
        r.submit(request(value=2))
        r.submit(request(value=2))
        await wait_all_tasks_blocked()
        activity = explained(r).activity
    assert activity.cache is not None
    assert (activity.cache.hits, activity.cache.misses) == (1, 1)
    assert (activity.cache.waiting, activity.queue.waits_for) == (1, WaitReason.CACHE)


async def test_an_instance_that_failed(autojump_clock: MockClock) -> None:
    def break_down(batch: ExecutionBatch) -> list[ExecutionResult]:
        raise InstanceFailure("it broke")

    backend = ScriptedBackend()
    async with rig(backend=backend, load_ms=50) as r:
        await r.serve(config(instance_group=instances(1)))
        backend.execute = break_down
        await r.submit(request()).wait()
        await wait_all_tasks_blocked()
        said = explained(r)
    assert [(each.state, each.reason) for each in said.instances] == [(InstanceState.FAILED, "it broke")]
    assert (said.state, said.limit) == ("UNAVAILABLE", "no_instance")
    assert "executes nothing: it broke" in said.advice[0]


async def test_the_file_of_a_model_is_that_of_its_newest_version(autojump_clock: MockClock) -> None:
    folder = Path("repository/m")
    async with rig() as r:
        generation = r.want(config(default_model_filename="net.onnx"), (1, 2), directory=folder)
        for version in (1, 2):
            await r.wait_state(version, generation, ModelState.READY)
        assert r.plane.model_path("m") == r.plane.model_path("m", 2) == folder / "2" / "net.onnx"
        assert r.plane.model_path("m", 1) == folder / "1" / "net.onnx"
        with pytest.raises(InvalidArgument, match="version is not available for model 'm'"):
            r.plane.model_path("m", 3)
        with pytest.raises(InvalidArgument, match="'n' is not available"):
            r.plane.model_path("n")


async def test_an_ensemble_has_no_file(autojump_clock: MockClock) -> None:
    async with rig(backend=MembersBackend()) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        with pytest.raises(Unsupported, match="'e' is an ensemble: its steps are in its configuration"):
            r.plane.model_path("e")
