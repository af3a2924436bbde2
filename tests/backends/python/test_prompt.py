"""Batches that a worker is given without a thread that waits for it: runs, what is taken back, what is left to the thread."""

from __future__ import annotations

import os
import random
import select
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.backends.python.conftest import Serve, Served, request
from tpy.backend import ExecutionBatch, InstanceFailure, Outcome, PhaseTimes, PromptInstance
from tpy.errors import Internal
from tpy.messages import DataType, Tensor

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


def prompt(served: Served) -> PromptInstance:
    """The instance itself."""
    served.output(request(np.array([0], np.float32)))
    assert isinstance(served.python, PromptInstance)
    assert served.python.is_prompt
    return served.python


def collect(instance: PromptInstance, taken: list[Outcome]) -> None:
    """Until nothing is open, or only the thread gets any further."""
    poller = select.poll()
    poller.register(instance.fileno(), select.POLLIN)
    while instance.open_batches and not instance.is_stuck:
        assert poller.poll(10_000)
        instance.collect(taken.append)


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


def test_a_run_is_executed_one_by_one_and_in_order(make: Serve, gate: Path) -> None:
    instance = prompt(make(numbers(gate)))
    batches = [batch(value) for value in (5, 6, 7)]
    taken: list[Outcome] = []
    assert instance.begin(batches)
    collect(instance, taken)
    assert values(taken) == [[5, 2], [6, 3], [7, 4]]
    times = [(each.times.start_ns, each.times.input_end_ns, each.times.output_start_ns, each.times.end_ns) for each in batches]
    flat = [moment for four in times for moment in four]
    assert flat == sorted(flat)
    assert flat[0] > 0
    assert (times[0][3], times[1][3]) == (times[1][0], times[2][0]), "each starts when the one before has ended"


def test_several_requests_in_one_batch(make: Serve, gate: Path) -> None:
    instance = prompt(make(numbers(gate)))
    taken: list[Outcome] = []
    requests = [request(np.array([value], np.float32)) for value in (5, 6)]
    assert instance.begin([ExecutionBatch(requests, PhaseTimes())])
    collect(instance, taken)
    (outcome,) = taken
    assert not isinstance(outcome, Internal)
    assert [list(result.outputs[0].array) for result in outcome] == [[5, 2], [6, 2]]  # type: ignore[union-attr]


def test_a_failure_is_that_of_its_own_batch(make: Serve, gate: Path) -> None:
    instance = prompt(make(numbers(gate)))
    taken: list[Outcome] = []
    assert instance.begin([batch(5), batch(-1), batch(7)])
    collect(instance, taken)
    failed = "Failed to process the request(s) for model 'm_0', message: ValueError: not this one"
    assert values(taken) == [[5, 2], failed, [7, 4]]


def test_what_is_not_begun_can_be_taken_back(make: Serve, gate: Path) -> None:
    instance = prompt(make(numbers(gate)))
    for _ in range(2):
        taken: list[Outcome] = []
        assert instance.begin([batch(-4), batch(6), batch(7)])
        writing = os.open(gate, os.O_WRONLY)  # waits until the first is being executed
        assert instance.take_back() == 2
        assert instance.take_back() == 0
        os.close(writing)
        collect(instance, taken)
        assert [outcome[0] for outcome in values(taken)] == [-4]
    assert instance.begin([batch(5), batch(6)])
    collect(instance, taken := [])
    assert values(taken) == [[5, 4], [6, 5]], "what was taken back was never executed"


def test_the_death_of_the_worker_costs_the_batch_that_it_executed(make: Serve, gate: Path) -> None:
    instance = prompt(make(numbers(gate)))
    taken: list[Outcome] = []
    assert instance.begin([batch(5), batch(-2), batch(7)])
    collect(instance, taken)
    assert instance.is_stuck
    with pytest.raises(InstanceFailure, match="Stub process 'm_0' is not healthy"):
        instance.finish(taken.append)
    assert values(taken) == [[5, 2]]
    assert not instance.begin([batch(5)])
    assert instance.take_back() == 0


def test_questions_of_the_model_are_left_to_the_thread(make: Serve, gate: Path) -> None:
    instance = prompt(make(numbers(gate)))
    taken: list[Outcome] = []
    assert instance.begin([batch(5), batch(-3), batch(7)])
    collect(instance, taken)
    assert instance.is_stuck
    instance.finish(taken.append)
    assert values(taken) == [[5, 2], [0], [7, 4]]
    assert not instance.is_stuck


