"""Decoupled python models: senders from any thread, in both ways of isolation."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from tpy.backend import InstanceFailure
from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.testing.requests import RecordingSender

from .conftest import Serve, request

FINAL = "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"

COUNT = f"""
    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for number in range(int(given(request)[0])):
                    sender.send(answer(tensor(np.array([number], np.float32))))
                sender.send(flags={FINAL})
"""


def told(sender: RecordingSender) -> list[Any]:
    """Values, errors, and "end" for the flag alone."""
    assert sender.finished.wait(20)
    said: list[Any] = []
    for result, _ in sender.sent:
        if result is None:
            said.append("end")
        elif result.error is not None:
            said.append(str(result.error))
        else:
            said.append(float(result.outputs[0].array.reshape(-1)[0]) if result.outputs else "empty")
    assert [final for _, final in sender.sent] == [False] * (len(said) - 1) + [True]
    return said


def ask(served: Any, value: float = 0, **options: Any) -> RecordingSender:
    sender = RecordingSender()
    served.run(request(np.array([value], np.float32), sender=sender, cancelled=lambda: sender.cancelled, **options))
    return sender


def test_any_number_of_responses(serve: Serve) -> None:
    served = serve(COUNT, decoupled=True)
    assert told(ask(served, 0)) == ["end"]
    assert told(ask(served, 1)) == [0.0, "end"]
    assert told(ask(served, 40)) == [*map(float, range(40)), "end"]


def test_a_batch(serve: Serve) -> None:
    served = serve(COUNT, decoupled=True)
    senders = [RecordingSender() for _ in range(3)]
    served.run(*[request(np.array([n], np.float32), sender=sender) for n, sender in enumerate(senders)])
    assert [told(sender) for sender in senders] == [["end"], [0.0, "end"], [0.0, 1.0, "end"]]


def test_final_with_a_response_and_parameters(serve: Serve) -> None:
    served = serve(
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    response = pb_utils.InferenceResponse([tensor(given(request))], parameters={{"k": 1, "s": "x"}})
                    request.get_response_sender().send(response, {FINAL})
        """,
        decoupled=True,
    )
    sender = ask(served, 5)
    assert told(sender) == [5.0]
    result, _ = sender.sent[0]
    assert result is not None
    assert dict(result.parameters) == {"k": 1, "s": "x"}


def test_from_a_thread_after_execute(serve: Serve) -> None:
    served = serve(
        f"""
        import threading
        class TritonPythonModel:
            def initialize(self, args):
                self.go = threading.Event()
            def execute(self, requests):
                for request in requests:
                    if given(request)[0] < 0:
                        self.go.set()
                        request.get_response_sender().send(flags={FINAL})
                    else:
                        threading.Thread(target=self.work, args=(request.get_response_sender(),)).start()
            def work(self, sender):
                self.go.wait(20)
                for number in range(3):
                    sender.send(answer(tensor(np.array([number], np.float32))))
                sender.send(flags={FINAL})
        """,
        decoupled=True,
    )
    first = ask(served, 1)
    assert first.sent == []
    assert told(ask(served, -1)) == ["end"]
    assert told(first) == [0.0, 1.0, 2.0, "end"]


def test_large_responses(serve: Serve) -> None:
    served = serve(
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    for number in range(12):
                        sender.send(answer(tensor(np.full(300_000, number, np.float32))))
                    sender.send(flags={FINAL})
        """,
        decoupled=True,
    )
    for _ in range(3):
        sender = ask(served)
        assert told(sender) == [*map(float, range(12)), "end"]
        arrays = [result.outputs[0].array for result, _ in sender.sent if result is not None]
        assert all((array == number).all() for number, array in enumerate(arrays))


def test_errors(serve: Serve) -> None:
    served = serve(
        f"""
        def error(text, code):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))
        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                sender.send(error("one", pb_utils.TritonError.INVALID_ARG))
                sender.send(error("two", pb_utils.TritonError.INTERNAL), {FINAL})
        """,
        decoupled=True,
    )
    sender = ask(served)
    assert told(sender) == ["one", "two"]
    errors: list[TpyError | None] = [result.error for result, _ in sender.sent if result is not None]
    assert [type(error) for error in errors] == [InvalidArgument, Internal]


def test_execute_that_raises_and_what_its_sender_says_then(serve: Serve) -> None:
    served = serve(
        f"""
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = None
            def execute(self, requests):
                if self.kept is None:
                    self.kept = requests[0].get_response_sender()
                    raise ValueError("no")
                try:
                    self.kept.send(answer(tensor(given(requests[0]))))
                except pb_utils.TritonModelException as error:
                    print("said:", error, flush=True)
                requests[0].get_response_sender().send(answer(tensor(given(requests[0]))), {FINAL})
        """,
        decoupled=True,
    )
    with pytest.raises(Internal, match=r"Failed to process the request\(s\) for model 'm_0', message: ValueError: no\n\nAt:\n"):
        ask(served)
    assert told(ask(served, 4)) == [4.0]


def test_misuse(serve: Serve) -> None:
    served = serve(
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                said = []
                for misuse in (lambda: sender.send(), lambda: sender.send(answer(), 7), lambda: sender.send("x"),
                               lambda: sender.send(answer(tensor(given(requests[0]))), {FINAL}),
                               lambda: sender.send(answer())):
                    try:
                        misuse()
                    except Exception as error:
                        said.append(str(error))
                pb_utils.Logger.log_info("|".join(said))
        """,
        decoupled=True,
    )
    assert told(ask(served, 2)) == [2.0]
    served.close()
    (line,) = served.logged("info")
    assert line.split(": ", 1)[1].split("|") == [
        "Inference Response object must be provided when the response flags is set to zero.",
        "Unable to send response. Unsupported flag provided.",
        "send: response must be a pb_utils.InferenceResponse, got str",
        "Unable to send response. Response sender has been closed.",
    ]


