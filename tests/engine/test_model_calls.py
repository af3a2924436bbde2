"""Calls of models to the engine that serves them: what is refused at once, what is delivered, cancelled, slowed down."""

from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from typing import cast

import pytest
import trio

from tests.submitting import submit_to
from tpy.backend import Demand, Done, ExecutionRequest, WaitingBatch
from tpy.config.model_config import InstanceGroup, InstanceKind, ModelConfig, RateLimiter, RateLimiterResource, ResponseCache
from tpy.errors import TpyError, Unavailable
from tpy.limits import CALL_CIRCLE_CHECK_S
from tpy.messages import InferenceRequest, InferenceResponse, LoadRequest
from tpy.reactor import reactor_of_run
from tpy.services import LoadingService
from tpy_data.cache.options import LocalCacheOptions
from tpy_data.engine.caching.cached_request import CachedRequest
from tpy_data.engine.calls.model_calls import EngineCalls, ModelCall
from tpy_data.engine.requests.observed_request import ObservedRequest
from tpy_data.schedulers.core import Outcome
from tpy_data.schedulers.core.rate_limiter import Supply

from .fakes import RecordingSink, config, instances, request, rig, tensor, values


class Sink:
    """Remembers what came."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.refusals: list[TpyError] = []
        self.ended = trio.Event()

    def deliver(self, response: InferenceResponse) -> None:
        self.responses.append(response)
        if response.final:
            self.ended.set()

    def refuse(self, error: TpyError) -> None:
        self.refusals.append(error)
        self.ended.set()


async def test_a_call_is_a_request_like_others(autojump_clock: trio.testing.MockClock) -> None:
    async with rig(latency_ms=5) as running:
        await running.serve(config())
        sink = Sink()
        running.calls.infer(request(value=3), sink, streams=False)
        await sink.ended.wait()
        assert values(sink.responses[0]) == [3, 3]
        assert running.plane.statistics("m")[0].inference.success.count == 1


async def test_refusals(autojump_clock: trio.testing.MockClock) -> None:
    async with rig() as running:
        await running.serve(config())

        async def refused(asked: InferenceRequest) -> str:
            sink = Sink()
            running.calls.infer(asked, sink, streams=False)
            await sink.ended.wait()
            (error,) = sink.refusals
            return error.reason()

        not_ready = "Failed for execute the inference request. Model '{}' is not ready."
        assert await refused(request(model="x")) == f"Not found: {not_ready.format('x')}"
        assert await refused(request(model_version=7)) == f"Not found: {not_ready.format('m')}"
        wrong = InferenceRequest(model_name="m", inputs=(tensor(1, 2, name="WRONG"),))
        assert "unexpected inference input 'WRONG'" in await refused(wrong)
        running.plane.stop_accepting()
        assert "Server is stopping" in await refused(request())


async def test_a_cancelled_call_delivers_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with rig(latency_ms=50) as running:
        await running.serve(config())
        sinks = [Sink(), Sink()]
        calls = [running.calls.infer(request(), sink, streams=False) for sink in sinks]
        calls[1].cancel()  # before it began
        await trio.sleep(0.01)
        calls[0].cancel()
        calls[0].cancel()
        await trio.sleep(1)
        assert all(not sink.responses and not sink.refusals for sink in sinks)
        left = [weakref.ref(sink) for sink in sinks]
        del sinks, calls
        running.backend.batches.clear()
        gc.collect()
        assert not any(sink() for sink in left), "nothing waits for them any more"


async def test_calls_come_from_threads(autojump_clock: trio.testing.MockClock) -> None:
    async with rig() as running:
        await running.serve(config())
        sinks = [Sink() for _ in range(5)]
        threads = [
            threading.Thread(target=running.calls.infer, args=(request(value=number), sink), kwargs={"streams": False})
            for number, sink in enumerate(sinks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, sink in enumerate(sinks):
            await sink.ended.wait()
            assert values(sink.responses[0]) == [number, number]


async def test_readiness_and_a_plane_without_a_repository(autojump_clock: trio.testing.MockClock) -> None:
    async with rig() as running:
        await running.serve(config())
        said: list[bool | TpyError | None] = []
        for name, version in (("m", None), ("m", 1), ("m", 2), ("x", None)):
            running.calls.is_model_ready(name, version, said.append)
        await trio.testing.wait_all_tasks_blocked()
        assert said == [True, True, False, False]
        failures: list[TpyError | None] = []
        running.calls.load_model(LoadRequest(model_name="x"), failures.append)
        running.calls.unload_model("x", failures.append, unload_dependents=False)
        await trio.testing.wait_all_tasks_blocked()
        assert [str(failure) for failure in failures] == ["this server has no model repository that models could change"] * 2


class Repository:
    """Does with a model what its name says."""

    async def load(self, request: LoadRequest) -> None:
        if request.model_name == "refused":
            raise Unavailable("not now")
        if request.model_name == "bug":
            raise ZeroDivisionError("a bug")
        if request.model_name == "slow":
            await trio.sleep_forever()

    async def unload(self, model_name: str, *, unload_dependents: bool) -> None:
        await self.load(LoadRequest(model_name=model_name))


async def test_every_repository_call_is_answered_once(autojump_clock: trio.testing.MockClock) -> None:
    answers: list[tuple[str, str]] = []

    def done_for(name: str) -> Done:
        return lambda error: answers.append((name, "" if error is None else error.reason()))

    async with rig() as running, trio.open_nursery() as nursery:
        calls = EngineCalls(running.plane.inference, running.observers)
        calls.repository = cast(LoadingService, Repository())
        nursery.start_soon(calls.run)
        for name in ("fine", "refused", "bug", "slow"):
            calls.load_model(LoadRequest(model_name=name), done_for(name))
            calls.unload_model(name, done_for(name), unload_dependents=False)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(answers) == [
            *[("bug", "Internal: ZeroDivisionError: a bug")] * 2,
            *[("fine", "")] * 2,
            *[("refused", "Unavailable: not now")] * 2,
        ]
        nursery.cancel_scope.cancel()
    assert [answer for answer in answers if answer[0] == "slow"] == [("slow", f"Unavailable: {Outcome.STOPPING.value}")] * 2


class CheckedCall:
    """Counts how often it was looked at."""

    def __init__(self) -> None:
        self.checks = 0

    def check_circle(self) -> None:
        self.checks += 1


async def test_calls_that_batches_wait_for_are_checked_periodically(autojump_clock: trio.testing.MockClock) -> None:
    async with rig() as running, trio.open_nursery() as nursery:
        calls = EngineCalls(running.plane.inference, running.observers)
        nursery.start_soon(calls.run)
        await trio.sleep(10 * CALL_CIRCLE_CHECK_S)
        for _ in range(2):
            call, batch = CheckedCall(), WaitingBatch(())
            calls.note_waiting(cast(ModelCall, call), batch)
            await trio.sleep(3.5 * CALL_CIRCLE_CHECK_S)
            assert call.checks == 3
            calls.forget_waiting(cast(ModelCall, call), batch)
            await trio.sleep(10 * CALL_CIRCLE_CHECK_S)
            assert call.checks == 3
        nursery.cancel_scope.cancel()


async def test_a_call_that_waits_for_the_answer_of_its_own_batch_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """A model whose answers are cached asks itself what it was asked. An instance is free, but equal requests share one
    execution."""
    async with rig(latency_ms=5000, cache=LocalCacheOptions(size_bytes=1 << 20)) as running:
        await running.serve(config(response_cache=ResponseCache(enable=True), instance_group=instances(2)))
        answered = RecordingSink()
        handle = submit_to(running.plane.inference, request(value=4), answered)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(handle, CachedRequest)
        batch = WaitingBatch([cast(ExecutionRequest, handle.handle)])
        sink, other = Sink(), Sink()
        running.calls.infer(request(value=5), other, streams=False, waiting=batch)
        running.calls.infer(request(value=4), sink, streams=False, waiting=batch)
        await sink.ended.wait()
        (error,) = sink.refusals
        assert str(error).startswith("the call can never end: models wait for each other in a circle ('m' -> 'm')")
        await other.ended.wait()
        batch.completed = True
        assert values(await answered.wait()) == [4, 4]
        assert values(other.responses[0]) == [5, 5]


@pytest.mark.parametrize("verbose", [False, True])
async def test_a_call_to_the_only_instance_of_its_own_slow_model_is_refused(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, verbose: bool
) -> None:
    """The instance would hold the call behind the batch that waits for it. Also where each request is logged."""
    if verbose:
        caplog.set_level("DEBUG", "tpy_data.engine.requests.request_log")
    async with rig(latency_ms=5000) as running:
        await running.serve(config())
        await running.submit(request(value=1)).wait()
        answered = RecordingSink()
        handle = running.submit_for(answered, request(value=4))
        assert isinstance(handle, ObservedRequest) is verbose
        ticket = handle.handle if isinstance(handle, ObservedRequest) else handle
        await trio.testing.wait_all_tasks_blocked()
        batch, sink = WaitingBatch([cast(ExecutionRequest, ticket)]), Sink()
        running.calls.infer(request(value=5), sink, streams=False, waiting=batch)
        await sink.ended.wait()
        (error,) = sink.refusals
        assert "('m' -> 'm')" in str(error)
        assert trio.current_time() < 6, "at once"
        batch.completed = True
        assert values(await answered.wait()) == [4, 4]


async def test_a_call_that_needs_resources_of_its_caller_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    """The callee has a free instance, which may not run while the caller's does: that would be for ever."""

    def limited(name: str, count: int) -> ModelConfig:
        resources = (RateLimiterResource(name="R", count=count),)
        return config(
            name,
            instance_group=(
                InstanceGroup(name="g", kind=InstanceKind.KIND_CPU, count=1, rate_limiter=RateLimiter(resources=resources)),
            ),
        )

    async with rig(latency_ms=5000, rate_limit=Supply()) as running:
        for model in (limited("caller", 2), limited("modest", 2), limited("greedy", 3), limited("rich", 4)):
            await running.serve(model)
        answered = RecordingSink()
        handle = submit_to(running.plane.inference, request(model="caller", value=4), answered)
        await trio.testing.wait_all_tasks_blocked()
        batch = WaitingBatch([cast(ExecutionRequest, handle)])
        sinks = {name: Sink() for name in ("modest", "greedy")}
        for name, sink in sinks.items():
            running.calls.infer(request(model=name, value=5), sink, streams=False, waiting=batch)
        for sink in sinks.values():
            await sink.ended.wait()
        batch.completed = True
        assert values(sinks["modest"].responses[0]) == [5, 5]
        (error,) = sinks["greedy"].refusals
        assert "('caller' -> 'greedy' -> 'caller')" in str(error)
        assert values(await answered.wait()) == [4, 4]


