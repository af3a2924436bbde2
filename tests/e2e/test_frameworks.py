"""One network in the forms of all frameworks, served by one process; and in processes of their own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from .examples import python_command
from .repositories import parameter
from .server import ServerProcess

for module in ("tensorflow", "openvino", "ai_edge_litert"):
    pytest.importorskip(module, reason=f"needs {module}: make test-backends")

pytestmark = pytest.mark.time_limit(300)  # frameworks take long to import on a busy machine

APART = ("saved", "lite", "ir")
FORMS = ("saved", "frozen", "lite", "onnx", "ir")
FEATURES = np.random.default_rng(3).standard_normal((24, 4), dtype=np.float32)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("frameworks") / "models"
    subprocess.run(python_command("frameworks/save.py", built), check=True, stdout=subprocess.DEVNULL)
    return built


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    with ServerProcess(repositories=[repository]) as server:
        yield server


def ask(module: Any, address: str, model: str, rows: Any) -> Any:
    """By the stock client, over HTTP or gRPC."""
    tensor = module.InferInput("features", list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    with module.InferenceServerClient(address) as client:
        return client.infer(model, [tensor]).as_numpy("OUTPUT__0" if model == "script" else "probabilities")


def models(repository: Path) -> tuple[str, ...]:
    """With TorchScript where PyTorch is installed."""
    return (*FORMS, "script") if (repository / "script").is_dir() else FORMS


def test_one_network_gives_equal_answers_by_every_framework(server: ServerProcess, repository: Path) -> None:
    expected = ask(tritonclient.http, server.http, "onnx", FEATURES[:3])
    np.testing.assert_allclose(expected.sum(axis=1), 1, atol=1e-5)
    assert len({int(row.argmax()) for row in ask(tritonclient.http, server.http, "onnx", FEATURES[:4])}) > 1
    for model in models(repository):
        for module, address in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
            np.testing.assert_allclose(ask(module, address, model, FEATURES[:3]), expected, atol=1e-5, err_msg=model)


def test_the_frameworks_run_beside_each_other_in_one_process(server: ServerProcess, repository: Path) -> None:
    names = models(repository)
    alone = {row: ask(tritonclient.http, server.http, "onnx", FEATURES[row : row + 1]) for row in range(len(FEATURES))}
    with ThreadPoolExecutor(8) as pool:
        rows = [number % len(FEATURES) for number in range(20 * len(names))]
        together = list(
            pool.map(
                lambda number: ask(
                    tritonclient.http, server.http, names[number % len(names)], FEATURES[rows[number] : rows[number] + 1]
                ),
                range(len(rows)),
            )
        )
    for row, given in zip(rows, together, strict=True):
        np.testing.assert_allclose(given, alone[row], atol=1e-5)


@pytest.fixture(scope="module")
def apart(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Models in processes of their own, and one that is not."""
    root = tmp_path_factory.mktemp("apart")
    for model in APART:
        shutil.copytree(repository / model, root / model)
        with (root / model / "config.pbtxt").open("a") as file:
            file.write("instance_group [ { count: 1 } ]\n" + parameter("isolation", "process"))
    shutil.copytree(repository / "onnx", root / "onnx")
    with ServerProcess(repositories=[root]) as server:
        yield server


def test_each_runs_in_a_process_of_its_own_too(apart: ServerProcess) -> None:
    expected = ask(tritonclient.http, apart.http, "onnx", FEATURES[:3])
    for model in APART:
        np.testing.assert_allclose(ask(tritonclient.http, apart.http, model, FEATURES[:3]), expected, atol=1e-5, err_msg=model)


SCHEDULED = """
dynamic_batching { priority_levels: 3 default_priority_level: 2 }
instance_group [ { kind: KIND_CPU count: 2 host_policy: "half" rate_limiter { resources [ { name: "R" count: 1 } ] } } ]
model_warmup [ { name: "zeros" batch_size: 2
  inputs { key: "features" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]
"""


def test_every_framework_is_placed_limited_warmed_up_and_counted(repository: Path, tmp_path: Path) -> None:
    for model in FORMS:
        shutil.copytree(repository / model, tmp_path / model)
        with (tmp_path / model / "config.pbtxt").open("a") as file:
            file.write(SCHEDULED)
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=R:1", "--host-policy=half,cpu-cores=0-0")
    with (
        ServerProcess(*flags, repositories=[tmp_path]) as server,
        tritonclient.http.InferenceServerClient(server.http) as client,
    ):
        expected = ask(tritonclient.http, server.http, "onnx", FEATURES[:3])
        for model in FORMS:
            tensor = tritonclient.http.InferInput("features", [3, 4], "FP32")
            tensor.set_data_from_numpy(FEATURES[:3])
            made = client.infer(model, [tensor], priority=1).as_numpy("probabilities")
            np.testing.assert_allclose(made, expected, atol=1e-5, err_msg=model)
            (counted,) = client.get_inference_statistics(model)["model_stats"]
            assert counted["inference_count"] == 3 * counted["execution_count"] > 0, "warm-up is not counted"
            assert counted["inference_stats"]["compute_infer"]["ns"] > 0
            assert [(each["type"], each["byte_size"] > 0) for each in counted["memory_usage"]] == [("CPU", True)], model
