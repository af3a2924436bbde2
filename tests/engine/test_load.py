"""tpy_load: against a model of a queue in virtual time, and through the engine for every kind of scheduling."""

from __future__ import annotations

import random
from collections import deque
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.engine.ensembles import CHAIN, MembersBackend, serve_all
from tests.engine.fakes import Rig, config, dynamic, instances, rig
from tpy.config.model_config import QueuePolicy
from tpy.errors import Unavailable
from tpy.testing.loop_guard import LoopGuard
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_data.engine.requests.load import LoadMeter, WorkCounts


class Queue:
    """Requests that arrive at random, wait for one of the `servers`, which take up to `batch` of them at a time, and are served
    for `fixed_ms` and `each_ms` for each; a queue of `room` refuses more. Counted as the engine counts."""

    def __init__(self, servers: int, *, fixed_ms: float, each_ms: float, batch: int = 1, room: int = 10**9) -> None:
        self._ends_ms: list[tuple[float, float, int] | None] = [None] * servers
        self._fixed_ms, self._each_ms, self._batch, self._room = fixed_ms, each_ms, batch, room
        self._waiting: deque[float] = deque()
        self._busy_ms = 0.0
        self._executed = self._refused = 0

    def run(self, per_s: float, seconds: float, begin_s: float, chance: random.Random) -> None:
        now_ms, end_ms = begin_s * 1000, (begin_s + seconds) * 1000
        while True:
            now_ms += chance.expovariate(per_s / 1000) if per_s else seconds * 2000
            self._serve_until(min(now_ms, end_ms))
            if now_ms >= end_ms:
                return
            if len(self._waiting) >= self._room:
                self._refused += 1
            else:
                self._waiting.append(now_ms)
                self._serve_until(now_ms)

    def counts(self, now_s: float) -> WorkCounts:
        busy_ms = self._busy_ms + sum(1000 * now_s - begun_ms for begun_ms, _, _ in filter(None, self._ends_ms))
        return WorkCounts(round(busy_ms * NS_PER_MS), self._executed, self._refused, len(self._waiting))

    def _serve_until(self, now_ms: float) -> None:
        for number, running in enumerate(self._ends_ms):
            free_ms = 0.0
            while True:
                if running is not None:
                    begun_ms, free_ms, count = running
                    if free_ms > now_ms:
                        break
                    self._busy_ms += free_ms - begun_ms
                    self._executed += count
                    running = self._ends_ms[number] = None
                if not self._waiting:
                    break
                count = min(self._batch, len(self._waiting))
                begin_ms = max(free_ms, [self._waiting.popleft() for _ in range(count)][-1])
                running = self._ends_ms[number] = begin_ms, begin_ms + self._fixed_ms + self._each_ms * count, count


def loads(
    queue: Queue,
    per_s: float,
    *,
    servers: int,
    seconds: float = 120.0,
    every_s: float = 5.0,
    begin_s: float = 0.0,
    meter: LoadMeter | None = None,
) -> list[float]:
    """The values of a meter that is looked at in these intervals."""
    chance, meter = random.Random(7), meter or LoadMeter(0)
    shown, now_s = [], begin_s
    while now_s < begin_s + seconds:
        queue.run(per_s, every_s, now_s, chance)
        now_s += every_s
        shown.append(meter.look(queue.counts(now_s), servers, round(now_s * NS_PER_S)))
    return shown


@pytest.mark.parametrize("servers", [1, 4])
@pytest.mark.parametrize("room", [50, 10**9], ids=["short queue", "endless queue"])
@pytest.mark.parametrize("demand", [0.0, 0.1, 0.5, 0.9, 1.5, 3.0])
@pytest.mark.parametrize("every_s", [1.0, 15.0])
def test_it_is_the_demand(servers: int, room: int, demand: float, every_s: float) -> None:
    queue = Queue(servers, fixed_ms=20, each_ms=0, room=room)
    shown = loads(queue, demand * servers * 50, servers=servers, every_s=every_s)
    assert sum(shown[-4:]) / 4 == pytest.approx(demand, rel=0.12, abs=0.01)


