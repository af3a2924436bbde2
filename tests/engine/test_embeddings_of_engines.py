"""Requests to engines for embeddings: they wait, end and are counted as those for text. In virtual time, with fake engines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.virtual_executor import VirtualExecutor
from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, QueuePolicy
from tpy.errors import Unavailable
from tpy.messages import InferenceRequest
from tpy.testing.fake_engine import FakeEngine, embedding_of
from tpy_data.generation.core.embedding import with_inputs_and_outputs

from .fakes import rig
from .test_engines import Served, Stream
from .virtual_engines import STEP_S, VirtualEngines, flag, text


@asynccontextmanager
async def served(make: Callable[[], FakeEngine] = FakeEngine, **changes: Any) -> AsyncIterator[Served]:
    async with trio.open_nursery() as nursery:
        engines = VirtualEngines(nursery, make, embeds=True)
        async with rig(backend=engines, executor=VirtualExecutor(nursery)) as plane:  # type: ignore[arg-type]  # another fake
            await plane.serve(with_inputs_and_outputs(ModelConfig(name="m", backend="fake", **changes)))
            yield Served(plane, engines)
        nursery.cancel_scope.cancel()


def asking(prompt: str, *flags: str, pooling: object = None, **fields: Any) -> InferenceRequest:
    document = json.dumps({"input": prompt, "pooling_params": pooling})
    return InferenceRequest(
        model_name="m", inputs=(text("embedding_request", document), *[flag(name) for name in flags]), **fields
    )


def outputs_of(stream: Stream) -> dict[str, Any]:
    assert stream.error == ""
    (response,) = [each for each in stream.responses if each.outputs]
    return {each.name: each.array.tolist() for each in response.outputs}


async def test_an_answer_is_one_response_as_json_or_as_numbers(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        as_text = here.submit(asking("one two"))
        as_numbers = here.submit(asking("one two", "return_embedding", "return_num_input_tokens", "return_num_output_tokens"))
        shorter = here.submit(asking("one two", "return_embedding", pooling={"dimensions": 2}))
        for stream in (as_text, as_numbers, shorter):
            await stream.ended.wait()
        (said,) = outputs_of(as_text).pop("text_output")
        assert json.loads(said) == embedding_of("one two")
        assert outputs_of(as_numbers) == {
            "embedding": embedding_of("one two"),
            "num_input_tokens": [2],
            "num_output_tokens": [0],
        }
        assert outputs_of(shorter) == {"embedding": embedding_of("one two")[:2]}


async def test_an_error_of_one_request_is_its_own(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        streams = [here.submit(each) for each in (asking("fail"), asking("word", pooling={"dimensions": 9}), asking("word"))]
        for stream in streams:
            await stream.ended.wait()
        assert [each.error for each in streams] == [
            "the prompt fails",
            "'dimensions' must be an integer from 1 to 4, got 9",
            "",
        ]


async def test_requests_wait_in_a_queue_with_a_bound_and_deadlines(autojump_clock: trio.testing.MockClock) -> None:
    queue = DynamicBatching(default_queue_policy=QueuePolicy(max_queue_size=2))
    async with served(lambda: FakeEngine(sequences=1), dynamic_batching=queue) as here:
        first = here.submit(asking("one"))
        second = here.submit(asking("two"))
        late = here.submit(asking("three", timeout_us=int(STEP_S * 500_000)))
        with pytest.raises(Unavailable, match="queue"):
            here.submit(asking("four"))
        for stream in (first, second, late):
            await stream.ended.wait()
        assert (first.error, second.error, late.error) == ("", "", "Request timeout expired")
        assert here.engines.instances[0].running_max <= 1


async def test_what_is_cancelled_never_reaches_the_engine(autojump_clock: trio.testing.MockClock) -> None:
    async with served(lambda: FakeEngine(sequences=1)) as here:
        first, gone = here.submit(asking("one")), here.submit(asking("two"))
        assert gone.handle is not None
        gone.handle.cancel()
        await first.ended.wait()
        await trio.sleep(3 * STEP_S)
        assert here.engine.load().running == 0
        assert not [each for each in gone.responses if each.outputs]


async def test_tokens_in_are_counted_and_none_out(autojump_clock: trio.testing.MockClock) -> None:
    async with served() as here:
        for stream in [here.submit(asking("one two three")) for _ in range(3)]:
            await stream.ended.wait()
        await trio.sleep(2 * STEP_S)
        (row,) = here.rig.plane.statistics("m")
        assert row.generation["prompt_tokens_total"] == 9
        assert row.generation["generation_tokens_total"] == 0
        assert row.generation["time_to_first_token_seconds_count"] == 0
        assert here.engines.value("tpy_llm_request_seconds") == 3
