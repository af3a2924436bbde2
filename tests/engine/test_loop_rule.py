"""Quick batches of sole requests are executed on the loop: when, and what becomes of them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import trio

from tests.engine.direct_channel import NO_INPUTS, Direct
from tests.engine.ensembles import ensemble, step
from tests.engine.fakes import Rig, ScriptedBackend, config, dynamic, identity, instances, request, rig, values
from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure
from tpy.config.model_config import DynamicBatching
from tpy.limits import (
    LOOP_EXECUTION_INPUT_BYTES_MAX,
    LOOP_EXECUTION_STREAK_MAX,
    LOOP_EXECUTION_STREAK_MIN,
    LOOP_EXECUTION_THREAD_EVERY,
    LOOP_TURN_NS_MAX,
    QUICK_BATCHES_NS_MAX,
)
from tpy.messages import DataType, Tensor
from tpy.units import NS_PER_S
from tpy_data.engine.channels import loop_rule
from tpy_data.engine.channels.channel import ThreadChannel
from tpy_data.engine.channels.loop_rule import LoopRule, SoleRequests
from tpy_data.engine.requests.batch import Batch
from tpy_data.executors.executor import ThreadExecutor

STREAK = LOOP_EXECUTION_STREAK_MIN


class OnLoop(Direct):
    """With a rule, one request at a time. `threads` has an L for each that was executed on the loop, else a T."""

    def __init__(self) -> None:
        self.sole = SoleRequests()
        super().__init__(LoopRule(self.sole))
        self.threads = ""

    def arrive(self, names: str, inputs: Mapping[str, Tensor] = NO_INPUTS) -> None:
        """As the engine gives a request that arrives."""
        self.sole.arriving = not self.worker.jobs
        self.give(names, inputs)
        self.sole.arriving = False

    def ask(self, *arrays: np.ndarray, datatype: DataType = DataType.FP32) -> None:
        """One request, up to its report."""
        self.arrive("a", {name: Tensor(name, datatype, array) for name, array in zip(("A", "B"), arrays, strict=False)})
        self.threads += "T" if self.worker.jobs else "L"
        while self.worker.jobs:
            self.worker.step()
        self.report()

    def ask_often(self, count: int) -> None:
        for _ in range(count):
            self.ask()


def test_sole_quick_requests_are_executed_on_the_loop_but_for_one_in_many() -> None:
    direct = OnLoop()
    direct.ask_often(2 * LOOP_EXECUTION_THREAD_EVERY)
    alike = "L" * (LOOP_EXECUTION_THREAD_EVERY - 1) + "T"
    assert direct.threads == "T" * STREAK + alike[STREAK:] + alike
    assert direct.reported == [["a"]] * len(direct.threads)


@pytest.mark.parametrize("slow_ns", [QUICK_BATCHES_NS_MAX + 1, LOOP_TURN_NS_MAX])
def test_after_a_slow_one_as_many_must_have_been_quick_as_before(slow_ns: int) -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.took_ns = [slow_ns, 1]
    direct.ask_often(STREAK + 2)
    assert direct.threads == "T" * STREAK + "L" + "T" * STREAK + "L"


def test_after_one_that_held_the_loop_up_more_must_have_been() -> None:
    direct = OnLoop()
    streak = STREAK
    for _ in range(6):
        direct.took_ns = [1]
        direct.ask_often(streak)
        direct.threads = ""
        while not direct.threads.endswith("L"):
            direct.ask()
        direct.took_ns = [LOOP_TURN_NS_MAX + 1, 1]
        while not direct.threads.endswith("LT"):
            direct.ask()
        streak = min(8 * streak, LOOP_EXECUTION_STREAK_MAX)
        direct.threads = ""
        direct.ask_often(streak - 2)
        assert "L" not in direct.threads
    assert streak == LOOP_EXECUTION_STREAK_MAX


def test_what_held_the_loop_up_is_forgotten_when_nothing_has_for_long() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.took_ns = [LOOP_TURN_NS_MAX + 1, 1]
    direct.ask_often(8 * STREAK)
    on_the_loop = 0
    while on_the_loop < 8 * 8 * STREAK:
        direct.threads = ""
        direct.ask()
        on_the_loop += direct.threads == "L"
    direct.took_ns = [QUICK_BATCHES_NS_MAX + 1, 1]
    direct.ask_often(1)
    direct.threads = ""
    direct.ask_often(STREAK + 2)
    assert direct.threads.count("L") >= 1, "as many as at first"


def test_larger_inputs_than_were_quick_go_to_the_thread() -> None:
    direct = OnLoop()
    small, larger = np.zeros(4, np.float32), np.zeros(5, np.float32)
    for _ in range(STREAK):
        direct.ask(small)
    direct.threads = ""
    for array in (small, larger, larger, small):
        direct.ask(array)
    assert direct.threads == "LTLL"
    huge = np.zeros(LOOP_EXECUTION_INPUT_BYTES_MAX + 1, np.uint8)
    direct.threads = ""
    for _ in range(3):
        direct.ask(huge, datatype=DataType.UINT8)
    assert direct.threads == "TTT"


def test_the_size_of_texts_is_that_of_their_bytes() -> None:
    direct = OnLoop()
    short, long = np.array([b"ab"], object), np.array([b"ab" * 100], object)
    for _ in range(STREAK):
        direct.ask(short, datatype=DataType.BYTES)
    direct.threads = ""
    for array in (short, long, long):
        direct.ask(array, datatype=DataType.BYTES)
    assert direct.threads == "LTL"


def test_no_dimension_of_an_input_is_larger_than_what_was_quick() -> None:
    direct = OnLoop()
    tall, flat, both = np.zeros((40, 1), np.float32), np.zeros((1, 40), np.float32), np.zeros((4, 10), np.float32)
    for _ in range(STREAK // 2):
        direct.ask(tall, flat)
        direct.ask(tall, np.zeros((1, 4), np.float32))
    direct.threads = ""
    direct.ask(tall, flat)
    direct.ask(both, flat)
    direct.ask(both, flat)
    direct.ask(tall[:, 0], flat)
    direct.ask(tall)
    assert direct.threads == "LTLTT"


def test_errors_are_not_taken_for_quick_executions() -> None:
    direct = OnLoop()
    direct.refuses = True
    direct.ask_often(2 * STREAK)
    direct.refuses = False
    direct.ask_often(STREAK + 1)
    assert direct.threads == "T" * 3 * STREAK + "L"


def test_a_request_that_did_not_just_arrive_goes_to_the_thread() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.give("b")
    assert direct.worker.jobs


def test_what_threads_of_other_instances_have_counts_until_it_is_over_or_their_channel_is_closed() -> None:
    direct, other = OnLoop(), OnLoop()
    other.channel.close()
    other.sole = direct.sole
    other.channel = ThreadChannel(other, other.worker, other.clock, on_loop=LoopRule(direct.sole))
    other.channel.open(other.take_report)
    direct.ask_often(STREAK)
    other.give("xyz")
    direct.ask()
    assert direct.threads[-1] == "T"
    other.worker.step(2)
    assert len(other.channel.revoke()) == 1
    assert direct.sole.with_threads == 0
    other.give("z")
    assert direct.sole.with_threads == 1
    other.channel.close()
    assert direct.sole.with_threads == 0
    other.worker.step()
    other.report()
    assert direct.sole.with_threads == 0
    direct.threads = ""
    direct.ask_often(STREAK)
    assert direct.threads == "T" * (STREAK - 1) + "L"


def test_nothing_is_executed_on_the_loop_once_the_channel_is_closed_and_no_request_that_nobody_waits_for() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.sole.arriving = True
    batch = Batch("m_0", (direct.ticket("gone"),))
    batch.tickets[0].abandoned = True
    direct.channel.give([batch])
    assert len(direct.worker.jobs) == 1
    direct.worker.step()
    direct.report()
    assert direct.executed[-1] == "a"
    direct.channel.close()
    direct.arrive("b")
    assert len(direct.worker.jobs) == 1


def test_requests_that_come_together_go_to_the_thread_together() -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.arrive("bc")
    assert len(direct.worker.jobs) == 1
    direct.worker.step(2)
    direct.report()
    direct.threads = ""
    direct.ask_often(STREAK)
    assert direct.threads == "T" * (STREAK - 1) + "L"


def test_a_request_that_comes_while_the_thread_executes_one_is_noticed() -> None:
    direct = OnLoop()
    direct.ask_often(LOOP_EXECUTION_THREAD_EVERY - 1)
    direct.arrive("b")
    assert direct.worker.jobs, "the one in many"
    direct.arrive("c")
    direct.worker.step(2)
    direct.report()
    direct.threads = ""
    direct.ask_often(STREAK)
    assert direct.threads == "T" * (STREAK - 1) + "L"


@pytest.mark.parametrize("unbegun", [False, True])
def test_an_instance_that_dies_on_the_loop_has_failed(unbegun: bool) -> None:
    direct = OnLoop()
    direct.ask_often(STREAK)
    direct.reported.clear()
    direct.fails_at, direct.fails_unbegun = "a", unbegun
    direct.arrive("a")
    assert direct.failures == ["it died"]
    assert direct.reported == [[] if unbegun else ["a"]]
    assert len(direct.channel.revoke()) == unbegun
    direct.arrive("b")
    assert direct.executed[-1] == "a", "nothing more is executed"


class Placed:
    """A backend whose instances may be executed in any thread, which notes the one of each batch."""

    def __init__(self) -> None:
        self.backend = ScriptedBackend(self._execute)
        self.backend.any_thread = True
        self.dies_at = -1
        self.on_loop: list[bool] = []
        self.depths: list[int] = []
        self._loop = threading.get_ident()

    def _execute(self, batch: ExecutionBatch) -> list[ExecutionResult]:
        self.depths.append(len(inspect.stack(0)))
        self.on_loop.append(threading.get_ident() == self._loop)
        if batch.requests[0].inputs["IN"].array[0, 0] == self.dies_at:
            raise InstanceFailure("it died")
        return identity(batch)


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> Placed:
    monkeypatch.setattr(loop_rule, "QUICK_BATCHES_NS_MAX", 60 * NS_PER_S)  # however slow the machine
    return Placed()


async def _ask_often(r: Rig, count: int = 2 * STREAK) -> None:
    for number in range(count):
        assert values(await r.submit(request(value=number)).wait()) == [number] * 2


@pytest.mark.parametrize("batching", [None, dynamic()])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_quick_model_is_executed_on_the_loop(placed: Placed, batching: DynamicBatching | None, count: int) -> None:
    with trio.fail_after(30):
        async with rig(backend=placed.backend, executor=ThreadExecutor()) as r:
            await r.serve(config(dynamic_batching=batching, instance_group=instances(count)))
            await _ask_often(r, 2 * count * STREAK)
            (statistics,) = r.plane.statistics("m")
            assert statistics.execution_count == statistics.inference.success.count == 2 * count * STREAK
    assert not any(placed.on_loop[: count * STREAK])
    assert [number for number, on_loop in enumerate(placed.on_loop) if not on_loop][count * STREAK :] in ([], [63])


@pytest.mark.parametrize(
    "changes", [{}, {"dynamic_batching": dynamic(), "max_batch_size": 1}, {"instance_group": instances(4)}], ids=str
)
async def test_requests_that_come_together_are_left_to_threads(placed: Placed, changes: dict[str, Any]) -> None:
    with trio.fail_after(30):
        async with rig(backend=placed.backend, executor=ThreadExecutor()) as r:
            await r.serve(config(**changes))
            for _ in range(4 * STREAK):
                for sink in [r.submit() for _ in range(4)]:
                    await sink.wait()
    assert not any(placed.on_loop)


async def test_an_instance_that_dies_on_the_loop_is_started_again(placed: Placed) -> None:
    placed.dies_at = STREAK + 1
    with trio.fail_after(30):
        async with rig(backend=placed.backend, executor=ThreadExecutor()) as r:
            await r.serve(config())
            for number in range(STREAK + 4):
                sink = r.submit(request(value=number))
                await sink.wait()
                assert sink.response.error is None or (number, sink.error) == (placed.dies_at, "Internal: it died")
            (statistics,) = r.plane.statistics("m")
            assert (statistics.inference.success.count, statistics.failures.backend) == (STREAK + 3, 1)
    assert placed.on_loop[STREAK : STREAK + 2] == [True, True]
    assert placed.on_loop[STREAK + 2] is False, "the new instance has a rule of its own"


async def test_an_ensemble_of_quick_models_needs_no_deep_stack(placed: Placed) -> None:
    """Each step is answered before it is given away."""
    chain = [step("m", f"T{number}", f"T{number + 1}") for number in range(1, 39)]
    with trio.fail_after(30):
        async with rig(backend=placed.backend, executor=ThreadExecutor()) as r:
            await r.serve(config())
            await r.serve(ensemble("e", step("m", "IN", "T1"), *chain, step("m", "T39", "OUT")))
            await _ask_often(r, STREAK)
            placed.depths.clear()
            assert values(await r.submit(request(model="e")).wait()) == [1, 1]
    assert placed.on_loop[STREAK:] == [True] * 40
    assert max(placed.depths) - min(placed.depths) < 20