@pytest.mark.parametrize("demand", [0.5, 2.0])
def test_batches_that_can_still_grow_are_less_than_full(demand: float) -> None:
    """Of what full batches can do: 8 requests in 20 + 8 ms."""
    queue = Queue(1, fixed_ms=20, each_ms=1, batch=8, room=200)
    shown = loads(queue, demand * 8 / 0.028, servers=1)
    if demand > 1:
        assert shown[-1] == pytest.approx(demand, rel=0.12)
    else:
        assert 0.5 < shown[-1] <= 1.02


def test_it_is_full_while_a_queue_is_worked_off_and_falls_then() -> None:
    queue, meter = Queue(1, fixed_ms=100, each_ms=0), LoadMeter(0)
    assert loads(queue, 20, servers=1, seconds=60, meter=meter)[-1] == pytest.approx(2.0, rel=0.12)
    full = loads(queue, 0, servers=1, seconds=50, begin_s=60, meter=meter)
    assert full[-1] == pytest.approx(1.0, abs=0.05)
    assert loads(queue, 0, servers=1, seconds=60, begin_s=110, meter=meter)[-1] < 0.05


def test_a_long_execution_is_full_before_it_has_ended() -> None:
    meter = LoadMeter(0)
    for second in range(1, 91):
        load = meter.look(WorkCounts(second * NS_PER_S, 0, 0, 0), 1, second * NS_PER_S)
    assert load == pytest.approx(1.0, abs=0.01)


def test_two_looks_at_once_are_one() -> None:
    meter = LoadMeter(0)
    first = meter.look(WorkCounts(NS_PER_S, 10, 0, 0), 1, NS_PER_S)
    assert meter.look(WorkCounts(NS_PER_S + 1, 11, 5, 9), 1, NS_PER_S + 1) == first


async def submitted(r: Rig, every_s: float, seconds: float) -> float:
    """The load after requests in these intervals."""
    load = 0.0
    for number in range(round(seconds / every_s)):
        r.submit()
        await trio.sleep(every_s)
        if number % 10 == 0:
            load = r.plane.statistics()[0].load or 0.0
    return load


@pytest.mark.parametrize(
    ("changes", "instances_count"),
    [({}, 1), ({"dynamic_batching": dynamic()}, 1), ({"instance_group": instances(2)}, 2)],
    ids=["default", "dynamic", "two instances"],
)
async def test_through_the_engine(
    autojump_clock: MockClock, loop_guard: LoopGuard, changes: dict[str, Any], instances_count: int
) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config(**changes))
        assert r.plane.statistics()[0].load == 0.0
        assert await submitted(r, 0.2, 100) == pytest.approx(0.5 / instances_count, abs=0.06)
        await trio.sleep(300)
        assert r.plane.statistics()[0].load == pytest.approx(0.0, abs=0.01)
        load = await submitted(r, 0.02, 100)
        if "dynamic_batching" in changes:  # a batch takes the time of one request here: five at a time are enough
            assert load == pytest.approx(1.0, abs=0.05)
        else:
            assert load == pytest.approx(5.0 / instances_count, rel=0.15)


async def test_what_is_refused_was_asked_for(autojump_clock: MockClock, loop_guard: LoopGuard) -> None:
    async with rig(latency_ms=100) as r:
        await r.serve(config(dynamic_batching=dynamic(default_queue_policy=QueuePolicy(max_queue_size=2)), max_batch_size=1))
        load = 0.0
        for number in range(3000):
            with suppress(Unavailable):
                r.submit()
            await trio.sleep(0.03)
            if number % 100 == 0:
                load = r.plane.statistics()[0].load or 0.0
        assert load == pytest.approx(3.3, rel=0.12)


async def test_an_ensemble_has_none(autojump_clock: MockClock) -> None:
    async with rig(backend=MembersBackend()) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        assert {each.name: each.load is None for each in r.plane.statistics()}["e"]