def test_execute_must_return_none(serve: Serve) -> None:
    served = serve(
        """
        class TritonPythonModel:
            def execute(self, requests):
                return [answer(tensor(given(request))) for request in requests]
        """,
        decoupled=True,
    )
    with pytest.raises(
        Internal, match=r"Python model 'm_0' is using the decoupled mode and the execute function must return None"
    ):
        ask(served)


def test_a_dropped_sender_ends_its_request(serve: Serve) -> None:
    served = serve(
        """
        class TritonPythonModel:
            def execute(self, requests):
                requests[0].get_response_sender().send(answer(tensor(given(requests[0]))))
        """,
        decoupled=True,
    )
    said = told(ask(served, 3))
    assert said[0] == 3.0
    assert said[1].startswith("the model dropped the response sender of a request without sending")


def test_cancellation_reaches_the_model_and_frees_one_that_waits(serve: Serve) -> None:
    """Nobody takes its responses, so it waits; then it is cancelled, and ends."""
    served = serve(
        f"""
        import threading
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    threading.Thread(target=self.work, args=(request.get_response_sender(),)).start()
            def work(self, sender):
                number = 0
                while not sender.is_cancelled():
                    sender.send(answer(tensor(np.array([number], np.float32))))
                    number += 1
                sender.send(flags={FINAL})
        """,
        decoupled=True,
    )
    sender = RecordingSender()
    sender.takes = False
    served.run(request(np.zeros(1, np.float32), sender=sender, cancelled=lambda: sender.cancelled or len(sender.sent) > 500))
    threading.Timer(0.05, sender.cancel).start()
    assert sender.finished.wait(20)
    assert len(sender.sent) <= 502


def test_a_request_that_was_cancelled_before_it_was_given_is_known_as_such(serve: Serve) -> None:
    served = serve(
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                while not sender.is_cancelled():
                    pass
                sender.send(flags={FINAL})
        """,
        decoupled=True,
    )
    sender = RecordingSender()
    sender.cancel()
    served.run(request(np.zeros(1, np.float32), sender=sender, cancelled=lambda: sender.cancelled))
    assert told(sender) == ["end"]


def test_the_window_of_a_worker(make: Serve) -> None:
    """A worker sends no more than a window ahead, and goes on as responses are taken."""
    served = make(COUNT, decoupled=True)
    sender = RecordingSender()
    sender.takes = False
    runner = threading.Thread(target=served.run, args=(request(np.array([200], np.float32), sender=sender),), daemon=True)
    runner.start()
    while len(sender.sent) < 64:
        runner.join(0.005)
    runner.join(0.05)
    assert len(sender.sent) == 64
    sender.take(40)
    while len(sender.sent) < 104:
        runner.join(0.005)
    sender.takes = True
    sender.take(64)
    runner.join(20)
    assert len(told(sender)) == 201


def test_a_worker_that_dies_ends_its_requests(make: Serve) -> None:
    served = make(
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = []
            def execute(self, requests):
                self.kept += [request.get_response_sender() for request in requests]
        """,
        decoupled=True,
    )
    sender = ask(served)
    os.kill(served.python.pid, signal.SIGKILL)
    assert told(sender) == [
        "Stub process 'm_0' is not healthy. It was ended by SIGKILL (as the kernel does when memory runs out)"
    ]
    with pytest.raises(InstanceFailure, match="not healthy"):
        ask(served)


def test_async_executions_overlap(make: Serve) -> None:
    served = make(
        f"""
        import asyncio
        class TritonPythonModel:
            def initialize(self, args):
                self.go = None
            async def execute(self, requests):
                if self.go is None:
                    self.go = asyncio.Event()
                sender = requests[0].get_response_sender()
                value = given(requests[0])
                if value[0] == 3:
                    raise ValueError("async no")
                if value[0] == 1:
                    await self.go.wait()
                else:
                    self.go.set()
                sender.send(answer(tensor(value)), {FINAL})
        """,
        decoupled=True,
    )
    first = ask(served, 1)
    assert told(ask(served, 2)) == [2.0]
    assert told(first) == [1.0]
    (said,) = told(ask(served, 3))
    assert "ValueError: async no" in said


def test_close_ends_open_requests(serve: Serve) -> None:
    served = serve(
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = []
            def execute(self, requests):
                self.kept += [request.get_response_sender() for request in requests]
            def finalize(self):
                self.kept.clear()
        """,
        decoupled=True,
    )
    sender = ask(served)
    served.close()
    (said,) = told(sender)
    assert "dropped" in said or "not healthy" in said
