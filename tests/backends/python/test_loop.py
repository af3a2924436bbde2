"""Connections that a loop reads: what it leaves to a thread, and that both together lose and mix up nothing."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from tests.backends.python.calls import Call, FakeServer
from tests.backends.python.conftest import Serve, Served, request
from tpy.backend import CallSink, Demand, DescriptorReader, LoopCalls, ServerCall, WaitingBatch
from tpy.messages import InferenceRequest

CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        sizes = given(requests[0]).astype(int)
        out = []
        for size in sizes:
            sent = pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"],
                inputs=[pb_utils.Tensor("IN", np.full(size, size, np.float32))])
            answered = sent.exec()
            assert not answered.has_error(), answered.error().message()
            array = pb_utils.get_output_tensor_by_name(answered, "OUT").as_numpy()
            assert (array == size).all() and array.shape == (size,)
            out.append(array.size)
        return [answer(tensor(np.array(out, np.float32)))]
"""

MANY = """
import asyncio
class TritonPythonModel:
    async def execute(self, requests):
        count = int(given(requests[0])[0])
        asked = [pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"],
            inputs=[pb_utils.Tensor("IN", np.full(3, number, np.float32))]).async_exec() for number in range(count)]
        answered = await asyncio.gather(*asked)
        out = [pb_utils.get_output_tensor_by_name(each, "OUT").as_numpy()[0] for each in answered]
        return [answer(tensor(np.array(out, np.float32)))]
"""


TEXTS = """
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for count in given(requests[0]).tolist():
            texts = np.array([b"x"] * int(count), np.object_)
            asked = pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"], inputs=[tensor(texts, "IN")])
            out.append(asked.exec().output_tensors()[0].as_numpy().size)
        return [answer(tensor(np.array(out, np.float32)))]
"""


TALKATIVE = """
class TritonPythonModel:
    def execute(self, requests):
        for _ in range(3):
            pb_utils.Logger.log_info("x" * 20_000)
        return [answer(tensor(given(each))) for each in requests]
"""


class LoopServer(FakeServer):
    """Has a thread that plays the loop. `heard` counts the calls that were made in it."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = 0
        self.watches = 0
        self.gone = False
        self.threads: list[threading.Thread] = []

    def infer(
        self, request: InferenceRequest, sink: CallSink, *, streams: bool, waiting: WaitingBatch | None = None
    ) -> ServerCall:
        self.heard += threading.current_thread() in self.threads
        return super().infer(request, sink, streams=streams, waiting=waiting)

    def watch(self, descriptor: int, reader: DescriptorReader) -> bool:
        if self.gone:
            return False
        self.watches += 1
        self.threads.append(threading.Thread(target=self._watch, args=(descriptor, reader)))
        self.threads[-1].start()
        return True

    def _watch(self, descriptor: int, reader: DescriptorReader) -> None:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll()
        while (after := reader.ready()) is not Demand.PAUSE:
            if after is Demand.READ:
                poller.poll()
        os.close(descriptor)


def make_caller(make: Serve, server: FakeServer, code: str = CALLER) -> Served:
    served = make(code)
    served.context = msgspec.structs.replace(served.context, server=server)
    return served


@pytest.fixture
def server() -> Iterator[LoopServer]:
    server = LoopServer()
    yield server
    for thread in server.threads:
        thread.join(10)
        assert not thread.is_alive()


def test_batches_and_calls_are_read_by_the_loop(make: Serve, server: LoopServer) -> None:
    assert isinstance(server, LoopCalls)
    served = make_caller(make, server)
    for _ in range(20):
        assert list(served.output(request(np.array([1, 2, 3], np.float32)))) == [1, 2, 3]
    assert (server.heard, server.watches) == (60, 1)
    served.close()


def test_large_calls_are_answered_by_a_thread(make: Serve, server: LoopServer) -> None:
    served = make_caller(make, server)
    sizes = [3, 100_000, 5, 200_000] * 10
    assert list(served.output(request(np.array(sizes, np.float32)))) == sizes
    assert server.count == server.heard == 40
    served.close()


def test_long_log_lines_hold_up_no_answer(make: Serve, server: LoopServer) -> None:
    """The answer right behind a message that is left to a thread is read."""
    served = make_caller(make, server, TALKATIVE)
    for _ in range(20):
        assert list(served.output()) == [0, 1, 2]
    assert len(served.logged("info")) == 60
    served.close()


def test_calls_with_many_texts_are_read_by_a_thread(make: Serve, server: LoopServer) -> None:
    served = make_caller(make, server, TEXTS)
    for _ in range(5):
        assert list(served.output(request(np.array([1, 5000, 2], np.float32)))) == [1, 5000, 2]
    assert (server.count, server.heard) == (15, 10)
    assert server.watches == 6
    served.close()


def test_many_calls_at_once(make: Serve, server: LoopServer) -> None:
    served = make_caller(make, server, MANY)
    for _ in range(5):
        assert list(served.output(request(np.array([200], np.float32)))) == list(range(200))
    assert server.count == 1000
    served.close()


def test_without_a_loop_a_thread_reads_all(make: Serve, server: LoopServer) -> None:
    server.gone = True
    served = make_caller(make, server)
    assert list(served.output(request(np.array([1, 2], np.float32)))) == [1, 2]
    assert (server.count, server.heard) == (2, 0)
    served.close()


def test_a_worker_that_dies_during_a_call_leaves_nobody_watching(make: Serve, server: LoopServer) -> None:
    def kill(call: Call) -> None:
        os.kill(served.python.pid, 9)

    server.behave = kill
    served = make_caller(make, server)
    with pytest.raises(Exception, match="is not healthy"):
        served.run(request(np.array([1], np.float32)))
    assert server.heard == 1
    assert server.calls[0].cancelled.wait(10)
