"""Models that fork: the child has no part in the server's requests, whatever it does; and frames that are not due."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.backends.python.calls import Call, FakeServer, surround
from tests.backends.python.conftest import Serve, Served, request
from tests.backends.python.test_decoupled import FINAL, ask, told
from tpy.backend import AnswerLater, InstanceFailure
from tpy.messages import Tensor
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.testing.requests import RecordingSender

FORKS = {"python": "os.fork()", "native code": "__import__('ctypes').PyDLL(None).fork()"}

ENDED = "a process that the model had forked came back from the model's code and was ended"


def forked(how: str) -> str:
    """`in_child(work)`: fork, and have the parent wait until the child is gone; in the child `work` runs."""
    return f"""
def in_child(work):
    pid = {FORKS[how]}
    if pid:
        assert os.waitpid(pid, 0)[1] >> 8 == 1
        return False
    work()
    return True
"""


@pytest.fixture(params=list(FORKS))
def helper(request: pytest.FixtureRequest) -> str:
    return forked(str(request.param))


def nothing_died(served: Served) -> None:
    """The instance lives, and the log says what became of the children."""
    assert served.python.pid is not None
    served.close()  # all that they wrote has come then
    assert any(ENDED in text for text in served.logged("warning"))


@pytest.mark.parametrize("size", [1, 100_000], ids=["in the frame", "in shared memory"])
def test_a_child_that_comes_back_answers_nothing(make: Serve, helper: str, size: int) -> None:
    """It has the parent's request, and another answer; the parent waits until it had all the time for that."""
    served = make(
        helper
        + """
class TritonPythonModel:
    def execute(self, requests):
        wrong = 1000 * in_child(lambda: None)
        return [answer(tensor(given(r) + np.float32(wrong))) for r in requests]
"""
    )
    for number in range(12):
        array = np.full(size, number, np.float32)
        assert np.array_equal(served.output(request(array)), array)
    nothing_died(served)


def test_a_child_that_fails_or_asks_changes_nothing(make: Serve, helper: str) -> None:
    served = make(
        helper
        + """
class TritonPythonModel:
    def execute(self, requests):
        if in_child(lambda: requests[0].is_cancelled() if given(requests[0])[0] % 2 else None):
            raise ValueError("the child's own")
        return [answer(tensor(given(r))) for r in requests]
"""
    )
    for number in range(6):
        assert served.output(request(np.array([number], np.float32))) == number
    nothing_died(served)


def test_a_child_sends_no_responses(make: Serve, helper: str) -> None:
    """Of a decoupled model: neither by sending, nor by dropping the sender, nor by coming back."""
    served = make(
        helper
        + f"""
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            number = int(given(request)[0])
            sends = [lambda: sender.send(answer(tensor(np.array([1000], np.float32)))), lambda: sender.send(flags={FINAL})]
            if in_child(sends[number % 2] if number < 4 else lambda: None):
                return
            sender.send(answer(tensor(given(request))))
            sender.send(flags={FINAL})
""",
        decoupled=True,
    )
    for number in range(6):
        assert told(ask(served, number)) == [number, "end"]
    nothing_died(served)


def test_a_child_answers_nothing_late(make: Serve, helper: str) -> None:
    served = make(
        helper
        + f"""
kept = []
def send(value):
    kept[0].send(answer(tensor(np.array([value], np.float32))), {FINAL})
class TritonPythonModel:
    def execute(self, requests):
        if requests[0].request_id() == "keep":
            kept.append(requests[0].get_response_sender())
            return [None]
        if in_child(lambda: send(1000) if requests[0].request_id() == "send" else kept.clear()):
            return [None]
        if requests[0].request_id() == "send":
            send(7)
        return [answer(tensor(given(r))) for r in requests]
"""
    )
    (later,) = served.run(request(id="keep"))
    assert isinstance(later, AnswerLater)
    sender = RecordingSender()
    later.begin(sender)
    served.output(request(id="drop"))
    assert not sender.sent
    served.output(request(id="send"))
    assert told(sender) == [7]
    nothing_died(served)


def test_a_child_changes_no_metrics(make: Serve, helper: str) -> None:
    """And takes none away with its end: the same objects are collected there."""
    served = make(
        helper
        + """
class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("m_calls", "calls", pb_utils.MetricFamily.COUNTER)
        self.calls = self.family.Metric(labels={})
    def leave(self):
        try:
            self.calls.increment(1000)
        except pb_utils.TritonModelException:
            self.calls = self.family = None
    def execute(self, requests):
        if not in_child(self.leave):
            self.calls.increment(1)
        return [answer(tensor(given(r))) for r in requests]
"""
    )
    for _ in range(3):
        served.output()
    metrics = served.context.metrics
    assert isinstance(metrics, CustomMetrics)
    (family,) = metrics.families()
    assert [sample.value for sample in family.samples] == [3]
    nothing_died(served)


