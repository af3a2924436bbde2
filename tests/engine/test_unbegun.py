"""Instances that end before they have begun what they were given: that was not executed, and goes to another one or waits."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.engine.fakes import (
    RecordingSink,
    ScriptedBackend,
    ScriptedInstance,
    config,
    dynamic,
    identity,
    instances,
    request,
    rig,
    values,
)
from tests.engine.queued_fakes import QueuedBackend
from tests.engine.sequences import CAPABILITIES, sequence_backend, sequence_config
from tests.engine.test_process_channel import queued_rig
from tests.submitting import submit_to
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure, InstancePlacement, ModelInstance
from tpy.errors import Internal
from tpy.messages import ModelState, SequencePosition
from tpy.testing.loop_guard import LoopGuard
from tpy.units import NS_PER_S

KINDS: dict[str, Any] = {
    "default": {},
    "dynamic": {"dynamic_batching": dynamic()},
    "ordered": {"dynamic_batching": dynamic(preserve_ordering=True)},
}


class Ending(ScriptedBackend):
    """Its instances end by themselves: `end` one, and `execute` of that fails without having begun anything."""

    def __init__(self) -> None:
        super().__init__()
        self.living: list[EndingInstance] = []
        self.failed: list[int] = []
        """The number of requests in each batch that found its instance ended."""

    def load(self, context: Any) -> Any:
        model = super().load(context)
        model.create_instance = self.create
        return model

    def create(self, placement: InstancePlacement) -> ModelInstance:
        self.on_create(placement)
        return EndingInstance(self, placement.name)


class EndingInstance(ScriptedInstance):
    """A `WatchedInstance`. `fails` makes it fail the next batch that it is given."""

    end_reason = "it has ended"

    def __init__(self, backend: Ending, name: str) -> None:
        super().__init__(backend, name)
        self.ending = backend
        self.ours, self.theirs = socket.socketpair()
        self.fails = False
        backend.living.append(self)

    def end_fileno(self) -> int:
        return self.ours.fileno()

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        if self.fails:
            self.ending.failed.append(len(batch.requests))
            raise InstanceFailure("it has ended", begun=False)
        return super().execute(batch)

    def close(self) -> None:
        super().close()
        self.ending.living.remove(self)
        self.ours.close()
        self.theirs.close()


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("count", [1, 2])
async def test_what_was_not_begun_is_executed_once_in_order(
    autojump_clock: MockClock, loop_guard: LoopGuard, kind: str, count: int
) -> None:
    backend = Ending()
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(config(instance_group=instances(count), **KINDS[kind]))
        await trio.sleep(3)
        backend.living[0].fails = True
        sinks = [r.submit(request(value=number)) for number in range(30)]
        for number, sink in enumerate(sinks):
            assert values(await sink.wait()) == [number] * 2
        assert len(backend.failed) == 1
        (statistics,) = r.plane.statistics("m")
        assert (statistics.inference_count, statistics.failures.backend, statistics.inference.success.count) == (30, 0, 30)
        assert statistics.pending_requests == 0
        await r.wait_state(1, 1, ModelState.READY)
        assert len(backend.instances) == count
    executed = [item.inputs["IN"].array[0, 0] for batch in backend.batches for item in batch.requests]
    assert sorted(executed) == list(range(30))
    if count == 1:
        assert executed == list(range(30))


async def test_it_is_refused_when_no_other_instance_can_be_had(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = Ending()
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(config(dynamic_batching=dynamic()))
        backend.living[0].fails = True
        backend.on_create = lambda placement: (_ for _ in ()).throw(Internal("no more"))
        sinks = [r.submit(), r.submit(request(timeout_us=200_000))]
        assert "timeout" in (await _error(sinks[1])).lower()
        assert sinks[1].at_ms == 200
        assert "no instance of the model is left" in await _error(sinks[0])


async def _error(sink: Any) -> str:
    await sink.wait()
    return str(sink.error)


async def test_one_that_is_cancelled_while_it_waits_again_is_gone(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = Ending()
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(config(dynamic_batching=dynamic()))
        backend.living[0].fails = True
        gone = RecordingSink()
        handle = submit_to(r.plane.inference, request(), gone)
        other = r.submit(request(value=2))
        await trio.sleep(0.02)
        assert r.plane.statistics("m")[0].pending_requests == 2
        handle.cancel()
        assert values(await other.wait()) == [2, 2]
        assert not gone.responses
        assert len(backend.batches) == 1


async def test_a_sequence_is_lost_with_its_instance(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    """The instance's state of the sequence is gone, whether it had begun this request or not."""

    def fail(batch: ExecutionBatch) -> list[ExecutionResult]:
        raise InstanceFailure("it has ended", begun=False)

    async with rig(backend=sequence_backend(fail), latency_ms=10) as r:
        await r.serve(sequence_config())
        first = r.submit(request(sequence=SequencePosition(correlation_id=7, start=True)))
        assert await _error(first) == "Internal: it has ended"


