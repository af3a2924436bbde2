"""Engines in worker processes: requests, cancellation, slow readers, and how an engine's end is the worker's."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from tests.e2e.waiting import wait_until
from tpy.backend import BackendSettings, ExecutionResult, InstanceFailure, InstancePlacement, ModelContext
from tpy.backend.engine import EngineLimits
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelParameter
from tpy.errors import TpyError
from tpy.messages import DataType, RegionFacts, RegionKind, Tensor
from tpy.regions import CountedRegion, RegionArray, RegionCopies, SegmentRegion
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.testing.requests import RecordingSender, SampleRequest, batch_of
from tpy.units import KIB
from tpy_data.backends.creation import BackendOrigin
from tpy_data.backends.isolated import IsolatedBackend
from tpy_data.backends.python.instance.outcome import Waiter
from tpy_data.backends.python.worker.wire.core.windows import RESPONSES_MAX
from tpy_data.generation.core.asking import with_inputs_and_outputs

ORIGIN = BackendOrigin(entry_point="tests.backends.engines.hostile:create", described="this test")


class Hosted:
    """An engine in a worker."""

    def __init__(self, folder: Path) -> None:
        self.logs: list[str] = []
        self.metrics = CustomMetrics()
        self.backend = IsolatedBackend(ORIGIN, BackendSettings(name="hostile"), lambda level, text: self.logs.append(text))
        config = with_inputs_and_outputs(ModelConfig(name="m", backend="hostile"))
        config = ModelConfig(
            name="m",
            backend="hostile",
            input=config.input,
            output=config.output,
            model_transaction_policy=config.model_transaction_policy,
            parameters={"step_timeout_seconds": ModelParameter(string_value="0.5")},
        )
        self.model = self.backend.load(
            ModelContext(
                name="m",
                version=1,
                generation=1,
                config=config,
                model_directory=folder,
                version_directory=folder,
                log=lambda level, text: self.logs.append(text),
                metrics=self.metrics,
            )
        )
        placement = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
        self.instance: Any = self.model.create_instance(placement)

    def ask(
        self, prompt: str, sampling: str = '{"max_tokens": 3}', *, stream: bool = False, takes: bool = True
    ) -> RecordingSender:
        sender = RecordingSender()
        sender.takes = takes
        inputs = {name: text(name, value) for name, value in (("text_input", prompt), ("sampling_parameters", sampling))}
        if stream:
            inputs["stream"] = Tensor("stream", DataType.BOOL, np.array([True]))
        self.instance.execute(batch_of([SampleRequest(inputs=inputs, sender=sender)]))
        return sender

    def held(self, pipe: Path) -> RecordingSender:
        """A request whose second step waits for a writer to the pipe, when that has begun."""
        os.mkfifo(pipe)
        first = self.ask(f"hold {pipe}", '{"max_tokens": 8}', stream=True)
        wait_until(pipe.with_suffix(".held").exists)
        return first

    def begin(self, listener: Waiter, prompt: Tensor) -> RecordingSender:
        """As the server asks: it does not wait until the engine has taken the request."""
        sender = RecordingSender()
        inputs = {"text_input": prompt, "sampling_parameters": text("sampling_parameters", '{"max_tokens": 3}')}
        assert self.instance.begin([batch_of([SampleRequest(inputs=inputs, sender=sender)])], listener) == 1
        return sender

    def close(self) -> None:
        self.instance.close()
        self.model.unload()
        self.backend.close()


def shrunk() -> Tensor:
    """In a region that its client has made shorter meanwhile."""
    descriptor = os.memfd_create("region")
    os.ftruncate(descriptor, 4 * KIB)
    facts = RegionFacts(name="r", kind=RegionKind.SYSTEM, key="/k", offset=0, byte_size=4 * KIB)
    region = SegmentRegion(facts, descriptor, RegionCopies())
    array = RegionArray(CountedRegion(region, 4 * KIB), (KIB,), np.dtype(np.float32))
    os.ftruncate(descriptor, 16)
    return Tensor("text_input", DataType.FP32, array.as_array())


def text(name: str, value: str) -> Tensor:
    array = np.empty(1, object)
    array[0] = value.encode()
    return Tensor(name, DataType.BYTES, array)


class HasInstance(Protocol):
    instance: Any


def answer(hosted: HasInstance, sender: RecordingSender) -> str:
    """The text, or the error, once the request has ended."""

    def has_ended() -> bool:
        hosted.instance.check()
        return sender.finished.wait(0.05)

    wait_until(has_ended)
    pieces = []
    for result, _ in sender.sent:
        if result is not None and result.error is not None:
            return result.error.message
        pieces += [each.array[0].decode() for each in (() if result is None else result.outputs) if each.name == "text_output"]
    return "".join(pieces)


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    hosted = Hosted(tmp_path)
    yield hosted
    hosted.close()


def test_requests_are_answered_and_the_room_is_the_engines(hosted: Hosted) -> None:
    assert hosted.instance.engine_limits == EngineLimits(sequences=4, tokens=4000)
    assert answer(hosted, hosted.ask("one two", stream=True)) == "one two one "
    refused = hosted.ask("impossible")
    assert answer(hosted, refused) == "'prompt' is impossible"


def test_deltas_for_a_slow_reader_are_joined(hosted: Hosted) -> None:
    slow = hosted.ask("word", '{"max_tokens": 300}', stream=True, takes=False)
    assert answer(hosted, hosted.ask("word", '{"max_tokens": 300}', stream=True)) == "word " * 300
    assert answer(hosted, slow) == "word " * 300
    assert len(slow.sent) == RESPONSES_MAX + 1


@pytest.mark.parametrize(
    ("prompt", "error"),
    [
        ("raise", "the engine failed: RuntimeError: the device is lost"),
        ("hang", "the engine did not return from a step within 0.5 s"),
        ("freeze", "was ended by SIGALRM (as when a step of an engine takes longer than step_timeout_seconds and lets no other"),
        ("exit", "Stub process 'm_0' is not healthy. It exited with status 9"),
    ],
)
def test_the_end_of_an_engine_costs_its_requests_an_error_and_ends_the_worker(hosted: Hosted, prompt: str, error: str) -> None:
    other = hosted.ask("word", '{"max_tokens": 900}', stream=True)
    try:
        said = answer(hosted, hosted.ask(prompt))
    except InstanceFailure as failure:  # it has ended before it could say that it has the request
        said = str(failure)
    assert error in said
    assert answer(hosted, other) != ""
    poller = select.poll()
    poller.register(hosted.instance.end_fileno(), select.POLLIN)
    assert poller.poll(10_000)


def test_requests_that_come_during_a_step_join_in_the_next_one(hosted: Hosted, tmp_path: Path) -> None:
    """Also when the step holds the GIL, so that the worker reads nothing meanwhile."""
    pipe = tmp_path / "pipe"
    first = hosted.held(pipe)
    listener = Waiter()
    others = [hosted.begin(listener, text("text_input", "word")) for _ in range(3)]
    with pipe.open("wb"):
        assert answer(hosted, first) == "1 1 4 4 4 1 1 1 "
    for other in others:
        assert answer(hosted, other) == "word4 4 4 "
    assert [listener.said.get() for _ in others] == [[ExecutionResult()]] * 3


def test_a_request_that_cannot_be_sent_fails_alone(hosted: Hosted, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    first = hosted.held(pipe)
    listener = Waiter()
    before = hosted.begin(listener, text("text_input", "word"))
    hosted.begin(listener, shrunk())
    behind = hosted.begin(listener, text("text_input", "word"))
    with pipe.open("wb"):
        assert answer(hosted, first).startswith("1 1 ")
    assert answer(hosted, before).startswith("word")
    assert answer(hosted, behind).startswith("word")
    outcomes = [listener.said.get() for _ in range(3)]
    assert isinstance(outcomes[1], TpyError)
    assert "is shorter now than when it was registered" in outcomes[1].message
    assert outcomes[::2] == [[ExecutionResult()]] * 2
