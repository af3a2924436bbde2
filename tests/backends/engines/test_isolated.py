"""Engines in worker processes: requests, cancellation, slow readers, and how an engine's end is the worker's."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from tests.e2e.waiting import wait_until
from tpy.backend import BackendSettings, InstanceFailure, InstancePlacement, ModelContext
from tpy.backend.engine import EngineLimits
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelParameter
from tpy.messages import DataType, Tensor
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.testing.requests import RecordingSender, SampleRequest, batch_of
from tpy_data.backends.creation import BackendOrigin
from tpy_data.backends.isolated import IsolatedBackend
from tpy_data.backends.python.worker.core.windows import RESPONSES_MAX
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

    def close(self) -> None:
        self.instance.close()
        self.model.unload()
        self.backend.close()


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