async def test_a_sequence_whose_instance_was_gone_already_is_lost_with_the_reason(
    autojump_clock: MockClock, loop_guard: LoopGuard
) -> None:
    """Nobody has noticed yet that the worker is gone when it is given the batch."""
    backend = QueuedBackend(lambda: round(trio.current_time() * NS_PER_S))
    backend.capabilities = CAPABILITIES
    async with rig(backend=backend) as r:
        await r.serve(sequence_config())
        backend.living[0].dead = True
        sink = r.submit(request(sequence=SequencePosition(correlation_id=7, start=True)))
        assert await _error(sink) == "Internal: it died"


@pytest.mark.parametrize("kind", list(KINDS))
async def test_an_instance_that_ends_while_it_is_idle(autojump_clock: MockClock, loop_guard: LoopGuard, kind: str) -> None:
    """The model is not ready from that moment on, and the instance is replaced without a request."""
    backend = Ending()
    async with rig(backend=backend, load_ms=lambda worker: 50) as r:
        await r.serve(config(**KINDS[kind]))
        await trio.sleep(3)
        backend.living[0].theirs.close()
        await wait_all_tasks_blocked()
        assert r.states() == {(1, 1): ("UNAVAILABLE", "Internal: it has ended")}
        began_s = trio.current_time()
        await r.wait_state(1, 1, ModelState.READY)
        assert trio.current_time() - began_s < 0.2
        assert values(await r.submit().wait()) == [1, 1]


async def test_the_others_go_on_when_one_ends(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = Ending()
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(config(instance_group=instances(2)))
        await trio.sleep(3)
        ended = backend.living[0]
        ended.theirs.close()
        await wait_all_tasks_blocked()
        assert r.states() == {(1, 1): ("READY", "")}
        for number in range(10):
            assert values(await r.submit(request(value=number)).wait()) == [number] * 2
        assert ended not in backend.living
        assert len(backend.living) == 2


async def test_one_that_ends_in_the_middle_fails_what_it_had_begun(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    backend = Ending()

    def end(batch: ExecutionBatch) -> list[ExecutionResult]:
        if batch.requests[0].inputs["IN"].array[0, 0] == -1:
            backend.living[0].theirs.close()
            raise InstanceFailure("died of it")
        return identity(batch)

    backend.execute = end
    async with rig(backend=backend, latency_ms=10) as r:
        await r.serve(config())
        await trio.sleep(3)
        deadly, waiting = r.submit(request(value=-1)), r.submit(request(value=5))
        assert await _error(deadly) == "Internal: died of it"
        assert values(await waiting.wait()) == [5, 5]
        assert len(backend.living) == 1


@pytest.mark.parametrize("count", [1, 8])
async def test_batches_that_a_queued_instance_never_read(autojump_clock: MockClock, loop_guard: LoopGuard, count: int) -> None:
    async with queued_rig() as r:
        assert isinstance(r.backend, QueuedBackend)
        await r.warm()
        instance = r.instance
        instance.unread = True
        sinks = [r.submit(number) for number in range(count)]
        instance.die()
        await trio.sleep(1.5)
        for number, sink in enumerate(sinks):
            while not sink.responses:
                await r.step()
            assert values(sink.response) == [number] * 2
        assert r.instance is not instance
        assert r.plane.plane.statistics("m")[0].failures.backend == 0
        assert [value for value in r.backend.begun if value >= 0] == list(range(count)), "each once, in order"
