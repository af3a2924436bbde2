"""MemoryWatch in virtual time: what it tells of an instance, and of the server's own process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from tests.engine.fakes import ScriptedBackend, ScriptedInstance, ScriptedModel, config, identity, rig
from tests.virtual_executor import VirtualExecutor
from tpy.backend import (
    ExecutionBatch,
    ExecutionResult,
    InstanceFailure,
    InstancePlacement,
    LoadedModel,
    ModelContext,
    ModelInstance,
)
from tpy.ids import ModelId
from tpy.messages import ModelCounters
from tpy.telemetry.metrics import render
from tpy.testing.trio_clock import TrioClock
from tpy.units import MIB
from tpy_data.engine.memory.memory_watch import MemoryWatch
from tpy_data.engine.serving.serving_table import Served
from tpy_data.schedulers.core.contract import CoreSnapshot


class Leaking(ScriptedInstance):
    size_bytes = 100 * MIB

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        self.size_bytes += MIB
        return super().execute(batch)

    def host_memory_bytes(self) -> int:
        return self.size_bytes


class LeakingModel(ScriptedModel):
    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return Leaking(self.backend, placement.name)


class LeakingBackend(ScriptedBackend):
    def load(self, context: ModelContext) -> LoadedModel:
        return LeakingModel(self, (context.name, context.version, context.generation))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_an_instance_that_leaks(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(backend=LeakingBackend()) as r, trio.open_nursery() as nursery:
        await r.serve(config())
        nursery.start_soon(r.plane.watch_memory)
        for minute in range(130):
            if minute == 20:
                assert warnings(caplog) == []
                [row] = r.plane.statistics("m")
                assert [each.leaks for each in row.memory_growths] == [False]
            await r.submit().wait()
            await trio.sleep(60)
        told = warnings(caplog)
        assert len(told) == 2, "once an hour"
        assert told[0].startswith(
            "instance 'm_0' of 'm' leaks memory: its process grew from 102 MiB to 127 MiB in 25 min and 25 requests, "
            "1,024,000 KiB per 1,000 requests. "
        )
        [row] = r.plane.statistics("m")
        page = render([row]).decode()
        assert 'tpy_model_memory_trend_bytes{model="m",version="1"} 1048576000\n' in page
        assert 'tpy_model_leaking_instances{model="m",version="1"} 1\n' in page
        [explained] = r.plane.explain("m")
        assert (explained.limit, explained.instances[0].memory) == ("memory", row.memory_growths[0])
        assert explained.advice[0].startswith("Instance 'm_0' leaks: its process grew from ")
        [seen] = r.store.snapshot().observed.values()
        assert seen.remark == "memory leaks: instance 'm_0'"
        await r.serve(config())  # a new copy has done nothing yet
        assert r.plane.statistics("m")[0].memory_growths == ()
        nursery.cancel_scope.cancel()


async def test_memory_is_given_back_once_while_there_are_no_requests(autojump_clock: MockClock) -> None:
    backend = KeepingBackend()
    async with rig(backend=backend, latency_ms=200_000) as r, trio.open_nursery() as nursery:
        await r.serve(config())
        nursery.start_soon(r.plane.watch_memory)
        await trio.sleep(600)
        assert backend.given_back_s == [], "there was nothing to do yet"
        for _ in range(2):
            await r.submit().wait()
        answered_s = trio.current_time()
        await trio.sleep(600)
        [given_back_s] = backend.given_back_s
        assert answered_s + 60 <= given_back_s <= answered_s + 120, "not while the second one executes, and a minute after it"
        await r.submit().wait()
        await trio.sleep(600)
        assert len(backend.given_back_s) == 2
        nursery.cancel_scope.cancel()


class Keeping(ScriptedInstance):
    backend: KeepingBackend

    def host_memory_bytes(self) -> int:
        return MIB

    def give_memory_back(self) -> None:
        self.backend.given_back_s.append(trio.current_time())


class KeepingModel(ScriptedModel):
    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        return Keeping(self.backend, placement.name)


class KeepingBackend(ScriptedBackend):
    def __init__(self) -> None:
        super().__init__()
        self.given_back_s: list[float] = []

    def load(self, context: ModelContext) -> LoadedModel:
        return KeepingModel(self, (context.name, context.version, context.generation))


async def test_an_instance_that_is_started_again_begins_anew(autojump_clock: MockClock) -> None:
    backend = LeakingBackend()
    async with rig(backend=backend) as r, trio.open_nursery() as nursery:
        await r.serve(config())
        nursery.start_soon(r.plane.watch_memory)

        async def pass_minutes(count: int) -> int:
            for _ in range(count):
                await r.submit().wait()
                await trio.sleep(60)
            return len(r.plane.statistics("m")[0].memory_growths)

        assert await pass_minutes(40) == 1
        backend.execute = lambda batch: fail()
        await r.submit().wait()
        backend.execute = identity
        assert await pass_minutes(10) == 0
        assert await pass_minutes(10) == 1
        assert r.plane.statistics("m")[0].memory_growths[0].first_bytes < 110 * MIB
        nursery.cancel_scope.cancel()


def fail() -> list[ExecutionResult]:
    raise InstanceFailure("gone")


@dataclass(eq=False)
class Model:
    """As much of a Served as the watch asks."""

    name: str
    requests: int = 0
    version: int = 1
    executing_engine: Engine = field(default_factory=lambda: Engine())

    @property
    def id(self) -> ModelId:
        return ModelId(self.name)

    def counters(self) -> ModelCounters:
        return ModelCounters(name=self.name, version=1, requests=self.requests)

    def processes(self) -> tuple[()]:
        return ()


class Engine:
    def snapshot(self) -> CoreSnapshot:
        return CoreSnapshot(queued=0, executing=0, idle_instances=1)


async def test_a_server_that_leaks(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, nursery: trio.Nursery) -> None:
    models, size_bytes, cached_bytes = [Model("a"), Model("b")], 0, 0
    watch = MemoryWatch(
        lambda: cast(list[Served], models),
        TrioClock(trio.lowlevel.current_clock()),
        VirtualExecutor(nursery),
        lambda: cached_bytes,
        lambda: 100 * MIB + size_bytes,
    )

    async def pass_minutes(count: int, leak: int, cache: int = 0) -> None:
        nonlocal size_bytes, cached_bytes
        for _ in range(count):
            models[-1].requests += 10
            size_bytes += leak + cache
            cached_bytes += cache
            await watch.look()
            await trio.sleep(60)

    await pass_minutes(100, 0, cache=5 * MIB)
    assert warnings(caplog) == [], "the response cache fills"
    await pass_minutes(80, MIB)
    told = warnings(caplog)
    assert len(told) == 1
    assert told[0].startswith("the server's process leaks memory: it grew from 100 MiB to ")
    assert told[0].endswith(". Models that run in it: 'b', 'a'")
    assert watch.server.growth is not None
    models += [Model(name) for name in "cdef"]
    await pass_minutes(1, MIB)
    assert watch.server.growth is None, "others are loaded: it begins anew"
    await pass_minutes(60, MIB)
    assert warnings(caplog)[1].endswith("'b', 'f', 'a', 'c', 2 more")
