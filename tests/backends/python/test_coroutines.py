"""Coroutines of models that answer once: what they leave behind goes on between batches, in the same thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.backends.python.calls import Call, FakeServer, surround
from tests.backends.python.conftest import Serve, request
from tests.backends.python.test_decoupled import told
from tpy.backend import AnswerLater
from tpy.messages import Tensor
from tpy.testing.requests import RecordingSender, batch_of

LATER = """
import asyncio, threading, time
F = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
def number(value):
    return answer(tensor(np.array([value], np.float32)))
class TritonPythonModel:
    def initialize(self, args):
        self.thread = threading.get_ident()
        self.tasks = set()
        self.ticks = 0
    def start(self, coroutine):
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
    async def execute(self, requests):
        return [await getattr(self, r.request_id())(r) for r in requests]
    async def plain(self, r):
        return answer(tensor(given(r)))
    async def keep(self, r):
        self.start(self.send(r.get_response_sender(), given(r)[0]))
    async def send(self, sender, value):
        await asyncio.sleep(0.05)
        assert threading.get_ident() == self.thread
        sender.send(number(value), F)
    async def tick(self, r):
        self.start(self.tick_on())
        return number(0)
    async def tick_on(self):
        while True:
            self.ticks += 1
            await asyncio.sleep(0.001)
    async def ticks_now(self, r):
        return number(self.ticks)
    async def leave(self, r):
        self.start(self.send_and(r.get_response_sender(), lambda: sys.exit("the task's own")))
    async def stop(self, r):
        self.start(self.send_and(r.get_response_sender(), asyncio.get_running_loop().stop))
    async def send_and(self, sender, end):
        await asyncio.sleep(0.02)
        sender.send(number(3), F)
        end()
"""


def test_an_answer_from_a_task_that_goes_on_after_execute(make: Serve) -> None:
    served = make(LATER)
    senders = []
    for value in range(3):
        (result,) = served.run(request(np.array([value], np.float32), id="keep"))
        assert isinstance(result, AnswerLater)
        senders.append(RecordingSender())
        result.begin(senders[-1])
    assert [told(sender) for sender in senders] == [[0], [1], [2]]


def test_tasks_run_while_nothing_is_asked(make: Serve) -> None:
    served = make(LATER)
    served.run(request(id="tick"))
    seen = 0.0
    for _ in range(5):
        (result,) = served.run(request(np.array([7], np.float32), id="keep"))
        sender = RecordingSender()
        result.begin(sender)  # type: ignore[attr-defined]  # an AnswerLater
        assert told(sender) == [7], "after 50 ms in which no batch came"
        ticks = float(served.output(request(id="ticks_now"))[0])
        assert ticks > seen
        seen = ticks


def test_large_batches_arrive_beside_tasks(make: Serve) -> None:
    """More than one read, and files."""
    served = make(LATER)
    served.run(request(id="tick"))
    for size in (1, 15_000, 40_000, 400_000):
        array = np.arange(size, dtype=np.float32)
        assert np.array_equal(served.output(request(array, id="plain")), array)


@pytest.mark.parametrize("how", ["leave", "stop"])
def test_a_task_does_not_end_the_worker(make: Serve, how: str) -> None:
    served = make(LATER)
    served.run(request(id="tick"))
    sender = RecordingSender()
    (result,) = served.run(request(id=how))
    result.begin(sender)  # type: ignore[attr-defined]  # an AnswerLater
    assert told(sender) == [3]
    assert served.output(request(np.array([4], np.float32), id="plain")) == 4


def test_finalize_ends_what_is_left(make: Serve) -> None:
    served = make(LATER)
    served.run(request(id="tick"))
    served.close()
    assert not [text for _, text in served.logs if "never" in text or "destroyed" in text]


CALLS = """
import asyncio
class TritonPythonModel:
    async def tick(self):
        while True:
            self.ticks += 1
            await asyncio.sleep(0.001)
    async def execute(self, requests):
        self.ticks = 0
        ticking = asyncio.get_running_loop().create_task(self.tick())
        asked = pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"], inputs=[tensor(np.ones(1), "IN")])
        responses = await asked.async_exec(decoupled=True)
        first = self.ticks
        count = 0
        async for response in responses:
            count += len(response.output_tensors())
        ticking.cancel()
        return [answer(tensor(np.array([count, first, self.ticks], np.float32))) for r in requests]
"""


def test_waiting_for_the_responses_of_a_call_holds_up_no_task(make: Serve) -> None:
    """Neither the wait for the first, as in Triton, nor `async for` over the others."""
    served = make(CALLS)
    waiting: list[Call] = []
    server = FakeServer(waiting.append)
    surround(served, server)
    future = served.instance.start(batch_of((request(),)))
    assert server.arrived.acquire(timeout=20)
    (call,) = waiting
    for final in (False, False, True):
        threading.Event().wait(0.1)  # in which the model's other task goes on
        call.answer(*(Tensor("OUT", each.datatype, each.array) for each in call.request.inputs), final=final)
    count, first, all_ticks = future.result()[0].outputs[0].array
    assert count == 3
    assert first > 3
    assert all_ticks > first + 3
