"""The rate limiter in virtual time: who runs when, and what comes back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.engine.fakes import RecordingSink, ScriptedBackend, config, dynamic, identity, request, rig, values
from tests.engine.sequences import of, sequence_backend, sequence_config
from tests.engine.test_unbegun import KINDS, Ending
from tests.submitting import submit_to
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure, InstancePlacement
from tpy.config.model_config import InstanceGroup, InstanceKind, RateLimiter, RateLimiterResource
from tpy.errors import Unavailable
from tpy.messages import ModelState
from tpy_data.engine.channels.channel import Report
from tpy_data.engine.channels.rate_limiter import RateLimiter as Limiter
from tpy_data.engine.loading.placing import PlacedInstance
from tpy_data.engine.requests.batch import Batch
from tpy_data.schedulers.core.rate_limiter import Supply

ANY = Supply()


def group(
    *resources: tuple[str, int], name: str = "g", count: int = 1, priority: int = 0, machine_wide: bool = False
) -> InstanceGroup:
    return InstanceGroup(
        name=name,
        kind=InstanceKind.KIND_CPU,
        count=count,
        rate_limiter=RateLimiter(
            resources=tuple(RateLimiterResource(name=key, count=n, global_=machine_wide) for key, n in resources),
            priority=priority,
        ),
    )


def limited(name: str, *groups: InstanceGroup, **changes: Any) -> Any:
    return config(name, instance_group=groups, **changes)


async def _all(*sinks: RecordingSink) -> list[float]:
    for sink in sinks:
        await sink.wait()
    return [sink.at_ms for sink in sinks]


async def test_two_models_share_a_resource_that_one_instance_needs_whole(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 4), count=2)))
        await r.serve(limited("b", group(("R", 4))))
        sinks = [r.submit(request(model=name)) for name in ("a", "a", "b", "a")]
        assert sorted(await _all(*sinks)) == [10, 20, 30, 40]


async def test_off_or_without_resources_everybody_runs(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10) as r:
        await r.serve(limited("a", group(("R", 4), count=2)))
        assert await _all(r.submit(request(model="a")), r.submit(request(model="a"))) == [10, 10]
    async with rig(latency_ms=10, rate_limit=ANY) as r:
        await r.serve(config("a", instance_group=(InstanceGroup(name="g", kind=InstanceKind.KIND_CPU, count=2),)))
        assert await _all(r.submit(request(model="a")), r.submit(request(model="a"))) == [20, 20]


async def test_what_there_is_may_be_more_than_one_instance_needs(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10, rate_limit=Supply(counts={("R", 0): 8})) as r:
        await r.serve(limited("a", group(("R", 4), count=3)))
        assert sorted(await _all(*(r.submit(request(model="a")) for _ in range(4)))) == [10, 10, 20, 20]


@pytest.mark.parametrize("kind", list(KINDS))
async def test_an_instance_that_ends_before_it_has_begun_gives_back_what_it_held(autojump_clock: MockClock, kind: str) -> None:
    backend = Ending()
    async with rig(backend=backend, latency_ms=10, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 1), count=2), **KINDS[kind]))
        await r.serve(limited("b", group(("R", 1))))
        for instance in backend.living[:2]:
            instance.fails = True
        sinks = [r.submit(request(model="a", value=number)) for number in range(3)]
        with trio.fail_after(60):
            await _all(*sinks, r.submit(request(model="b")))
        assert [values(sink.response) for sink in sinks] == [[number] * 2 for number in range(3)]
        assert len(backend.failed) == 2
    assert not backend.living


async def test_a_batch_is_formed_when_its_instance_may_run(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 1))))
        await r.serve(limited("b", group(("R", 1)), dynamic_batching=dynamic()))
        first = r.submit(request(model="a"))
        waiting = []
        for _ in range(3):
            waiting.append(r.submit(request(model="b")))
            await trio.sleep(0.002)
        await _all(first, *waiting)
        assert [len(batch.requests) for batch in r.backend.batches] == [1, 3]


async def test_the_queue_delay_is_kept_and_holds_no_resource(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 1))))
        await r.serve(limited("b", group(("R", 1)), dynamic_batching=dynamic(50)))
        delayed = r.submit(request(model="b"))
        assert await _all(r.submit(request(model="a"))) == [10]
        assert await _all(delayed) == [60]


async def test_deadlines_and_cancellation_while_waiting_for_a_resource(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=100, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 1))))
        await r.serve(limited("b", group(("R", 1))))
        first = r.submit(request(model="a"))
        late = r.submit(request(model="b", timeout_us=30_000))
        gone = RecordingSink()
        handle = submit_to(r.plane.inference, request(model="b"), gone)
        handle.cancel()
        assert await _all(late, first) == [30, 100]
        assert late.error == "Unavailable: Request timeout expired"
        assert await _all(r.submit(request(model="b"))) == [200]
        assert (len(r.backend.batches), gone.responses) == (2, [])


async def test_priority_two_runs_half_as_often(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=1, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 1), priority=1)))
        await r.serve(limited("b", group(("R", 1), priority=2)))
        sinks = {name: [r.submit(request(model=name)) for _ in range(30)] for name in "ab"}
        await trio.sleep(0.0305)
        answered = {name: sum(len(sink.responses) for sink in sinks[name]) for name in "ab"}
        assert answered["a"] in (20, 21)
        assert answered["b"] in (9, 10)
        await _all(*sinks["a"], *sinks["b"])


async def test_one_that_had_nothing_to_run_does_not_make_up_for_it(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=1, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 1))))
        await _all(*(r.submit(request(model="a")) for _ in range(50)))
        await r.serve(limited("b", group(("R", 1))))
        begun_ms = trio.current_time() * 1000
        sinks = [r.submit(request(model="b" if index < 20 else "a")) for index in range(21)]
        assert (await _all(sinks[-1]))[0] - begun_ms <= 3
        await _all(*sinks)


async def test_what_could_never_run_is_refused_at_load(autojump_clock: MockClock) -> None:
    async with rig(rate_limit=Supply(counts={("R", None): 4, ("G", 3): 2})) as r:
        await r.serve(limited("a", group(("R", 4))))
        await r.serve(limited("g", group(("G", 2), machine_wide=True)))
        for name, bad in (
            ("b", group(("R", 5))),
            ("c", group(("S", 1))),
            ("d", group(("R", 1), machine_wide=True)),
        ):
            r.want(limited(name, bad))
            await r.wait_state(1, 1, ModelState.UNAVAILABLE, name)
        prevents = "which will prevent scheduling of one or more model instances, the minimum required count is"
        assert [r.states(name)[1, 1][1] for name in "bcd"] == [
            f'Invalid argument: Resource count for "R" is limited to 4 {prevents} 5',
            f'Invalid argument: Resource count for "S" is limited to 0 {prevents} 1',
            'Invalid argument: Resource "R" is present as both global and device-specific resource in the model configuration.',
        ]
        await r.submit(request(model="a")).wait()
        assert r.backend.loaded == [("a", 1, 1), ("g", 1, 1)]


async def test_unloading_and_updating_give_everything_back(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10, rate_limit=ANY) as r:
        await r.serve(limited("a", group(("R", 1), count=2)))
        await r.serve(limited("b", group(("R", 1))))
        old = r.submit(request(model="a"))
        await r.serve(limited("a", group(("R", 2))))
        new = r.submit(request(model="a"))
        r.want(limited("a"), ())
        await _all(old, new)
        await r.wait_state(1, 2, ModelState.UNAVAILABLE, "a")
        before_ms = trio.current_time() * 1000
        assert await _all(r.submit(request(model="b"))) == [before_ms + 10]


async def test_a_resize_changes_what_instances_need(autojump_clock: MockClock) -> None:
    async with rig(latency_ms=10, rate_limit=Supply(counts={("R", 0): 2})) as r:
        await r.serve(limited("a", group(("R", 2), count=2)))
        r.want(limited("a", group(("R", 1), count=2)), {1: 1})
        await r.store.wait_for(lambda s: any(o.config_revision == 2 for o in s.observed.values()))
        start_ms = trio.current_time() * 1000
        assert await _all(r.submit(request(model="a")), r.submit(request(model="a"))) == [start_ms + 10] * 2
        r.want(limited("a", group(("R", 3), count=2)), {1: 1})
        await r.store.wait_for(lambda s: any(o.refused_revision == 3 for o in s.observed.values()))
        start_ms = trio.current_time() * 1000
        assert await _all(r.submit(request(model="a")), r.submit(request(model="a"))) == [start_ms + 10] * 2


async def test_an_instance_that_dies_gives_back_what_it_held(autojump_clock: MockClock) -> None:
    died = []

    def execute(batch: ExecutionBatch) -> list[ExecutionResult]:
        if not died:
            died.append(1)
            raise InstanceFailure("gone")
        return identity(batch)

    async with rig(latency_ms=10, rate_limit=ANY, backend=ScriptedBackend(execute)) as r:
        await r.serve(limited("a", group(("R", 1))))
        await r.serve(limited("b", group(("R", 1))))
        failed, other = r.submit(request(model="a")), r.submit(request(model="b"))
        assert await _all(failed, other) == [10, 20]
        await r.wait_state(1, 1, ModelState.READY, "a")
        await r.submit(request(model="a")).wait()
        await r.submit(request(model="b")).wait()


async def test_batches_of_sequences_wait_until_their_instance_may_run(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(), latency_ms=10, load_ms=10, rate_limit=ANY) as r:
        sequences = sequence_config(instance_group=(group(("R", 1), count=2),))
        await r.serve(sequences)
        await r.serve(limited("other", group(("R", 1))))
        begun_ms = trio.current_time() * 1000
        sinks = [r.submit(of(7, 1, start=True)), r.submit(of(8, 2, start=True)), r.submit(request(model="other"))]
        follow = [r.submit(of(7, 3)), r.submit(of(8, 4, end=True))]
        assert sorted(at_ms - begun_ms for at_ms in await _all(*sinks)) == [10, 20, 30]
        assert [values(sink.response)[0] for sink in (sinks[0], sinks[1], *follow) if await sink.wait()] == [1, 2, 3, 4]

        last, beside = r.submit(of(7, 5, end=True)), r.submit(request(model="other"))
        r.want(sequences, ())
        begun_ms = trio.current_time() * 1000
        assert sorted(at_ms - begun_ms for at_ms in await _all(last, beside)) == [10, 20]
        await r.wait_state(1, 1, ModelState.UNAVAILABLE, "m")
        assert await _all(r.submit(request(model="other")))


async def test_a_resize_of_sequences_waits_for_what_waits_for_resources(autojump_clock: MockClock) -> None:
    async with rig(backend=sequence_backend(), latency_ms=10, load_ms=10, rate_limit=ANY) as r:
        await r.serve(sequence_config(instance_group=(group(("R", 1), count=3),)))
        sinks = [r.submit(of(number, number, start=True, end=True)) for number in (7, 8, 9)]
        r.want(sequence_config(instance_group=(group(("R", 1), count=1),)), {1: 1})
        for sink in sinks:
            await sink.wait()
        assert [values(sink.response)[0] for sink in sinks] == [7, 8, 9]
        await r.store.wait_for(lambda s: any(o.config_revision == 2 for o in s.observed.values()))
        await r.submit(of(5, 5, start=True, end=True)).wait()


async def test_a_random_history_leaks_no_resource(autojump_clock: MockClock) -> None:
    chance = random.Random(11)
    failures = 0

    def execute(batch: ExecutionBatch) -> list[ExecutionResult]:
        nonlocal failures
        if chance.random() < 0.02:
            failures += 1
            raise InstanceFailure("gone")
        return identity(batch)

    models = {
        "a": limited("a", group(("R", 2), count=2), group(("R", 1), ("S", 1), name="h")),
        "b": limited("b", group(("S", 2), count=2, priority=3), dynamic_batching=dynamic(2)),
        "c": limited("c", group(("G", 1), count=2, machine_wide=True)),
    }
    supply = Supply(counts={("R", 0): 3, ("S", None): 2, ("G", 0): 1})
    async with rig(latency_ms=3, rate_limit=supply, backend=ScriptedBackend(execute)) as r:
        for model in models.values():
            await r.serve(model)
        sinks: list[RecordingSink] = []
        cancelled: list[RecordingSink] = []
        for step in range(400):
            name = chance.choice("abc")
            sink = RecordingSink()
            try:
                sent = request(model=name, timeout_us=chance.choice((0, 0, 0, 5000)))
                handle = submit_to(r.plane.inference, sent, sink)
            except Unavailable:
                await trio.sleep(1)  # all instances of the model have failed
                continue
            sinks.append(sink)
            if chance.random() < 0.2:
                await trio.sleep(chance.random() * 0.01)
                if not sink.responses:
                    handle.cancel()
                    cancelled.append(sink)
            elif chance.random() < 0.5:
                await trio.sleep(chance.random() * 0.004)
            if step % 100 == 99:
                await r.serve(models[name])  # beside the old copy, which drains
        await trio.sleep(300)
        assert all(len(sink.responses) == (sink not in cancelled) for sink in sinks)
        assert failures
        chance.seed(0)
        for name in "abc":  # each alone takes all that there is of something
            begun_ms = trio.current_time() * 1000
            (at_ms,) = await _all(r.submit(request(model=name)))
            assert at_ms - begun_ms <= 6


class StoppedChannel:
    """Keeps its batches until the test finishes them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.report: Report = lambda batches, failure: None

    def open(self, report: Report) -> None:
        self.report = report

    async def run(self) -> None:
        pass

    def give(self, batches: Sequence[Batch]) -> None:
        self.batches.extend(batches)

    def revoke(self) -> Sequence[Batch]:
        return ()

    def close(self) -> None:
        pass

    def finish(self) -> None:
        self.report([self.batches.pop(0)], None)


