"""Batches that a worker is given without a thread that waits for it: several at a time, and what is taken back of them."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.python.conftest import Serve, Served, request
from tpy.backend import ExecutionBatch, InstanceFailure, Outcome, PhaseTimes, QueuedInstance
from tpy.devices import Devices
from tpy.errors import Internal
from tpy.messages import DataType, Residency, Tensor
from tpy.testing import FakeDevice
from tpy.testing.requests import RecordingSender
from tpy_data.backends.python.protocol.small import are_small

NUMBERS = """
class TritonPythonModel:
    def initialize(self, args):
        self.count = 0
    def execute(self, requests):
        self.count += 1
        return [self.one(request) for request in requests]
    def one(self, request):
        value = given(request)[0]
        if value == -1:
            raise ValueError("not this one")
        if value == -2:
            os._exit(1)
        if value == -3:
            return answer(tensor(np.array([float(request.is_cancelled())], np.float32)))
        if value == -4:
            with open(os.environ.get("X", args_path), "rb") as gate:
                gate.read()
        return answer(tensor(np.array([value, self.count], np.float32)))
"""


def batch(value: float) -> ExecutionBatch:
    """One request."""
    return ExecutionBatch([request(np.array([value], np.float32))], PhaseTimes())


def decoupled_batch(value: float, sender: RecordingSender) -> ExecutionBatch:
    """One request of a decoupled model."""
    return ExecutionBatch([request(np.array([value], np.float32), sender=sender)], PhaseTimes())


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.taken: list[Outcome] = []
        self.failure: InstanceFailure | None = None
        self._turn = threading.Condition()

    def completed(self, batch: ExecutionBatch, outcome: Outcome, following: ExecutionBatch | None) -> None:
        self.taken.append(outcome)

    def failed(self, failure: InstanceFailure, held: Sequence[ExecutionBatch]) -> None:
        self.failure = failure

    def settled(self) -> None:
        with self._turn:
            self._turn.notify_all()

    def wait(self, instance: QueuedInstance) -> list[Outcome]:
        """Until nothing is open."""
        with self._turn:
            assert self._turn.wait_for(lambda: not instance.is_busy, 20)
        return self.taken


def queued(served: Served) -> QueuedInstance:
    """The instance itself."""
    served.output(request(np.array([0], np.float32)))
    assert isinstance(served.python, QueuedInstance)
    return served.python


def run(instance: QueuedInstance, *values: float) -> tuple[list[ExecutionBatch], list[Outcome]]:
    """Have these executed together."""
    batches = [batch(value) for value in values]
    listener = Listener()
    assert instance.begin(batches, listener) == len(values)
    return batches, listener.wait(instance)


def values(outcomes: list[Outcome]) -> list[list[float] | str]:
    """The outputs, or the errors."""
    return [
        str(outcome).split("\n")[0] if isinstance(outcome, Internal) else list(outcome[0].outputs[0].array)  # type: ignore[index]
        for outcome in outcomes
    ]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A request with value -4 waits until somebody opens it for writing and closes it."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def numbers(gate: Path) -> str:
    return f"args_path = {str(gate)!r}\n" + NUMBERS


def test_batches_are_executed_one_by_one_and_in_order(make: Serve, gate: Path) -> None:
    batches, taken = run(queued(make(numbers(gate))), 5, 6, 7)
    assert values(taken) == [[5, 2], [6, 3], [7, 4]]
    times = [(each.times.start_ns, each.times.input_end_ns, each.times.output_start_ns, each.times.end_ns) for each in batches]
    flat = [moment for four in times for moment in four]
    assert flat == sorted(flat)
    assert flat[0] > 0
    assert (times[0][3], times[1][3]) == (times[1][0], times[2][0]), "each starts when the one before has ended"


def test_several_requests_in_one_batch(make: Serve, gate: Path) -> None:
    instance = queued(make(numbers(gate)))
    listener = Listener()
    requests = [request(np.array([value], np.float32)) for value in (5, 6)]
    assert instance.begin([ExecutionBatch(requests, PhaseTimes())], listener) == 1
    (outcome,) = listener.wait(instance)
    assert not isinstance(outcome, Internal)
    assert [list(result.outputs[0].array) for result in outcome] == [[5, 2], [6, 2]]  # type: ignore[union-attr]


def test_a_failure_is_that_of_its_own_batch(make: Serve, gate: Path) -> None:
    _, taken = run(queued(make(numbers(gate))), 5, -1, 7)
    failed = "Failed to process the request(s) for model 'm_0', message: ValueError: not this one"
    assert values(taken) == [[5, 2], failed, [7, 4]]


def test_what_is_not_started_can_be_taken_back(make: Serve, gate: Path) -> None:
    instance = queued(make(numbers(gate)))
    for _ in range(2):
        listener = Listener()
        assert instance.begin([batch(-4), batch(6), batch(7)], listener) == 3
        writing = os.open(gate, os.O_WRONLY)  # waits until the first is being executed
        assert len(instance.revoke()) == 2
        assert len(instance.revoke()) == 0
        os.close(writing)
        assert [outcome[0] for outcome in values(listener.wait(instance))] == [-4]
    assert values(run(instance, 5, 6)[1]) == [[5, 4], [6, 5]], "what was taken back was never executed"


def test_the_death_of_the_worker_costs_the_batch_that_it_executed(make: Serve, gate: Path) -> None:
    instance = queued(make(numbers(gate)))
    listener = Listener()
    assert instance.begin([batch(5), batch(-2), batch(7)], listener) == 3
    assert values(listener.wait(instance)) == [[5, 2]]
    assert str(listener.failure).startswith("Stub process 'm_0' is not healthy. It ")
    assert listener.failure is not None
    assert listener.failure.begun
    assert not instance.begin([batch(5)], listener)
    assert len(instance.revoke()) == 0


def test_a_model_may_ask_whether_a_request_was_cancelled(make: Serve, gate: Path) -> None:
    _, taken = run(queued(make(numbers(gate))), 5, -3, 7)
    assert values(taken) == [[5, 2], [0], [7, 4]]


@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_what_takes_long_to_be_written_is_begun_alone(make: Serve, size: int) -> None:
    instance = queued(make(NUMBERS))
    listener = Listener()
    large = ExecutionBatch([request(np.full(size, 3, np.float32))], PhaseTimes())
    assert instance.begin([large, batch(4)], listener) == 1
    assert values(listener.wait(instance)) == [[3, 2]]


def test_a_batch_that_cannot_be_sent_fails_alone(make: Serve) -> None:
    instance = queued(make(NUMBERS))
    listener = Listener()
    assert instance.begin([ExecutionBatch([request(id="x" * 10_000_000)], PhaseTimes())], listener) == 1
    (outcome,) = listener.wait(instance)
    assert "is too long to be sent" in str(outcome)
    assert values(run(instance, 5, 6)[1]) == [[5, 2], [6, 3]]


def test_each_batch_has_the_time_for_itself(make: Serve, gate: Path) -> None:
    served = make(numbers(gate), parameters={"TPY_EXECUTE_TIMEOUT_SECONDS": "0.1"})
    instance = queued(served)
    listener = Listener()
    assert instance.begin([batch(5), batch(-4), batch(7)], listener) == 3
    while instance.is_busy:
        threading.Event().wait(instance.check())
    assert values(listener.taken) == [[5, 2]]
    assert str(listener.failure).endswith("It was ended: execute did not return within 0.1 s")


@pytest.mark.parametrize(
    "said",
    [
        "connection.send(Kind.RESULT, 2, '[[0,0,0],[]]')",
        'connection.send(Kind.RESULT, 7, \'[[0,0,0],[[-1,"","",[]]]]\')',
        "connection.send(Kind.NOT_STARTED, 2, '1')",
        "connection.send(Kind.NOT_STARTED, 2, '3')",
        "connection.send(Kind.NOT_STARTED, 2, '\"two\"')",
        "connection.send(Kind.RESULT, 2, '[[0,0,0],\"no\"]'); connection.send(Kind.NOT_STARTED, 3, '2')",
        "connection.send(Kind.RESULT, 2, '{}')",
        "connection.send(Kind.RESULT, 2, '[[0,0,0],[null]]')",
        "connection.send(Kind.RESPONSE, 2, '[1,true,null]')",
        "connection.send(Kind.HELLO, 0, '{}')",
        "os.write(connection._endpoint.fileno(), b'x' * 100)",
    ],
)
def test_a_worker_that_breaks_the_rules_of_batches_is_ended(make: Serve, said: str) -> None:
    served = make(f"""
        import gc
        class TritonPythonModel:
            def execute(self, requests):
                if given(requests[0])[0] > 0:
                    connection = next(each for each in gc.get_objects() if type(each).__name__ == "ServerConnection")
                    Kind = sys.modules["tpy_python_worker.wire.core.frames"].FrameKind
                    {said}
                return [answer(tensor(given(request))) for request in requests]
    """)
    instance = queued(served)
    listener = Listener()
    assert instance.begin([batch(1), batch(2), batch(3)], listener) == 3
    listener.wait(instance)
    assert listener.failure is not None
    assert len(listener.taken) < 3
    served.close()
    assert served.logged("error")


def test_taking_back_while_the_worker_is_at_it(make: Serve, gate: Path) -> None:
    """Each batch is executed or not started, never both, whenever it is asked for: the worker and the server race."""
    instance = queued(make(numbers(gate)))
    chance = random.Random(1)
    executed = 1
    counts = set()
    for _ in range(200):
        listener = Listener()
        assert instance.begin([batch(value) for value in range(16)], listener) == 16
        end_ns = time.monotonic_ns() + chance.randrange(-100_000, 400_000)
        while time.monotonic_ns() < end_ns:
            pass
        taken_back = len(instance.revoke())
        taken = listener.wait(instance)
        assert len(taken) + taken_back <= 16
        assert values(taken) == [[value, executed + 1 + value] for value in range(len(taken))]
        executed += len(taken)
        counts.add(taken_back)
    assert len(counts) > 1, counts


def test_decoupled_batches_that_are_taken_back_leave_nothing(make: Serve, gate: Path) -> None:
    """Their requests are open with nobody; given again, they are answered."""
    code = f"""
