"""Models of the backend `function` whose requests are answered elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import pytest

import tpy
from tpy.backend import ExecutionRequest, ExecutionResult, ResponseSender
from tpy.errors import NotFound
from tpy.messages import DataType, Tensor
from tpy_data.backends.function import FORWARDERS, PARAMETER

T = TypeVar("T")

X = np.ones(1, np.float32)


class Elsewhere:
    """Keeps requests and their senders, and knows which of them nobody waits for any more."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[tuple[ExecutionRequest, ResponseSender]] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def forward(self, request: ExecutionRequest, sender: ResponseSender) -> None:
        sender.watch(lambda count: None, lambda: self._put(self.ended, request.id))
        self._put(self.came, (request, sender))

    def _put(self, queue: asyncio.Queue[T], item: T) -> None:
        self._loop.call_soon_threadsafe(queue.put_nowait, item)


def result(value: float) -> ExecutionResult:
    return ExecutionResult([Tensor("Y", DataType.FP32, np.array([value], np.float32))], parameters={"way": "far"})


@pytest.fixture
def server() -> Iterator[tpy.Server]:
    with tpy.Server() as server:
        yield server
    FORWARDERS.pop("elsewhere", None)


async def forwarding(server: tpy.Server, *, decoupled: bool = False) -> Elsewhere:
    """Have a model `far` forwarded."""
    FORWARDERS["elsewhere"] = elsewhere = Elsewhere()
    config = {
        "backend": "function",
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [1]}],
        "model_transaction_policy": {"decoupled": decoupled},
        "parameters": {PARAMETER: {"string_value": "elsewhere"}},
    }
    await asyncio.to_thread(server.load, "far", config=config, files={"1/far": b""})
    return elsewhere


def test_requests_wait_elsewhere_and_overtake_each_other(server: tpy.Server) -> None:
    async def ask() -> None:
        elsewhere = await forwarding(server)
        tasks = [asyncio.create_task(server.model("far").infer_async({"X": X}, id=f"r{number}")) for number in range(3)]
        senders = {}
        for _ in tasks:  # one instance, and all are there before the first is answered
            request, sender = await elsewhere.came.get()
            senders[request.id] = sender
        senders["r2"].send(result(2), final=True, wait=False)
        assert (await tasks[2])["Y"].tolist() == [2]
        senders["r0"].send(ExecutionResult(error=NotFound("not there")), final=True, wait=False)
        with pytest.raises(NotFound, match=r"^not there$"):
            await tasks[0]
        senders["r1"].send(result(1), final=True, wait=False)
        answer = await tasks[1]
        assert (answer["Y"].tolist(), dict(answer.parameters)) == ([1], {"way": "far"})

    asyncio.run(ask())


def test_a_request_that_ends_here_is_told_of_elsewhere(server: tpy.Server) -> None:
    async def ask() -> None:
        elsewhere = await forwarding(server)
        task = asyncio.create_task(server.model("far").infer_async({"X": X}, id="left"))
        await elsewhere.came.get()
        task.cancel()
        assert await elsewhere.ended.get() == "left"

    asyncio.run(ask())


def test_a_decoupled_model_elsewhere_sends_any_number_of_responses(server: tpy.Server) -> None:
    async def ask() -> list[float]:
        elsewhere = await forwarding(server, decoupled=True)
        answers = server.model("far").stream_async({"X": X})
        task = asyncio.create_task(anext(answers))
        _, sender = await elsewhere.came.get()
        for number in range(3):
            sender.send(result(number), final=False, wait=False)
        sender.send(None, final=True, wait=False)
        return [float((await task)["Y"][0]), *[float(answer["Y"][0]) async for answer in answers]]

    assert asyncio.run(ask()) == [0, 1, 2]
