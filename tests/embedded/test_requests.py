"""Requests from threads, asyncio and Trio: values, streams, time-outs, cancellation."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import trio

import tpy
from tests.e2e.repositories import ModelFolder
from tests.e2e.waiting import wait_until
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.limits import EMBEDDED_RESPONSES_MAX

Run = Callable[[Callable[[], Awaitable[None]]], None]

COUNTER = """
import triton_python_backend_utils as pb_utils
import numpy as np, pathlib

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0]
            for number in range(abs(count)):
                if request.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("NUMBER", np.array([number], np.int32))]))
            if count < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("enough")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
"""
COUNTER_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


class Held:
    """A function that waits for a gate."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()

    def __call__(self, X: np.ndarray) -> np.ndarray:
        self.entered.set()
        self.gate.wait(60)
        return X


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tpy.Server]:
    repository = tmp_path_factory.mktemp("embedded") / "models"
    ModelFolder(repository, "counter").python(COUNTER).config(COUNTER_CONFIG)
    with tpy.Server(repository) as started:
        started.add_model("echo", lambda X: X, inputs=[("X", "FP32", [-1])], outputs=[("Y", "FP32", [-1])])
        yield started


@pytest.fixture
def held(server: tpy.Server) -> Iterator[Held]:
    """The model `held`."""
    function = Held()
    server.add_model("held", function, inputs=[("X", "FP32", [1])], outputs=[("Y", "FP32", [1])])
    yield function
    function.gate.set()


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_there(main: Callable[[], Awaitable[None]]) -> None:
        if request.param == "trio":
            trio.run(main)
        else:
            asyncio.run(main())  # type: ignore[arg-type]

    return run_there