import gc
Flow = sys.modules["tpy_python_worker.link.responses"].Flow

class TritonPythonModel:
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        if given(requests[0])[0] == -4:
            with open({str(gate)!r}, "rb") as gate:
                gate.read()
        flows = sum(isinstance(each, Flow) for each in gc.get_objects())
        sender.send(answer(tensor(np.array([given(requests[0])[0], flows], np.float32))), 1)
"""
    served = make(code, decoupled=True)
    senders = [RecordingSender() for _ in range(5)]
    batches = [decoupled_batch(value, sender) for value, sender in zip((-4, 6, 7, 6, 7), senders, strict=True)]
    instance = served.python
    listener = Listener()
    assert instance.begin(batches[:3], listener) == 3
    writing = os.open(gate, os.O_WRONLY)
    assert len(instance.revoke()) == 2
    os.close(writing)
    assert len(listener.wait(instance)) == 1
    taken_back = [weakref.ref(sender) for sender in senders[1:3]]
    del senders[1:3], batches[1:3]
    assert [held for held in taken_back if held() is not None] == []
    assert instance.begin(batches[1:], listener) == 2
    listener.wait(instance)
    said = [list(result.outputs[0].array) for sender in senders for result, _ in sender.sent if result is not None]
    assert said == [[-4, 3], [6, 2], [7, 1]]


def test_what_was_taken_back_is_not_failed_by_the_worker_that_had_it(make: Serve, gate: Path) -> None:
    """It ended before it could say that it had not started them: another instance executes them by then."""
    code = f"""