def test_a_child_makes_and_ends_no_calls(make: Serve, helper: str) -> None:
    """Its copy of an iterator ends no call of the parent when it is dropped."""
    served = make(
        helper
        + """
class TritonPythonModel:
    def call(self, **options):
        asked = pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"], inputs=[tensor(np.ones(1), "IN")])
        return asked.exec(**options)
    def drop(self):
        try:
            self.call()
        except pb_utils.TritonModelException as error:
            assert "in the model's own process only" in str(error)
            self.responses = None
    def execute(self, requests):
        self.responses = self.call(decoupled=True)
        first = next(self.responses)
        if not in_child(self.drop):
            first = next(self.responses)
        return [answer(tensor(first.output_tensors()[0].as_numpy())) for r in requests]
"""
    )

    def answer_twice(call: Call) -> None:
        for final in (False, True):
            call.answer(*(Tensor("OUT", each.datatype, each.array) for each in call.request.inputs), final=final)

    server = FakeServer(answer_twice)
    surround(served, server)
    for number in range(1, 4):
        assert served.output() == 1
        assert server.count == number
        assert not any(call.cancelled.is_set() for call in server.calls)
    nothing_died(served)


def test_what_a_model_starts_inherits_no_line(make: Serve) -> None:
    served = make("""
        import subprocess
        class TritonPythonModel:
            def execute(self, requests):
                listed = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True).stdout
                return [answer(tensor(np.array([listed.count("socket:")], np.float32)))]
    """)
    assert served.output() == 0


def test_the_end_of_a_worker_is_seen_at_once_although_its_child_lives(make: Serve) -> None:
    """The child has no copy of the socket, whose end is therefore seen."""
    served = make("""
        import time
        class TritonPythonModel:
            def execute(self, requests):
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                os._exit(1)
    """)
    with pytest.raises(InstanceFailure, match="is not healthy"):
        served.run()


STALE = """
import gc
Kind = sys.modules["tpy_python_worker.wire.core.frames"].FrameKind
def worker(kind):
    return next(each for each in gc.get_objects() if type(each).__name__ == kind)
class TritonPythonModel:
    def execute(self, requests):
        {code}
"""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("worker('InstanceWorker')._connection.send(Kind.RESULT, 3, '[[0,0,0],[]]')", "RESULT with number 3, while 2 was due"),
        ("worker('InstanceWorker')._batch = requests[0]._is_cancelled._batch = 3; requests[0].is_cancelled()", ""),
    ],
)
def test_a_result_of_another_batch_fails_the_instance(make: Serve, code: str, why: str) -> None:
    model = (
        STALE.format(code=f"if given(requests[0])[0]: {code}") + "        return [answer(tensor(given(r))) for r in requests]\n"
    )
    served = make(model)
    assert served.output(request(np.array([0], np.float32))) == 0
    with pytest.raises(InstanceFailure):
        served.run(request(np.array([-1], np.float32)))
    expected = why or "asked for request 0 of batch 3, while 2 was executed"
    assert any(expected in text for text in served.logged("error")), served.logs


def test_a_response_out_of_turn_fails_the_instance(make: Serve) -> None:
    served = make(
        STALE.format(code="sender = requests[0].get_response_sender(); worker('WorkerResponses')._flows[1].responses += 1")
        + f"        sender.send(answer(tensor(given(requests[0]))), {FINAL})\n",
        decoupled=True,
    )
    sender = RecordingSender()
    with pytest.raises(InstanceFailure):
        served.run(request(sender=sender))
    assert told(sender) == ["Stub process 'm_0' is not healthy. It sent what no worker sends, and was ended"]
    assert any("RESPONSE with number 2, while 1 was due" in text for text in served.logged("error"))


def test_a_child_that_ends_by_itself_is_not_spoken_of(tmp_path: Path, make: Serve) -> None:
    """A child that stays in the model's code, and ends by itself, is none of the server's business."""
    mark = tmp_path / "mark"
    served = make(f"""
        class TritonPythonModel:
            def execute(self, requests):
                pid = os.fork()
                if pid == 0:
                    open({str(mark)!r}, "w").close()
                    os._exit(0)
                os.waitpid(pid, 0)
                return [answer(tensor(given(r))) for r in requests]
    """)
    served.output()
    assert mark.exists()
    served.close()
    assert not served.logged("warning")