class Lent:
    """Memory that others may look at."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_arrays_are_taken_without_a_copy(server: tpy.Server) -> None:
    seen = []
    server.add_model("look", lambda X: seen.append(X) or X, inputs=[("X", "FP32", [-1])], outputs=[("Y", "FP32", [-1])])
    array = np.arange(4, dtype=np.float32)
    for value in (array, Lent(array)):
        assert np.shares_memory(server.model("look").infer({"X": value})["Y"], array)
        assert np.shares_memory(seen.pop(), array)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"X": "words"}, "input 'X': expected FP32 values"),
        ({"X": [[1], [2, 3]]}, "input 'X': expected FP32 values"),
        ({"X": [1], "Z": [1]}, "unexpected inference input 'Z' for model 'echo'; its inputs are 'X'"),
        ({"X": np.array([1j])}, "input 'X': no data type of the protocol has elements of the NumPy type complex128"),
        ({"X": np.array([object()])}, "input 'X': expected str or bytes, got object"),
        ({"X": np.zeros(1, np.int32)}, "data-type is 'INT32', but model 'echo' expects 'FP32'"),
        ({}, "expected 1 inputs but got 0"),
    ],
)
def test_wrong_inputs_are_refused(server: tpy.Server, inputs: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        server.model("echo").infer(inputs)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("output", ["Y"]),
        ("outputs", "Y"),
        ("outputs", [5]),
        ("id", 5),
        ("id", "\ud800"),
        ("parameters", {"a": object()}),
        ("parameters", [1]),
        ("sequence_id", -1),
        ("sequence_id", 1.5),
        ("sequence_start", "yes"),
        ("priority", "high"),
        ("timeout_us", 1 << 64),
        ("timeout_s", float("inf")),
        ("timeout_s", "1"),
    ],
)
def test_wrong_options_are_refused(server: tpy.Server, option: str, value: object) -> None:
    """They would reach workers, which cannot be told them, or the scheduler."""
    with pytest.raises(InvalidArgument, match=f"'{option}'"):
        server.model("counter").infer({"COUNT": [1]}, **{option: value})


def test_a_request_ends_when_its_time_is_over(server: tpy.Server, held: Held) -> None:
    with pytest.raises(Unavailable, match=r"(?i)timeout|deadline"):
        server.model("held").infer({"X": [1]}, timeout_s=0.05)


def test_a_model_that_answers_often_is_streamed(server: tpy.Server) -> None:
    model = server.model("counter")
    wanted = 3 * EMBEDDED_RESPONSES_MAX
    assert [int(response["NUMBER"][0]) for response in model.stream({"COUNT": [wanted]})] == list(range(wanted))
    assert list(model.stream({"COUNT": [0]})) == []
    assert model.infer({"COUNT": [1]})["NUMBER"] == [0]
    with pytest.raises(TpyError, match="sends any number of responses: use stream"):
        model.infer({"COUNT": [2]})
    with pytest.raises(TpyError, match="sent no response"):
        model.infer({"COUNT": [0]})
    numbers = []
    with pytest.raises(TpyError, match="enough"):
        numbers.extend(response["NUMBER"] for response in model.stream({"COUNT": [-3]}))
    assert [response["Y"].tolist() for response in server.model("echo").stream({"X": [1, 2]})] == [[1, 2]]


def test_a_stream_that_is_closed_ends_its_request(server: tpy.Server) -> None:
    """The model sends as much as a slow reader lets it, and hears of the end."""
    model = server.model("counter")
    before = ended(server)
    endless = model.stream({"COUNT": [2**31 - 1]})
    assert [int(response["NUMBER"][0]) for response in islice(endless, 5)] == [0, 1, 2, 3, 4]
    endless.close()
    wait_until(lambda: ended(server) == before + 1)
    assert model.infer({"COUNT": [1]})["NUMBER"] == [0]


def ended(server: tpy.Server) -> int:
    """Requests to the counter that were cancelled."""
    line = next(
        line
        for line in server.metrics().splitlines()
        if line.startswith('nv_inference_request_failure{model="counter",reason="CANCELED"')
    )
    return int(float(line.split()[-1]))


def test_tasks_ask(server: tpy.Server, run: Run) -> None:
    async def main() -> None:
        echo = server.model("echo")
        for number in range(3):
            assert (await echo.infer_async({"X": [number]}))["Y"] == [number]
        with pytest.raises(InvalidArgument, match="unexpected inference input"):
            await echo.infer_async({"Z": np.zeros(1, np.float32)})
        async with aclosing(server.model("counter").stream_async({"COUNT": [200]})) as responses:
            assert [int(response["NUMBER"][0]) async for response in responses] == list(range(200))

    run(main)


def test_tasks_ask_at_once_on_asyncio(server: tpy.Server) -> None:
    async def main() -> None:
        echo = server.model("echo")
        answers = await asyncio.gather(*(echo.infer_async({"X": np.full(1, number, np.float32)}) for number in range(100)))
        assert [int(answer["Y"][0]) for answer in answers] == list(range(100))

    asyncio.run(main())


def test_a_task_that_is_cancelled_cancels_its_request(server: tpy.Server, held: Held, run: Run) -> None:
    async def on_asyncio() -> None:
        task = asyncio.ensure_future(server.model("held").infer_async({"X": np.zeros(1, np.float32)}))
        await asyncio.to_thread(held.entered.wait, 60)
        waiting = asyncio.ensure_future(server.model("held").infer_async({"X": np.zeros(1, np.float32)}))
        await asyncio.sleep(0)
        for each in (task, waiting):
            each.cancel()
            with pytest.raises(asyncio.CancelledError):
                await each

    async def on_trio() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(server.model("held").infer_async, {"X": np.zeros(1, np.float32)})
            await trio.to_thread.run_sync(held.entered.wait, 60)
            nursery.cancel_scope.cancel()

    async def main() -> None:
        await (on_trio() if trio.lowlevel.in_trio_run() else on_asyncio())

    run(main)
    held.gate.set()
    assert server.model("held").infer({"X": [4]})["Y"] == [4]


def test_ctrl_c_ends_the_wait_and_the_request(server: tpy.Server, held: Held) -> None:
    def interrupt() -> None:
        held.entered.wait(60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    presser = threading.Thread(target=interrupt)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        server.model("held").infer({"X": [1]})
    presser.join()
    held.gate.set()
    assert server.model("held").infer({"X": [4]})["Y"] == [4]


def test_a_server_in_an_async_program(run: Run, tmp_path: Path) -> None:
    ModelFolder(tmp_path / "models", "echo").identity()

    async def main() -> None:
        async with tpy.Server(tmp_path / "models") as server:
            assert (await server.model("echo").infer_async({"INPUT0": [[5]]}))["OUTPUT0"] == [[5]]

    run(main)


def test_a_closed_loop_is_told_nothing(server: tpy.Server, held: Held) -> None:
    """A loop that ends with a request under way leaves the server alone."""

    async def main() -> None:
        asking = asyncio.ensure_future(server.model("held").infer_async({"X": np.zeros(1, np.float32)}))
        await asyncio.to_thread(held.entered.wait, 60)
        asking.cancel()

    asyncio.run(main())
    held.gate.set()
    assert server.model("echo").infer({"X": [4]})["Y"] == [4]
