"""The stock tritonclient through Dynamo's frontend to two workers on our module `tritonserver`: answers, streams, metrics, logs,
a worker that drains and one that is killed, both under load. One cell for all, in this order: each test leaves it whole."""

from __future__ import annotations

import queue
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.dynamo.cell import INSTALLED, Cell, running
from tests.e2e.repositories import ModelFolder
from tests.e2e.waiting import wait_until

pytestmark = pytest.mark.skipif(not (INSTALLED / "dynamo").is_dir(), reason="needs ai-dynamo: make test-dynamo")

SAME = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
"""
COUNT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0]):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([number], np.int64))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TYPES = {"fp32": "FP32", "int64": "INT64", "bool": "BOOL", "string": "STRING", "fp16": "FP16"}
LOADERS = 4


def config(kind: str, more: str) -> str:
    tensors = " ".join(f'{way} [{{ name: "{way.upper()}0" data_type: TYPE_{kind} dims: [ -1 ] }}]' for way in ("input", "output"))
    return f'backend: "python"\n{tensors}\n{more}\n'


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, below those that the system gives to clients: Dynamo takes 16 bits with a sign."""
    found: list[int] = []
    for port in range(21000, 30000, 7):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
        if len(found) == count:
            break
    return found


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = tmp_path_factory.mktemp("dynamo")
    for name, kind in TYPES.items():
        ModelFolder(folder / "models", f"same_{name}").python(SAME).config(config(kind, "max_batch_size: 8"))
    decoupled = "model_transaction_policy { decoupled: true }"
    ModelFolder(folder / "models", "count").python(COUNT).config(config("INT64", decoupled))
    with running(folder, folder / "models", free_ports(4)) as found:
        for model in ("count", *[f"same_{name}" for name in TYPES]):
            found.wait_served(model, 2)
        yield found


def given(values: Any, kind: str) -> triton.InferInput:
    array = np.asarray(values)
    tensor = triton.InferInput("INPUT0", list(array.shape), kind)
    tensor.set_data_from_numpy(array)
    return tensor


VALUES = {
    "FP32": np.array([[1.5, -2.0]], np.float32),
    "INT64": np.array([[1, -(2**60)]], np.int64),
    "BOOL": np.array([[True, False]]),
    "BYTES": np.array([[b"a", b"\xff\x00", b""]], np.object_),
}


@pytest.mark.parametrize("kind", VALUES)
def test_answers(cell: Cell, kind: str) -> None:
    model = "same_string" if kind == "BYTES" else f"same_{kind.lower()}"
    with triton.InferenceServerClient(cell.url) as client:
        assert client.infer(model, [given(VALUES[kind], kind)]).as_numpy("OUTPUT0").tolist() == VALUES[kind].tolist()
        described = client.get_model_config(model, as_json=True)["config"]
        assert (described["name"], described["max_batch_size"]) == (model, 8)


def test_what_dynamo_cannot(cell: Cell) -> None:
    """The page lists these: one that works has to leave it."""
    with triton.InferenceServerClient(cell.url) as client:
        with pytest.raises(InferenceServerException, match="expected u16"):
            client.infer("same_fp16", [given(np.array([[1.5]], np.float16), "FP16")])
        ones = [given(np.array([[1.0, 2.0]], np.float32), "FP32")]
        assert client.infer("same_fp32", ones, model_version="9").get_response().model_name == "same_fp32"
        for call in (client.get_server_metadata, client.get_inference_statistics, client.get_system_shared_memory_status):
            with pytest.raises(InferenceServerException, match="UNIMPLEMENTED"):
                call()
        top = client.infer("same_fp32", ones, outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=1)])
        assert top.as_numpy("OUTPUT0").tolist() == [[b"2.000000:1"]]


def test_streams(cell: Cell) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(cell.url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("count", [given(np.array([3], np.int64), "INT64")])
        found = [answers.get(timeout=30) for _ in range(3)]
        client.stop_stream()
    assert [error for _, error in found] == [None] * 3
    assert [result.as_numpy("OUTPUT0").tolist() for result, _ in found] == [[0], [1], [2]]


def test_metrics_and_the_log_are_dynamos(cell: Cell) -> None:
    pages = [cell.metrics(number) for number in range(2)]
    assert all('nv_inference_request_success{model="same_fp32",version="1"}' in page for page in pages)
    assert all("tpy_server_load" in page for page in pages)
    loaded = [line for line in cell.log("worker-0").splitlines() if "successfully loaded 'same_fp32'" in line]
    assert loaded
    assert all(line.startswith("{") for line in loaded)


def under_load(cell: Cell, disturb: Callable[[], None]) -> tuple[int, Counter[str]]:
    """The requests that were answered right while `disturb` ran and some time after it, and the errors of the others."""
    right = 0
    errors: Counter[str] = Counter()
    over = threading.Event()
    lock = threading.Lock()

    def load() -> None:
        nonlocal right
        ones = [given(VALUES["FP32"], "FP32")]
        with triton.InferenceServerClient(cell.url) as client:
            while not over.is_set():
                try:
                    assert client.infer("same_fp32", ones, client_timeout=30).as_numpy("OUTPUT0").tolist() == [[1.5, -2.0]]
                except InferenceServerException as error:
                    with lock:
                        errors[error.message()] += 1
                else:
                    with lock:
                        right += 1

    failed: list[BaseException] = []

    def run() -> None:
        try:
            load()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(LOADERS)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: right > 200 or failed)
        disturb()
        seen = right
        wait_until(lambda: right > seen + 500 or failed)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failed == []
    return right, errors


def test_a_worker_drains_under_load(cell: Cell) -> None:
    """Dynamo's frontend may give up what it is just sending to a worker at the moment that this leaves the discovery, though the
    worker goes on for seconds: one request of each client at most."""

    def drain() -> None:
        worker = cell.workers.pop(0)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0

    right, errors = under_load(cell, drain)
    assert right > 700
    assert sum(errors.values()) <= LOADERS
    assert all("before response stream was established" in text or "instance" in text for text in errors)
    cell.add_worker(0)
    cell.wait_served("same_fp32", 2)


def test_a_worker_is_killed_under_load(cell: Cell) -> None:
    """Requests that it had fail, and those that Dynamo sends it until it has noticed: a few for each client, then none."""

    if len(cell.workers) < 2:  # the test before has failed
        cell.add_worker(0)
        cell.wait_served("same_fp32", 2)

    def kill() -> None:
        worker = cell.workers.pop(0)
        worker.kill()
        worker.wait()

    right, errors = under_load(cell, kill)
    assert right > 700
    assert sum(errors.values()) <= 4 * LOADERS
    with triton.InferenceServerClient(cell.url) as client:
        assert client.infer("same_fp32", [given(VALUES["FP32"], "FP32")]).as_numpy("OUTPUT0").tolist() == [[1.5, -2.0]]


def test_a_repository_that_is_not_there_is_one_sentence(cell: Cell, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    ports = free_ports(3)
    with running(tmp_path / "own", tmp_path / "nothing", ports) as other:
        assert other.workers[0].wait(60) != 0
        assert f"failed to stat file {tmp_path / 'nothing'}" in other.log("worker-0")