class Reads:
    """A `DescriptorReader` that says this, each time one byte has come."""

    def __init__(self, descriptor: int, said: Demand) -> None:
        self.said = said
        self.told = 0
        self.heard = trio.Event()
        self.ended = 0
        self._descriptor = descriptor

    def ready(self) -> Demand:
        os.read(self._descriptor, 1)
        self.told += 1
        self.heard.set()
        return self.said

    def unwatched(self) -> None:
        self.ended += 1


@pytest.mark.parametrize(("said", "ended"), [(Demand.READ, 1), (Demand.PAUSE, 0)])
async def test_a_reader_that_says_stop_is_not_told_so(autojump_clock: trio.testing.MockClock, said: Demand, ended: int) -> None:
    """It may be watched again by then: it took that for the end of the new watch, and never used the loop again."""
    reading, writing = os.pipe()
    try:
        reader = Reads(reading, said)
        async with rig() as running:
            await running.serve(config())
            assert running.calls.watch(os.dup(reading), reader)
            os.write(writing, b".")
            await reader.heard.wait()
            await trio.testing.wait_all_tasks_blocked()
        assert (reader.told, reader.ended) == (1, ended)
    finally:
        os.close(reading)
        os.close(writing)


async def test_a_descriptor_for_which_the_system_has_no_room_is_left_to_others(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(polled: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reading, writing = os.pipe()
    reader = Reads(reading, Demand.READ)
    async with rig() as running:
        await running.serve(config())
        monkeypatch.setattr(reactor_of_run(), "add", full)
        watched = os.dup(reading)
        assert running.calls.watch(watched, reader)
        await trio.testing.wait_all_tasks_blocked()
        assert reader.ended == 1
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(watched)
    os.close(reading)
    os.close(writing)
