"""Calls of a model to the server, in both isolation modes, with a server that the test plays."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.waiting import wait_until
from tpy.backend import InstanceFailure
from tpy.errors import ErrorCode, Internal, InvalidArgument, NotFound
from tpy.messages import DataType, SequencePosition, Tensor
from tpy_data.backends.python.instance import thread_calls
from tpy_data.backends.python.protocol import call_server

from .calls import Call, FakeServer, surround
from .conftest import Serve, request

CALL = """
def call(array, model="other", outputs=("OUT",), **more):
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor(array, "IN")], requested_output_names=list(outputs), **more)
"""

ECHO = (
    CALL
    + """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            response = call(given(request)).exec()
            if response.has_error():
                answers.append(pb_utils.InferenceResponse(error=response.error()))
            else:
                answers.append(answer(tensor(pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy())))
        return answers
"""
)


def allow_outstanding(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A call that never ends for us is seen by the refusal of those after it."""
    for module in (call_server, thread_calls):
        monkeypatch.setattr(module, "MODEL_CALLS_OUTSTANDING_MAX", count)


@pytest.mark.parametrize("elements", [0, 1, 1000, 100_000, 1_000_000])
def test_tensors_of_any_size(serve: Serve, elements: int) -> None:
    served = surround(serve(ECHO), FakeServer())
    array = np.arange(elements, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(served.output(request(array)), array)


def test_what_the_server_is_asked(serve: Serve) -> None:
    server = FakeServer()
    served = surround(
        serve(
            CALL
            + """
class TritonPythonModel:
    def execute(self, requests):
        call(given(requests[0]), request_id="me", correlation_id="seq", flags=3, timeout=7, model_version=2,
             parameters={"a": 1, "b": "x", "c": True}).exec()
        call(given(requests[0]), outputs=()).exec()
        return [answer(tensor(given(request))) for request in requests]
"""
        ),
        server,
    )
    served.output()
    first, second = (each.request for each in server.calls)
    assert (first.model_name, first.model_version, first.id, first.timeout_us) == ("other", 2, "me", 7)
    assert first.sequence == SequencePosition(correlation_id="seq", start=True, end=True)
    assert (first.parameters, first.requested_outputs) == ({"a": 1, "b": "x", "c": True}, ("OUT",))
    assert (second.model_version, second.sequence, second.parameters, second.requested_outputs) == (None, None, {}, ())
    waiting = server.calls[0].waiting
    assert waiting is not None
    assert waiting is server.calls[1].waiting
    assert len(waiting.requests) == 1
    assert waiting.completed


def test_errors_keep_their_codes(serve: Serve) -> None:
    def behave(call: Call) -> None:
        if call.request.inputs[0].array[0]:
            call.sink.refuse(NotFound("no such thing"))
        else:
            call.answer(error=InvalidArgument("model says no"))

    served = surround(serve(ECHO), FakeServer(behave))
    refused, failed = served.run(request(np.ones(1, np.float32)), request(np.zeros(1, np.float32)))
    assert refused.error is not None
    assert failed.error is not None
    assert refused.error.code is ErrorCode.NOT_FOUND
    assert refused.error.message == "Model other - Error when running inference: no such thing"
    assert (failed.error.code, failed.error.message) == (ErrorCode.INVALID_ARG, "model says no")


def test_threads_call_while_nothing_is_executed(serve: Serve) -> None:
    server = FakeServer(lambda call: None)
    served = surround(
        serve(
            CALL
            + """
import threading

class TritonPythonModel:
    def execute(self, requests):
        def later():
            self.seen = call(np.ones(2, np.float32)).exec().output_tensors()[0].as_numpy()
        if not hasattr(self, "thread"):
            self.thread = threading.Thread(target=later)
            self.thread.start()
            return [answer(tensor(np.zeros(1))) for request in requests]
        self.thread.join()
        return [answer(tensor(self.seen)) for request in requests]
"""
        ),
        server,
    )
    served.output()
    assert server.arrived.acquire(timeout=10)
    assert server.calls[0].waiting is None
    server.calls[0].answer(Tensor("OUT", DataType.FP32, np.full(2, 5, np.float32)))
    assert served.output().tolist() == [5, 5]


STREAM = (
    CALL
    + """
class TritonPythonModel:
    def execute(self, requests):
        responses = call(np.ones(1, np.float32)).exec(decoupled=True)
        numbers = [float(each.output_tensors()[0].as_numpy()[0]) for each in responses if each.output_tensors()]
        again = len(list(responses))
        return [answer(tensor(np.array([len(numbers), sum(numbers), again]))) for request in requests]
"""
)


def test_many_responses_are_taken_in_lots(serve: Serve) -> None:
    def behave(call: Call) -> None:
        for number in range(50):
            call.answer(Tensor("OUT", DataType.FP32, np.full(1, number, np.float32)), final=False)
        call.answer()

    server = FakeServer(behave)
    served = surround(serve(STREAM), server)
    assert served.output().tolist() == [50, 1225, 51]
    assert server.calls[0].streams


def test_the_server_hears_what_was_taken(serve: Serve) -> None:
    counted = threading.Event()

    server = FakeServer(lambda call: None)
    served = surround(serve(STREAM), server)

    def play() -> None:
        server.arrived.acquire()
        call = server.calls[0]
        taken = call.taken

        def count(number: int) -> None:
            taken(number)
            if call.taken_count >= 32:
                counted.set()

        call.taken = count  # type: ignore[method-assign, assignment]  # a call of this test's own
        for _ in range(40):
            call.answer(Tensor("OUT", DataType.FP32, np.ones(1, np.float32)), final=False)
        assert counted.wait(10)
        call.answer()

    player = threading.Thread(target=play)
    player.start()
    assert served.output().tolist() == [40, 40, 41]
    player.join()


def test_an_iterator_that_is_dropped_or_cancelled_cancels_the_call(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_outstanding(monkeypatch, 1)
    server = FakeServer(lambda call: call.answer(Tensor("OUT", DataType.FP32, np.ones(1, np.float32)), final=False))
    served = surround(
        serve(
            CALL
            + """
class TritonPythonModel:
    def execute(self, requests):
        dropped = call(np.ones(1, np.float32)).exec(decoupled=True)
        assert not next(dropped).has_error()
        del dropped
        cancelled = call(np.ones(1, np.float32)).exec(decoupled=True)
        assert not next(cancelled).has_error()
        cancelled.cancel()
        error = list(cancelled)[-1].error()
        assert error.code() == pb_utils.TritonError.CANCELLED
        return [answer(tensor(np.zeros(1))) for request in requests]
"""
        ),
        server,
    )
    for _ in range(2):
        served.output()
    assert len(server.calls) == 4
    assert all(call.cancelled.wait(10) for call in server.calls)


ASYNC = (
    CALL
    + """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        futures = [call(np.full(1, number, np.float32)).async_exec() for number in range(5)]
        numbers = [float(each.output_tensors()[0].as_numpy()[0]) for each in await asyncio.gather(*futures)]
        seen = [each async for each in await call(np.ones(1, np.float32)).async_exec(decoupled=True)]
        try:
            await asyncio.wait_for(call(np.ones(1, np.float32), "never").async_exec(), 0.01)
        except asyncio.TimeoutError:
            numbers.append(99)
        return [answer(tensor(np.array([*numbers, len(seen)]))) for request in requests]
"""
)


def test_coroutines(make: Serve) -> None:
    def behave(call: Call) -> None:
        if call.request.model_name != "never":
            call.answer(*(Tensor("OUT", each.datatype, each.array) for each in call.request.inputs))

    server = FakeServer(behave)
    served = surround(make(ASYNC), server)
    for _ in range(2):
        assert served.output().tolist() == [0, 1, 2, 3, 4, 99, 1]
    assert all(call.cancelled.wait(10) for call in server.calls if call.request.model_name == "never")
    assert all(call.waiting is not None for call in server.calls)


def test_models_are_loaded_and_unloaded(serve: Serve) -> None:
    server = FakeServer()
    served = surround(
        serve("""
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.load_model("a", config="{}", files={"file:1/model.py": b"code", "file:1/empty": b""})
        pb_utils.unload_model("a", unload_dependents=True)
        try:
            pb_utils.load_model("bad")
        except pb_utils.TritonModelException as error:
            refused = str(error)
        assert refused == "Failed to load model: Failed to process the request for model 'm_0', message: no such model", refused
        try:
            pb_utils.load_model("x", files={"1/model.py": b""})
        except pb_utils.TritonModelException as error:
            assert "files are named 'file:<version>/<name>', got '1/model.py'" in str(error), error
        ready = [pb_utils.is_model_ready("ready"), pb_utils.is_model_ready("ready", "1"), pb_utils.is_model_ready("ready", "2")]
        for wrong in ("x", "-1"):
            try:
                pb_utils.is_model_ready("ready", wrong)
            except pb_utils.TritonModelException as error:
                assert "version should be an integral value > 0" in str(error)
        return [answer(tensor(np.array(ready))) for request in requests]
"""),
        server,
    )
    assert served.output().tolist() == [True, True, False]
    assert server.loads[0].files == {"1/model.py": b"code", "1/empty": b""}
    assert [load.model_name for load in server.loads] == ["a", "bad"]
    assert server.unloads == [("a", True)]


@pytest.mark.parametrize("where", ["initialize", "finalize"])
def test_what_is_possible_outside_of_execute(serve: Serve, where: str) -> None:
    served = surround(
        serve(
            CALL
            + f"""
class TritonPythonModel:
    def {where}(self, *args):
        for attempt in (call(np.ones(1)).exec, lambda: pb_utils.load_model("x")):
            try:
                attempt()
            except pb_utils.TritonModelException as error:
                pb_utils.Logger.log_warn(str(error))
        pb_utils.Logger.log_warn(str(pb_utils.is_model_ready("ready")))
    def execute(self, requests):
        return [answer(tensor(given(request))) for request in requests]
"""
        ),
        FakeServer(),
    )
    served.output()
    served.close()
    said = " ".join(served.logged("warning"))
    assert "BLS is only supported during the 'execute' function." in said
    assert f"load_model() is not possible in {where}()" in said
    assert "True" in said


def test_memory_of_a_gpu_is_refused(serve: Serve) -> None:
    served = surround(
        serve(ECHO.replace("call(given(request))", "call(given(request), preferred_memory=pb_utils.PreferredMemory(1))")),
        FakeServer(),
    )
    with pytest.raises(Internal, match="preferred_memory TRITONSERVER_MEMORY_GPU is not offered"):
        served.run()


def test_a_bound_on_outstanding_calls(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_server, "MODEL_CALLS_OUTSTANDING_MAX", 3)
    monkeypatch.setattr(thread_calls, "MODEL_CALLS_OUTSTANDING_MAX", 3)
    served = surround(
        serve(
            CALL
            + """
class TritonPythonModel:
    def execute(self, requests):
        kept = [call(np.ones(1)).exec(decoupled=True) for _ in range(3)]
        return [pb_utils.InferenceResponse(error=call(np.ones(1)).exec().error()) for request in requests]
"""
        ),
        FakeServer(lambda call: None),
    )
    error = served.run()[0].error
    assert error is not None
    assert error.code is ErrorCode.UNAVAILABLE
    assert "3 calls of instance 'm_0' are outstanding" in error.message


def test_calls_of_a_worker_that_dies_are_cancelled(make: Serve) -> None:
    server = FakeServer(lambda call: None)
    served = surround(make(ECHO), server)
    pid = served.python.pid

    def kill() -> None:
        server.arrived.acquire()
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(InstanceFailure):
        served.run()
    killer.join()
    assert server.calls[0].cancelled.wait(10)
    assert server.calls[0].waiting is not None
    assert server.calls[0].waiting.completed


def test_calls_of_threads_are_cancelled_when_the_model_is_unloaded(serve: Serve) -> None:
    server = FakeServer(lambda call: None)
    served = surround(
        serve(
            CALL
            + """
import threading

class TritonPythonModel:
    def execute(self, requests):
        threading.Thread(target=lambda: call(np.ones(1)).exec(), daemon=True).start()
        return [answer(tensor(given(request))) for request in requests]
"""
        ),
        server,
    )
    served.output()
    assert server.arrived.acquire(timeout=10)
    served.close()
    assert server.calls[0].cancelled.wait(10)


def test_nothing_is_left_of_ten_thousand_calls(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_outstanding(monkeypatch, 1)
    server = FakeServer()
    server.keep = False
    served = surround(
        serve(
            CALL
            + """
class TritonPythonModel:
    def execute(self, requests):
        small, large = np.ones(4, np.float32), np.ones(40_000, np.float32)
        for number in range(2500):
            response = call(large if number % 50 == 0 else small).exec()
            assert response.output_tensors()[0].as_numpy()[-1] == 1
        files = os.listdir("/proc/self/fd")
        with open("/proc/self/maps") as maps:
            mapped = sum("memfd:tpy" in line for line in maps)
        return [answer(tensor(np.array([len(files), mapped]))) for request in requests]
"""
        ),
        server,
    )
    files, mapped = served.output().tolist()
    ours = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        # Where blocks come back late one memory more may be needed, and is kept.
        files_again, mapped_again = served.output().tolist()
        assert files_again - mapped_again == files - mapped
        assert mapped_again <= 8
    wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= ours + 1)
    assert server.count == 10_000


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("connection.send(Kind.EXECUTE, 1, '[]')", "unexpected EXECUTE"),
        ("connection.send(Kind.CALL, 7, '{}')", "Expected `array`"),
        ("connection.send(Kind.CALL, 7, 'not json')", "JSON is malformed"),
        ("connection.send(Kind.CALL, 2, again)", "call 2 is outstanding already"),
        ("connection.send(Kind.CALL, 0, again)", "call 0 is outstanding already"),
        ("connection.send(Kind.CALL_PROGRESS, 0, '[[[2,9]],[]]')", "9 of 0 responses were taken"),
        ("connection.send(Kind.QUERY, 7, json.dumps(dict(type='format', model='x')))", "Invalid value 'format'"),
        (
            "connection.send(Kind.QUERY, 7, json.dumps(dict(type='cancelled', batch=9, index=0)))",
            "asked for request 0 of batch 9",
        ),
        ("connection.send(Kind.NOTIFICATION, 7, json.dumps(dict(type='log', level='info')))", "missing required field `message`"),
        ("connection.send(Kind.READY, 0, '{}')", "READY while serving"),
        ("connection._endpoint._socket.sendall(b'rubbish' * 100)", "not a frame"),
        (
            "connection._endpoint._borrower.released.append(77); call(np.ones(1)).exec()",
            "segment 77 given back, but it was not lent",
        ),
    ],
)
def test_a_worker_that_breaks_the_rules_is_ended(make: Serve, attack: str, why: str) -> None:
    """And what its model has called is cancelled."""
    server = FakeServer(lambda call: None if call.streams else call.answer())
    served = surround(
        make(
            CALL
            + f"""
context = sys.modules["tpy_python_worker.pb_utils.context"]
Kind = sys.modules["tpy_python_worker.wire.core.frames"].FrameKind
again = json.dumps([0, True, ["x", -1, "", 0, 0, 0, "", [], []]])

class TritonPythonModel:
    def execute(self, requests):
        connection = context.current().calls._connection
        assert not call(np.ones(1)).exec().has_error()
        kept = call(np.ones(1)).exec(decoupled=True)
        {attack}
        error = list(kept)[-1].error()
        return [pb_utils.InferenceResponse(error=call(np.ones(1)).exec().error()) for request in requests]
"""
        ),
        server,
    )
    with pytest.raises(InstanceFailure, match="is not healthy"):
        served.run()
    assert all(call.cancelled.wait(10) for call in server.calls if call.streams)
    assert any(why in text for text in served.logged("error")), served.logs


def test_a_process_that_the_model_starts_cannot_call(make: Serve) -> None:
    served = surround(
        make(
            CALL
            + """
class TritonPythonModel:
    def execute(self, requests):
        call(np.ones(1)).exec()
        read, write = os.pipe()
        if not os.fork():
            try:
                call(np.ones(1)).exec()
            except pb_utils.TritonModelException as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.close(write)
        assert b"own process only" in os.read(read, 1000)
        return [answer(tensor(given(request))) for request in requests]
"""
        ),
        FakeServer(),
    )
    served.output()
