"""The thread of an engine: what it does with an engine that dies, hangs, or cannot be made."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tpy.backend import ExecutionResult, InstanceFailure
from tpy.errors import Unavailable
from tpy.messages import DataType, Tensor
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.testing.fake_engine import FakeEngine
from tpy.testing.requests import RecordingSender, SampleRequest, batch_of
from tpy_data.backends.engines.instance import EngineInstance
from tpy_data.backends.engines.metrics import EngineMetrics


def text(name: str, value: str) -> Tensor:
    array = np.empty(1, object)
    array[0] = value.encode()
    return Tensor(name, DataType.BYTES, array)


class Made:
    """An instance of an engine that does `on_step` at each step."""

    def __init__(self, step_limit_s: float = 60.0) -> None:
        self.on_step = lambda: None
        self.metrics = CustomMetrics()
        self.log: list[str] = []
        self.engine = FakeEngine(on_step=lambda: self.on_step())
        self.instance = EngineInstance(
            lambda: self.engine,
            name="m_0",
            metrics=EngineMetrics(self.metrics, model="m", version=1, instance="m_0"),
            step_limit_s=step_limit_s,
            log=lambda level, message: self.log.append(message),
        )

    def ask(self, prompt: str = "one two") -> RecordingSender:
        sender = RecordingSender()
        self.instance.execute(batch_of([SampleRequest(inputs={"text_input": text("text_input", prompt)}, sender=sender)]))
        return sender


@pytest.fixture
def made() -> Iterator[Made]:
    made = Made()
    yield made
    made.instance.close()


def result_of(sender: RecordingSender) -> ExecutionResult:
    """The last response, once it is there."""
    sender.finished.wait()
    result = sender.sent[-1][0]
    assert result is not None
    return result


def error_of(sender: RecordingSender) -> str:
    error = result_of(sender).error
    return "" if error is None else error.message


def has_ended(instance: EngineInstance) -> bool:
    return bool(select.select([instance.end_fileno()], [], [], 0)[0])


def test_a_request_is_answered_by_its_sender(made: Made) -> None:
    sender = made.ask()
    assert error_of(sender) == ""
    (output,) = result_of(sender).outputs
    assert output.array[0] == b"one two" + b"one two " * 8


def test_an_engine_that_raises_costs_its_requests_an_error_and_ends_the_instance(made: Made) -> None:
    def die() -> None:
        raise RuntimeError("out of memory")

    made.on_step = die
    assert "the engine failed: RuntimeError: out of memory" in error_of(made.ask())
    select.select([made.instance.end_fileno()], [], [])
    assert "out of memory" in made.instance.end_reason
    with pytest.raises(InstanceFailure) as failure:
        made.ask()
    assert not failure.value.begun
    assert any("out of memory" in line for line in made.log)


def test_an_engine_that_hangs_costs_its_requests_an_error_and_ends_the_instance() -> None:
    made = Made(step_limit_s=0.05)
    goes_on = threading.Event()
    made.on_step = goes_on.wait
    try:
        assert error_of(made.ask()) == "the engine did not return from a step within 0.05 s"
        select.select([made.instance.end_fileno()], [], [])
    finally:
        goes_on.set()
        made.instance.close()
    assert made.engine.is_closed


def test_closing_ends_what_is_open(made: Made) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        goes_on.wait()

    made.on_step = wait
    sender = made.ask()
    begun.wait()
    closing = threading.Thread(target=made.instance.close)
    closing.start()
    goes_on.set()
    closing.join()
    assert error_of(sender) in ("", "instance 'm_0' is closed")
    assert made.engine.is_closed
    assert not made.metrics.families()
    made.instance = Made().instance  # for the fixture to close


def test_an_engine_that_cannot_be_made_says_why() -> None:
    def refuse() -> FakeEngine:
        raise Unavailable("no memory for one block")

    metrics = EngineMetrics(CustomMetrics(), model="m", version=1, instance="m_0")
    with pytest.raises(Unavailable, match="no memory for one block"):
        EngineInstance(refuse, name="m_0", metrics=metrics, step_limit_s=1.0, log=lambda level, message: None)


def test_what_it_has_room_for_is_the_engines(made: Made) -> None:
    assert made.instance.engine_limits == made.engine.limits()


def test_an_engine_that_cannot_say_its_limits_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[FakeEngine] = []

    def unknown(engine: FakeEngine) -> None:
        raise Unavailable("not yet")

    monkeypatch.setattr(FakeEngine, "limits", unknown)
    monkeypatch.setattr(FakeEngine, "close", lambda engine: closed.append(engine))
    with pytest.raises(Unavailable, match="not yet"):
        Made()
    assert len(closed) == 1
