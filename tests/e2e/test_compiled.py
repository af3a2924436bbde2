"""Compiled backends served: where they are found, calls of other models from C, crashes and hangs; NVIDIA's own one for Python
models, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from benchmarks.servers.peers import peers_folder
from tests.native.compiled import library

from .repositories import ModelFolder, parameter
from .server import ServerProcess
from .waiting import wait_until

XY = """
max_batch_size: 4
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""
COPIES = """
max_batch_size: 4
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def put(source: str, folder: Path, name: str) -> None:
    """Put a plug-in into a folder as the backend `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(library(source), folder / f"libtriton_{name}.so")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("compiled")
    repository, backends = folder / "models", folder / "backends"
    put("identity", backends / "everywhere", "everywhere")
    put("identity", repository / "of_model", "own")
    put("identity", repository / "of_version" / "1", "own")
    put("calls", repository / "caller", "calls")
    put("calls", backends / "calls", "calls")
    put("behaviours", backends / "behaviours", "behaviours")
    ModelFolder(repository, "of_directory").config(f'backend: "everywhere"\n{COPIES}').file("1/.keep", "")
    ModelFolder(repository, "of_model").config(f'backend: "own"\n{COPIES}').file("1/.keep", "")
    ModelFolder(repository, "of_version").config(f'backend: "own"\n{COPIES}')
    ModelFolder(repository, "by_runtime").config(f'backend: "everywhere"\nruntime: "libtriton_everywhere.so"\n{COPIES}').file(
        "1/.keep", ""
    )
    ModelFolder(repository, "callee").config(f'backend: "identity"\n{COPIES}').file("1/.keep", "")
    ModelFolder(repository, "caller").config(f'backend: "calls"\n{XY}').file("1/.keep", "")
    ModelFolder(repository, "caller_inside").config(f'backend: "calls"\n{XY}{parameter("isolation", "thread")}').file(
        "1/.keep", ""
    )
    ModelFolder(repository, "crashes").config(f'backend: "behaviours"\n{XY}{parameter("behaviour", "crashes")}').file(
        "1/.keep", ""
    )
    hangs = parameter("behaviour", "hangs") + parameter("TPY_EXECUTE_TIMEOUT_SECONDS", "1")
    ModelFolder(repository, "hangs").config(f'backend: "behaviours"\n{XY}{hangs}').file("1/.keep", "")
    for name, more in (("by_volume", ""), ("by_volume_inside", parameter("isolation", "thread"))):
        bounded = (
            f'backend: "identity"\n{COPIES}{more}{parameter("behaviour", "crashes")}{parameter("MAX_BATCH_VOLUME_BYTES", "16")}'
        )
        ModelFolder(repository, name).config(f"{bounded}dynamic_batching {{ max_queue_delay_microseconds: 200000 }}")
        ModelFolder(repository, name).file("1/.keep", "")
        shutil.copy(library("strategy"), repository / name / "batchstrategy.so")
    with ServerProcess(f"--backend-directory={backends}", repositories=[repository]) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.http) as client:
        yield client


def asked(client: InferenceServerClient, model: str, given: str, got: str) -> list[list[float]]:
    tensor = InferInput(given, [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1.5, -2.0]], np.float32))
    answer: list[list[float]] = client.infer(model, [tensor]).as_numpy(got).tolist()
    return answer


@pytest.mark.parametrize("model", ["of_directory", "of_model", "of_version", "by_runtime"])
def test_a_library_is_found_in_tritons_places(client: InferenceServerClient, model: str) -> None:
    assert asked(client, model, "INPUT0", "OUTPUT0") == [[1.5, -2.0]]


@pytest.mark.parametrize("model", ["caller", "caller_inside"])
def test_a_plugin_calls_another_model(client: InferenceServerClient, model: str) -> None:
    assert asked(client, model, "X", "Y") == [[1.5, -2.0]]
    statistics = client.get_inference_statistics("callee")["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] >= 1


@pytest.mark.parametrize(("model", "reason"), [("crashes", "SIGABRT"), ("hangs", "1 s")])
def test_an_instance_that_crashes_or_hangs_is_replaced(client: InferenceServerClient, model: str, reason: str) -> None:
    for _ in range(2):
        with pytest.raises(InferenceServerException, match=reason):
            asked(client, model, "X", "Y")
        wait_until(lambda: client.is_model_ready(model))
    assert asked(client, "of_directory", "INPUT0", "OUTPUT0") == [[1.5, -2.0]]


@pytest.mark.parametrize("model", ["by_volume", "by_volume_inside"])
def test_a_batching_strategy_bounds_batches(server: ServerProcess, model: str) -> None:
    """Two requests of 8 bytes to a batch, whose size is not one that the configuration prefers."""
    with InferenceServerClient(server.http, concurrency=8) as client:
        tensor = InferInput("INPUT0", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.array([[1.5, -2.0]], np.float32))
        for request in [client.async_infer(model, [tensor]) for _ in range(8)]:
            assert request.get_result().as_numpy("OUTPUT0").tolist() == [[1.5, -2.0]]
        (statistics,) = client.get_inference_statistics(model)["model_stats"]
        sizes = {batch["batch_size"] for batch in statistics["batch_stats"]}
        assert 2 in sizes
        assert max(sizes) == 2


def test_a_batching_strategy_that_crashes_costs_no_request(server: ServerProcess, client: InferenceServerClient) -> None:
    tensor = InferInput("INPUT0", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1.5, -2.0]], np.float32))
    assert client.infer("by_volume", [tensor], request_id="bad").as_numpy("OUTPUT0").tolist() == [[1.5, -2.0]]
    server.wait_log("batches are formed without their strategy: the process of the batching strategy of model 'by_volume'")
    assert asked(client, "by_volume", "INPUT0", "OUTPUT0") == [[1.5, -2.0]]


NVIDIA = peers_folder() / "tritonserver" / "backends"
PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("initialised by NVIDIA's stub")

    def execute(self, requests):
        responses = []
        for request in requests:
            given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            called = pb_utils.InferenceRequest(model_name="callee", inputs=[given], requested_output_names=["OUTPUT0"]).exec()
            if called.has_error():
                raise pb_utils.TritonModelException(called.error().message())
            got = pb_utils.get_output_tensor_by_name(called, "OUTPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", got * 2)]))
        return responses
"""


@pytest.mark.skipif(not (NVIDIA / "python" / "libtriton_python.so").is_file(), reason=f"NVIDIA's backends are not in {NVIDIA}")
def test_nvidias_own_python_backend_serves_a_model_that_calls_another_one(tmp_path: Path) -> None:
    python = peers_folder() / "triton" / "bin"
    ask = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    libraries = subprocess.run([python / "python", "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    ModelFolder(tmp_path, "callee").config(f'backend: "identity"\n{COPIES}').file("1/.keep", "")
    ModelFolder(tmp_path, "nvidias").config(f'backend: "python"\n{COPIES}').file("1/model.py", PYTHON_MODEL)
    environment = {"LD_LIBRARY_PATH": libraries, "PATH": f"{python}:/usr/bin:/bin"}
    flags = (f"--backend-directory={NVIDIA}", "--backend-config=python,use-library=true")
    with ServerProcess(*flags, repositories=[tmp_path], environment=environment) as server:
        with InferenceServerClient(server.http) as client:
            for _ in range(3):
                assert asked(client, "nvidias", "INPUT0", "OUTPUT0") == [[3.0, -4.0]]
        assert "initialised by NVIDIA's stub" in server.log