def test_what_takes_long_is_left_to_the_thread(make: Serve) -> None:
    served = make("""
        class TritonPythonModel:
            def execute(self, requests):
                count = int(given(requests[0])[0])
                return [answer(tensor(np.array([b"text"] * count, np.object_)))]
    """)
    served.output(request(np.array([1], np.float32)))
    instance = served.python
    assert not instance.begin([ExecutionBatch([request(np.zeros(20_000, np.float32))], PhaseTimes())])
    texts = Tensor("IN", DataType.BYTES, np.array([b"x"] * 1000, np.object_))
    assert not instance.begin([ExecutionBatch([request(inputs={"IN": texts})], PhaseTimes())])
    taken: list[Outcome] = []
    assert instance.begin([batch(10_000)])
    collect(instance, taken)
    assert instance.is_stuck
    assert not taken
    instance.finish(taken.append)
    assert len(taken[0][0].outputs[0].array) == 10_000  # type: ignore[index]


@pytest.mark.parametrize(("limit_s", "is_prompt"), [("1.9", False), ("2", True)])
def test_where_time_is_short_a_thread_watches(make: Serve, limit_s: str, is_prompt: bool) -> None:
    served = make(NUMBERS, parameters={"TPY_EXECUTE_TIMEOUT_SECONDS": limit_s})
    assert served.python.is_prompt is is_prompt


def test_each_batch_of_a_run_has_the_time_for_itself(make: Serve, gate: Path) -> None:
    served = make(numbers(gate), parameters={"TPY_EXECUTE_TIMEOUT_SECONDS": "2"})
    instance = prompt(served)
    served.python._execute_limit_s = 0.1
    taken: list[Outcome] = []
    assert instance.begin([batch(5), batch(-4), batch(7)])
    with pytest.raises(InstanceFailure, match=r"It was ended: execute did not return within 0\.1 s"):
        instance.finish(taken.append)
    assert values(taken) == [[5, 2]]


@pytest.mark.parametrize(
    "said",
    [
        "worker._send_result(Kind.RESULT, [[-1, '', '', []]], Layout(), 0, 0)",
        "worker._say(Kind.NOT_BEGUN, 1)",
        "worker._send_result(Kind.PART, 'no', Layout(), 0, 0); worker._say(Kind.NOT_BEGUN, 2, worker._executed + 1)",
        "worker._say(Kind.NOT_BEGUN, 3)",
        "worker._say(Kind.NOT_BEGUN, 'two')",
        "worker._say(Kind.PART, {})",
        "worker._say(Kind.HELLO, {})",
        "os.write(worker._channel.fileno(), b'x' * 100)",
    ],
)
def test_a_worker_that_breaks_the_rules_of_a_run_is_ended(make: Serve, said: str) -> None:
    served = make(f"""
        import gc
        class TritonPythonModel:
            def execute(self, requests):
                if given(requests[0])[0] > 0:
                    worker = next(each for each in gc.get_objects() if type(each).__name__ == "Worker")
                    names = sys.modules[type(worker).__module__].__dict__
                    Kind, Layout = names["Kind"], names["Layout"]
                    {said}
                return [answer(tensor(given(request))) for request in requests]
    """)
    instance = prompt(served)
    taken: list[Outcome] = []
    assert instance.begin([batch(1), batch(2), batch(3)])
    collect(instance, taken)
    assert instance.is_stuck
    assert instance.open_batches + len(taken) == 3, "none is forgotten"
    with pytest.raises(InstanceFailure):
        instance.finish(taken.append)
    assert served.python.pid is None


def test_taking_back_while_the_thread_is_at_it(make: Serve, gate: Path) -> None:
    """Each batch is executed or not begun, never both, whenever it is asked for: the worker, the thread and the loop race."""
    instance = prompt(make(numbers(gate)))
    chance = random.Random(1)
    executed = 1
    counts = set()
    for _ in range(200):
        taken: list[Outcome] = []
        batches = [batch(value) for value in range(16)]
        assert instance.begin(batches)
        thread = threading.Thread(target=instance.finish, args=(taken.append,))
        thread.start()
        end_ns = time.monotonic_ns() + chance.randrange(-100_000, 400_000)
        while time.monotonic_ns() < end_ns:
            pass
        taken_back = instance.take_back()
        thread.join(30)
        assert instance.open_batches == 0
        assert len(taken) + taken_back <= 16
        assert values(taken) == [[value, executed + 1 + value] for value in range(len(taken))]
        executed += len(taken)
        counts.add(taken_back)
    assert len(counts) > 1, counts