def _placed(*resources: tuple[str, int]) -> PlacedInstance:
    placement = InstancePlacement(name="i", group="g", kind=InstanceKind.KIND_CPU, device_id=0)
    return PlacedInstance(placement, passive=False, limits=group(*resources).rate_limiter)


async def test_what_a_closed_version_still_holds_goes_to_who_waits() -> None:
    limiter = Limiter(ANY)
    lent: list[tuple[str, int]] = []
    gates = {}
    for name in "ab":
        gate = gates[name] = limiter.open_gate(name)
        with gate.change([_placed(("R", 1))]):
            gate.take(lambda number, name=name: lent.append((name, number)))
            gate.enter(1, _placed(("R", 1)), StoppedChannel())
            gate.add(1)
            gate.want(True)
    limiter.grant()
    assert lent == [("a", 1)]
    gates["a"].close()
    assert lent == [("a", 1), ("b", 1)]


async def test_an_instance_leaves_when_what_waits_in_its_channel_is_over(autojump_clock: MockClock) -> None:
    limiter = Limiter(ANY)
    channels: list[StoppedChannel] = []
    done: list[str] = []
    for name in "ab":
        gate = limiter.open_gate(name)
        with gate.change([_placed(("R", 1))]):
            channels.append(StoppedChannel())
            gated = gate.enter(1, _placed(("R", 1)), channels[-1])
            gated.open(lambda batches, failure, name=name: done.append(name))
            gated.give([Batch(name, ())])
    assert [len(channel.batches) for channel in channels] == [1, 0]
    assert [gate.keeps_back(1)] == [True]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.leave, 1)
        await wait_all_tasks_blocked()
        channels[0].finish()
        assert done == ["a"]
        assert len(channels[1].batches) == 1, "its batch runs before it leaves"
        await wait_all_tasks_blocked()
        assert nursery.child_tasks
        channels[1].finish()
    assert limiter.used() == {}


