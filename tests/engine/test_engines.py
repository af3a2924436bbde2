"""Requests to engines: who waits, who is given to the engine, and how they end. In virtual time, with fake engines."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from tests.submitting import submit_to
from tests.virtual_executor import VirtualExecutor
from tpy.backend import InstanceFailure
from tpy.config.model_config import DynamicBatching, ModelParameter, QueuePolicy, SequenceBatching
from tpy.errors import InvalidArgument, Unavailable
from tpy.messages import InferenceRequest, InferenceResponse, ModelState
from tpy.services import RequestHandle
from tpy.testing.fake_engine import FakeEngine
from tpy_data.schedulers.core.rate_limiter import Supply

from .fakes import Rig, rig
from .virtual_engines import STEP_S, VirtualEngines, asking, engine_config


@dataclass
class Served:
    rig: Rig
    engines: VirtualEngines

    @property
    def engine(self) -> FakeEngine:
        """The newest one."""
        return self.engines.instances[-1].engine

    def submit(self, request: InferenceRequest) -> Stream:
        sink = Stream()
        sink.handle = submit_to(self.rig.plane.inference, request, sink)
        return sink


@dataclass
class Stream:
    """A sink of responses."""

    responses: list[InferenceResponse] = field(default_factory=list)
    handle: RequestHandle | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    at_s: float = 0.0

    def deliver(self, response: InferenceResponse) -> None:
        assert not self.ended.is_set(), "a response after the last one"
        self.responses.append(response)
        if response.final:
            self.at_s = trio.current_time()
            self.ended.set()

    @property
    def text(self) -> str:
        return "".join([texts(each)[0] for each in self.responses if each.outputs])

    @property
    def error(self) -> str:
        error = self.responses[-1].error if self.responses else None
        return "" if error is None else error.message


def texts(response: InferenceResponse) -> list[str]:
    (found,) = [each for each in response.outputs if each.name == "text_output"]
    return [bytes(each).decode() for each in found.array]


def tokens(count: int) -> str:
    return json.dumps({"max_tokens": count})


@asynccontextmanager
async def served(
    make: Callable[[], FakeEngine] = FakeEngine, rate_limit: Supply | None = None, **changes: Any
) -> AsyncIterator[Served]:
    async with trio.open_nursery() as nursery:
        engines = VirtualEngines(nursery, make)
        async with rig(backend=engines, executor=VirtualExecutor(nursery), rate_limit=rate_limit) as plane:  # type: ignore[arg-type]  # another fake
            await plane.serve(engine_config(**changes))
            yield Served(plane, engines)
        nursery.cancel_scope.cancel()


async def test_a_stream_brings_each_step(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        stream = here.submit(asking("one two three", tokens(4)))
        await stream.ended.wait()
        assert [texts(each)[0] for each in stream.responses] == ["one ", "two ", "three ", "one "]


async def test_without_a_stream_there_is_one_response_with_the_prompt(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        request = asking("one two", tokens(3), stream=False)
        request = InferenceRequest(model_name="m", inputs=request.inputs[:2])
        stream = here.submit(request)
        await stream.ended.wait()
        assert [texts(each) for each in stream.responses] == [["one twoone two one "]]


async def test_a_slow_reader_gets_its_deltas_joined_and_holds_up_nobody(autojump_clock: trio.testing.MockClock) -> None:
    async with served(lambda: FakeEngine(context=1000, blocks=1000)) as here:
        slow = here.submit(asking("a b", tokens(300)))
        assert slow.handle is not None
        slow.handle.pause()
        quick = here.submit(asking("a b", tokens(300)))
        await quick.ended.wait()
        assert len(quick.responses) == 300
        assert slow.responses == []
        slow.handle.resume()
        await slow.ended.wait()
        assert slow.text == quick.text
        assert len(slow.responses) < 100


async def test_requests_wait_until_the_engine_has_room_for_their_tokens(autojump_clock: trio.testing.MockClock) -> None:
    async with served(lambda: FakeEngine(sequences=8, blocks=10)) as here:  # 40 tokens
        streams = [here.submit(asking("word", tokens(15))) for _ in range(5)]
        for stream in streams:
            await stream.ended.wait()
        assert here.engines.instances[0].running_max == 2
        assert here.engine.load().preemptions == 0
        assert {stream.text for stream in streams} == {"word " * 15}


async def test_a_request_for_more_tokens_than_the_model_has_does_not_run_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    longest = {"max_model_len": ModelParameter(string_value="20")}
    async with served(lambda: FakeEngine(sequences=8, blocks=10, context=20), parameters=longest) as here:  # 40 tokens
        streams = [here.submit(asking("word", tokens(1_000_000))) for _ in range(4)]
        for stream in streams:
            await stream.ended.wait()
        assert here.engines.instances[0].running_max == 2


async def test_what_waits_may_be_cancelled_and_reordered(autojump_clock: trio.testing.MockClock) -> None:
    batching = DynamicBatching(priority_levels=2, default_priority_level=2)
    async with served(lambda: FakeEngine(sequences=1), dynamic_batching=batching) as here:
        running = here.submit(asking("first", tokens(5)))
        low, gone = here.submit(asking("low", tokens(1))), here.submit(asking("gone", tokens(1)))
        high = here.submit(asking("high", tokens(1), priority=1))
        assert gone.handle is not None
        gone.handle.cancel()
        for stream in (running, low, high):
            await stream.ended.wait()
        assert running.at_s < high.at_s < low.at_s
        assert gone.responses == []


async def test_the_queue_has_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    batching = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=2))
    async with served(lambda: FakeEngine(sequences=1), dynamic_batching=batching) as here:
        for _ in range(3):
            here.submit(asking("word", tokens(1)))
        with pytest.raises(Unavailable, match="Exceeds maximum queue size"):
            here.submit(asking("word", tokens(1)))


async def test_a_deadline_ends_a_request_in_the_queue_and_in_the_engine(autojump_clock: trio.testing.MockClock) -> None:
    async with served(lambda: FakeEngine(sequences=1)) as here:
        began_s = trio.current_time()
        running = here.submit(asking("word", tokens(90), timeout_us=200_000))
        waiting = here.submit(asking("word", tokens(90), timeout_us=100_000))
        after = here.submit(asking("word", tokens(1)))
        for stream in (running, waiting, after):
            await stream.ended.wait()
        assert waiting.error == running.error == "Request timeout expired"
        assert waiting.at_s - began_s == pytest.approx(0.1)
        assert running.at_s - began_s == pytest.approx(0.2)
        assert 0 < len(running.responses) - 1 <= 11
        assert after.text == "word "
        assert after.at_s - began_s < 0.2 + 3 * STEP_S


async def test_cancelling_frees_the_engine_within_a_step(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        stream = here.submit(asking("word", tokens(90)))
        await trio.sleep(5 * STEP_S)
        assert here.engine.load().kv_blocks_used > 0
        assert stream.handle is not None
        stream.handle.cancel()
        await trio.sleep(1.5 * STEP_S)  # the step that goes on, and the one after it
        assert here.engine.load().kv_blocks_used == 0


async def test_an_error_of_one_request_is_its_own(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        good = here.submit(asking("good", tokens(5)))
        refused = here.submit(asking("impossible", tokens(5)))
        fails = here.submit(asking("fail", tokens(5)))
        for stream in (good, refused, fails):
            await stream.ended.wait()
        assert (good.error, refused.error, fails.error) == ("", "'prompt' is impossible", "the prompt fails")
        assert good.text == "good " * 5


@pytest.mark.parametrize(
    ("sampling", "text"),
    [
        ("[]", "'sampling_parameters' is not a JSON object"),
        ("{", "'sampling_parameters' is not JSON"),
        ('{"n": 0}', "'n' must be an integer from 1 to 128, got 0"),
        ('{"max_tokens": 1.5}', "'max_tokens' must be an integer"),
    ],
)
async def test_bad_settings_are_refused_at_once(autojump_clock: trio.testing.MockClock, sampling: str, text: str) -> None:
    async with served() as here:
        with pytest.raises(InvalidArgument) as refusal:
            here.submit(asking("word", sampling))
        assert refusal.value.message.startswith(text)


async def test_engines_are_not_rate_limited(autojump_clock: trio.testing.MockClock) -> None:
    async with served(rate_limit=Supply()) as here:
        streams = [here.submit(asking("word", tokens(3))) for _ in range(3)]
        for stream in streams:
            await stream.ended.wait()
        assert {stream.text for stream in streams} == {"word " * 3}


async def test_what_waits_survives_the_engine(autojump_clock: trio.testing.MockClock) -> None:
    async with served(lambda: FakeEngine(sequences=1)) as here:
        first = here.engines.instances[0]
        first.failure = InstanceFailure("the engine has ended", begun=False)
        stream = here.submit(asking("word", tokens(2)))
        await stream.ended.wait()
        assert stream.text == "word word "
        assert len(here.engines.instances) == 2


async def test_sequence_batching_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        generation = here.rig.want(engine_config(sequence_batching=SequenceBatching()))
        await here.rig.wait_state(1, generation, ModelState.UNAVAILABLE)
        assert "'sequence_batching' of model 'm' is not supported" in here.rig.states()[1, generation][1]


async def test_a_thousand_requests_cancelled_and_timed_out_leave_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """16 in flight; a third is cancelled at some time, a third has deadlines: every one ends, and the numbers add up."""
    chance = random.Random(32)
    async with served(lambda: FakeEngine(sequences=16, blocks=400)) as here, trio.open_nursery() as nursery:
        streams, cancelled, bounded = [], [], []

        async def cancel_later(stream: Stream, after_s: float) -> None:
            await trio.sleep(after_s)
            assert stream.handle is not None
            if not stream.ended.is_set():
                stream.handle.cancel()
                cancelled.append(stream)
                stream.ended.set()

        for number in range(1000):
            timeout_us = chance.randrange(100_000, 20_000_000) if number % 3 == 1 else 0
            request = asking(f"story {number}", tokens(chance.randrange(1, 40)), timeout_us=timeout_us)
            stream = here.submit(request)
            streams.append(stream)
            if number % 3 == 0:
                nursery.start_soon(cancel_later, stream, chance.random() * 20)
            if timeout_us:
                bounded.append(stream)
        for stream in streams:
            await stream.ended.wait()
        await trio.sleep(2 * STEP_S)
        timed_out = [stream for stream in bounded if stream.error]
        succeeded = [stream for stream in streams if stream not in cancelled and not stream.error]
        assert len(cancelled) + len(timed_out) + len(succeeded) == 1000
        assert len(cancelled) > 100
        assert len(timed_out) > 100
        assert here.engines.instances[0].running_max == 16
        load = here.engine.load()
        assert (load.running, load.waiting, load.kv_blocks_used) == (0, 0, 0)
        engines = here.engines
        assert engines.value("tpy_llm_request_seconds") == len(succeeded)
        received = sum(len(each.responses) for each in succeeded)
        assert received <= engines.value("tpy_llm_generation_tokens_total")
        assert engines.value("tpy_llm_kv_cache_usage_ratio") == 0
        (row,) = here.rig.plane.statistics("m")
        assert row.inference.success.count == len(succeeded)
        assert row.inference.fail.count == len(cancelled) + len(timed_out)


async def test_the_numbers_of_an_engine_are_told_under_its_names_and_vllms(autojump_clock: trio.testing.MockClock) -> None:
    async with served(lambda: FakeEngine(sequences=1)) as here:
        streams = [here.submit(asking("one two three", tokens(10))) for _ in range(3)]
        await trio.sleep(3.5 * STEP_S)
        here.rig.plane.statistics("m")
        await trio.sleep(3 * STEP_S)
        (row,) = here.rig.plane.statistics("m")
        assert row.load is not None
        assert row.load > 0
        families = {family.name: family for family in here.rig.plane.custom_metrics()}
        (waiting,) = families["vllm:num_requests_waiting"].samples
        assert (dict(waiting.labels), waiting.value) == ({"model_name": "m", "engine": "0"}, 2)
        assert families["tpy_llm_requests_waiting"].samples[0].labels == {"model": "m", "version": "1"}
        for stream in streams:
            await stream.ended.wait()
        await trio.sleep(2 * STEP_S)
        (row,) = here.rig.plane.statistics("m")
        assert row.generation["generation_tokens_total"] == 30
        assert row.generation["prompt_tokens_total"] == 9
        assert row.generation["time_to_first_token_seconds_count"] == 3
        # The first one waits for no other, the second one for ten steps, the third one for twenty.
        assert row.generation["time_to_first_token_seconds_sum"] == pytest.approx(30 * STEP_S, abs=6 * STEP_S)
        assert (row.generation["requests_running"], row.generation["requests_waiting"]) == (0, 0)