class TritonPythonModel:
    def execute(self, requests):
        with open({str(gate)!r}, "rb") as gate:
            gate.read()
        sys.modules["tpy_python_worker.main"].InstanceWorker._take_token = lambda worker: os._exit(1)
        requests[0].get_response_sender().send(flags=1)
"""
    instance = make(code, decoupled=True).python
    senders = [RecordingSender() for _ in range(3)]
    listener = Listener()
    batches = [ExecutionBatch([request(sender=sender)], PhaseTimes()) for sender in senders]
    assert instance.begin(batches, listener) == 3
    writing = os.open(gate, os.O_WRONLY)
    assert len(instance.revoke()) == 2
    os.close(writing)
    assert len(listener.wait(instance)) == 1
    assert listener.failure is not None
    assert not listener.failure.begun
    assert [len(sender.sent) for sender in senders] == [1, 0, 0]


@pytest.mark.parametrize(
    ("options", "small"),
    [
        ({"id": "x" * 60_000}, True),
        ({"id": "x" * 70_000}, False),
        ({"parameters": {"name": "x" * 70_000}}, False),
        ({"parameters": {"x" * 70_000: 1}}, False),
        ({"parameters": dict.fromkeys(map(str, range(65)), 1)}, False),
    ],
)
def test_only_small_requests_are_written_by_the_loop(options: dict[str, Any], small: bool) -> None:
    assert are_small([ExecutionBatch([request(**options)], PhaseTimes())]) is small


def test_a_tensor_on_a_device_reaches_a_worker_as_host_memory(make: Serve) -> None:
    """As a step of an ensemble gets it whose step before ran on a GPU."""
    device = FakeDevice(0)
    there = Devices([device]).to_device(np.array([7], np.float32), 0)
    given = request(inputs={"IN": Tensor("IN", DataType.FP32, there.as_array())}, residency=Residency(inputs=True))
    instance, listener = make(NUMBERS).python, Listener()
    assert not are_small([ExecutionBatch([given], PhaseTimes())]), "it is copied in a thread, never on the loop"
    assert instance.begin([ExecutionBatch([given], PhaseTimes())], listener) == 1
    (outcome,) = listener.wait(instance)
    assert not isinstance(outcome, Exception)
    assert outcome[0].outputs[0].array.tolist() == [7, 1]
    assert device.counts["out"] == 1


@pytest.mark.parametrize("timeout_us", [2**63, 2**64 - 1])
def test_the_longest_timeouts_are_sent(make: Serve, timeout_us: int) -> None:
    """One of 2**63 was never sent, and nothing after it."""
    instance = queued(make(NUMBERS))
    for _ in range(2):
        listener = Listener()
        assert instance.begin([ExecutionBatch([request(timeout_us=timeout_us)], PhaseTimes())], listener) == 1
        (outcome,) = listener.wait(instance)
        assert not isinstance(outcome, InstanceFailure)