async def test_an_instance_waits_for_the_batch_that_runs_before_it_leaves(autojump_clock: MockClock) -> None:
    gate, channel = Limiter(ANY).open_gate("a"), StoppedChannel()
    with gate.change([_placed(("R", 1))]):
        gated = gate.enter(1, _placed(("R", 1)), channel)
    gated.open(lambda batches, failure: None)
    gated.give([Batch("a", ()), Batch("a", ())])
    assert not gate.keeps_back(1), "what waits behind a batch that runs is not kept back"
    channel.finish()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gate.leave, 1)
        await wait_all_tasks_blocked()
        assert nursery.child_tasks
        channel.finish()


async def test_what_waits_for_resources_is_taken_back(autojump_clock: MockClock) -> None:
    gate, channel = Limiter(ANY).open_gate("a"), StoppedChannel()
    with gate.change([_placed(("R", 1))]):
        gated = gate.enter(1, _placed(("R", 1)), channel)
    gated.open(lambda batches, failure: None)
    gated.give([Batch("a", ()), Batch("a", ()), Batch("a", ())])
    assert (len(channel.batches), len(gated.revoke())) == (1, 2)
    channel.finish()
    assert channel.batches == []
    await gate.leave(1)


async def test_an_instance_whose_batches_are_taken_back_may_leave(autojump_clock: MockClock) -> None:
    limiter = Limiter(ANY)
    for name in "ab":
        gate = limiter.open_gate(name)
        with gate.change([_placed(("R", 1))]):
            gated = gate.enter(1, _placed(("R", 1)), StoppedChannel())
        gated.open(lambda batches, failure: None)
        gated.give([Batch(name, ())])
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.leave, 1)
            await wait_all_tasks_blocked()
            assert len(gated.revoke()) == 1
