"""Sequences with the stock clients, while their model is updated and unloaded, and while the server stops."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from .sequence_models import summing
from .server import ServerProcess
from .waiting import wait_until

CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] } ]
sequence_batching {
  oldest { }
  max_sequence_idle_microseconds: 20000000
  state [ { input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "copy" value { string_value: "1" } }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "sum"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(summing())
    (folder / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    return tmp_path


@pytest.fixture
def server(repository: Path) -> Iterator[ServerProcess]:
    with ServerProcess("--model-control-mode=explicit", "--load-model=sum", repositories=[repository]) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.http) as client:
        yield client


def add(client: InferenceServerClient, id: int | str, value: float, **flags: bool) -> float:
    """The sum of the sequence so far."""
    tensor = InferInput("X", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[value]], np.float32))
    result: Any = client.infer("sum", [tensor], sequence_id=id, **flags).as_numpy("SUM")
    return float(result.item())


def test_sequences_outlive_the_update_and_the_unloading_of_their_model(repository: Path, client: InferenceServerClient) -> None:
    assert add(client, 1, 1, sequence_start=True) == 1
    (repository / "sum" / "config.pbtxt").write_text(
        CONFIG.replace('value: "1"', 'value: "2"').replace("4", "3"), encoding="utf-8"
    )
    client.load_model("sum")
    assert client.get_model_config("sum")["max_batch_size"] == 3
    assert add(client, "two", 10, sequence_start=True) == 10
    assert add(client, 1, 2) == 3
    client.unload_model("sum")
    assert not client.is_model_ready("sum")
    assert add(client, 1, 3, sequence_end=True) == 6
    assert add(client, "two", 20) == 30
    with pytest.raises(InferenceServerException, match="has no available versions"):
        add(client, 3, 1, sequence_start=True)
    assert add(client, "two", 30, sequence_end=True) == 60
    wait_until(lambda: "unloaded" in str(client.get_model_repository_index()))
    with pytest.raises(InferenceServerException, match="has no available versions"):
        add(client, "two", 1)


def test_an_id_is_another_sequence_in_each_model_and_stays_with_its_version(tmp_path: Path) -> None:
    """The same id in two models and in two versions at a time: nothing of one is seen in another."""
    for name in ("sum", "other"):
        for version in ("1", "2"):
            (tmp_path / name / version).mkdir(parents=True)
            (tmp_path / name / version / "model.onnx").write_bytes(summing())
        (tmp_path / name / "config.pbtxt").write_text(CONFIG + "version_policy { all { } }\n", encoding="utf-8")
    with ServerProcess(repositories=[tmp_path]) as server, InferenceServerClient(server.http) as client:

        def send(model: str, version: str, value: float, **flags: bool) -> float:
            tensor = InferInput("X", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.array([[value]], np.float32))
            result: Any = client.infer(model, [tensor], version, sequence_id=7, **flags).as_numpy("SUM")
            return float(result.item())

        assert send("sum", "1", 1, sequence_start=True) == 1
        assert send("other", "1", 10, sequence_start=True) == 10
        assert (send("sum", "1", 1), send("other", "1", 10)) == (2, 20)
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            send("other", "2", 1)
        assert send("sum", "2", 100, sequence_start=True) == 100
        assert [send("sum", "2", 100, sequence_end=True), send("sum", "1", 1, sequence_end=True)] == [200, 3]
        assert send("other", "1", 10, sequence_end=True) == 30
        with pytest.raises(InferenceServerException, match="must specify the START flag"):
            send("sum", "1", 1)


def test_a_server_that_stops_lets_sequences_end(server: ServerProcess, client: InferenceServerClient) -> None:
    assert add(client, 1, 1, sequence_start=True) == 1
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not client.is_server_ready())
    with pytest.raises(InferenceServerException, match="Server is stopping"):
        add(client, 2, 1, sequence_start=True)
    assert add(client, 1, 2) == 3
    assert add(client, 1, 3, sequence_end=True) == 6
    assert server.wait_end() == 0


def test_many_sequences_on_one_stream(server: ServerProcess) -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    steps, ids = 5, [*range(1, 20), *(f"s{number}" for number in range(20))]
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for step in range(steps):
            for id in ids:
                tensor = tritonclient.grpc.InferInput("X", [1, 1], "FP32")
                tensor.set_data_from_numpy(np.array([[step + 1]], np.float32))
                client.async_stream_infer(
                    "sum",
                    [tensor],
                    request_id=f"{id}/{step}",
                    sequence_id=id,
                    sequence_start=step == 0,
                    sequence_end=step == steps - 1,
                )
        sums = {}
        for _ in range(steps * len(ids)):
            result, error = answers.get(timeout=30)
            assert error is None
            sums[result.get_response().id] = result.as_numpy("SUM").item()
        client.stop_stream()
    assert sums == {f"{id}/{step}": sum(range(1, step + 2)) for id in ids for step in range(steps)}
