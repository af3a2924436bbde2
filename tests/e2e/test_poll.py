"""Mode poll on a real disk: what is added, changed, broken, mended and removed is followed; the rest keeps serving."""

from __future__ import annotations

import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from tests.backends import onnx_models

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess
from .waiting import wait_until


@pytest.fixture(scope="module")
def shared_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("poll") / "models"
    ModelFolder(path, "constant").config(AFFINE_CONFIG).affine(1, 1)
    return path


@pytest.fixture(scope="module")
def server(shared_repository: Path) -> Iterator[ServerProcess]:
    """Polls every second; what the system announces is seen sooner."""
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with ServerProcess(*flags, repositories=[shared_repository]) as process:
        yield process
        with InferenceServerClient(process.http) as client:
            assert client.get_inference_statistics("constant")["model_stats"][0]["inference_count"] > 0


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    """And whatever a test does, another model keeps answering from its first load."""
    with InferenceServerClient(server.http) as client:
        yield client
        assert scaled(client, "constant") == 1


@pytest.fixture
def model(shared_repository: Path, request: pytest.FixtureRequest) -> ModelFolder:
    """A model of this test alone."""
    return ModelFolder(shared_repository, request.node.name)


def scaled(client: InferenceServerClient, model: str, version: str = "") -> float | None:
    """The factor by which a model multiplies; None while it is not served."""
    tensor = InferInput("INPUT", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    try:
        answer = client.infer(model, [tensor], model_version=version).as_numpy("OUTPUT")
    except InferenceServerException as error:
        if error.status() in {"404", "503"}:  # unknown, or known and not ready
            return None
        raise
    assert answer is not None
    return float(answer[0, 0])


def rows(client: InferenceServerClient, model: str) -> list[tuple[str, str, str]]:
    """(version, state, reason) of each row of the index about a model."""
    index: list[dict[str, Any]] = client.get_model_repository_index()
    return [(e.get("version", ""), e.get("state", ""), e.get("reason", "")) for e in index if e["name"] == model]


def test_added_changed_removed(model: ModelFolder, client: InferenceServerClient) -> None:
    model.config(AFFINE_CONFIG).affine(1, 2)
    wait_until(lambda: scaled(client, model.name) == 2)
    model.affine(1, 3)
    wait_until(lambda: scaled(client, model.name) == 3)
    model.path.rename(model.path.parent.parent / model.name)
    wait_until(lambda: scaled(client, model.name) is None and not rows(client, model.name))
    with pytest.raises(InferenceServerException, match="has no available versions"):
        client.get_model_config(model.name)


def test_version_folders_come_and_go(model: ModelFolder, client: InferenceServerClient) -> None:
    model.config(AFFINE_CONFIG).affine(1, 1)
    wait_until(lambda: scaled(client, model.name) == 1)
    model.affine(2, 2)
    wait_until(lambda: scaled(client, model.name) == 2)
    wait_until(lambda: ("1", "UNAVAILABLE", "unloaded") in rows(client, model.name))
    model.config(AFFINE_CONFIG + "version_policy { all { } }")
    wait_until(lambda: scaled(client, model.name, "1") == 1)
    (model.path / "2").rename(model.path.parent.parent / "version-2")
    wait_until(lambda: scaled(client, model.name) == 1)
    assert scaled(client, model.name, "2") is None


def test_a_half_copied_model_is_not_loaded(model: ModelFolder, client: InferenceServerClient, server: ServerProcess) -> None:
    """A file that grows is no model until it has stopped growing."""
    content = onnx_models.affine(6, 0)
    target = model.path / "1" / "model.onnx"
    target.parent.mkdir()
    model.config(AFFINE_CONFIG)
    step = max(1, len(content) // 20)
    with target.open("wb") as file:
        for start in range(0, len(content), step):
            file.write(content[start : start + step])
            file.flush()
            assert rows(client, model.name) in ([], [("", "", "")])
    wait_until(lambda: scaled(client, model.name) == 6)
    assert f"failed to load '{model.name}' version" not in server.log


def test_a_failed_update_keeps_the_old_version(model: ModelFolder, client: InferenceServerClient, server: ServerProcess) -> None:
    model.config(AFFINE_CONFIG).affine(1, 2)
    wait_until(lambda: scaled(client, model.name) == 2)
    model.file("1/model.onnx", b"not a model")
    (row,) = wait_until(lambda: [row for row in rows(client, model.name) if row[2]])
    assert row[:2] == ("1", "READY")
    assert "model.onnx" in row[2]
    assert scaled(client, model.name) == 2
    assert client.is_model_ready(model.name)
    model.affine(1, 4)
    wait_until(lambda: scaled(client, model.name) == 4)
    assert rows(client, model.name) == [("1", "READY", "")]


def test_a_broken_configuration_is_reported_and_repaired(model: ModelFolder, client: InferenceServerClient) -> None:
    model.config("max_batch_size: [\n").affine(1, 5)
    (row,) = wait_until(lambda: [row for row in rows(client, model.name) if row[2]])
    assert row[:2] == ("", "UNAVAILABLE")
    assert "config.pbtxt:" in row[2]
    assert client.is_server_ready(), "a typo takes no server that serves out of its load balancer"
    model.config(AFFINE_CONFIG)
    wait_until(lambda: scaled(client, model.name) == 5)
    assert client.is_server_ready()
    assert rows(client, model.name) == [("1", "READY", "")]


def test_load_calls_are_refused(client: InferenceServerClient) -> None:
    with pytest.raises(
        InferenceServerException, match=r"^\[503\] explicit model load / unload is not allowed if polling is enabled$"
    ):
        client.load_model("constant")


def test_an_emptied_repository_serves_on_until_it_is_meant(repository: Path, tmp_path: Path) -> None:
    """As a mount that is gone, which leaves an empty folder."""
    for name in "abc":
        ModelFolder(repository, name).config(AFFINE_CONFIG).affine(1, 2)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=300", "--repository-settle-ms=100")
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        for name in "abc":
            shutil.move(repository / name, tmp_path / name)
        server.wait_log(r"models disappeared from '[^']+' at once: they are unloaded at the second poll from now")
        assert client.is_model_ready("a")
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
            assert f'tpy_repository_held_models{{repository="{repository}"}} 3' in page.read().decode()
        with pytest.raises(InferenceServerException, match="not allowed if polling is enabled"):
            client.unload_model("a")  # which confirms nothing
        assert client.is_model_ready("a")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not client.is_model_ready("a"), within_s=30)
