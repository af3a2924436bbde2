"""Ensembles across frameworks behind a pipeline of DALI, in one process with all other frameworks, and DALI apart."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from .examples import EXAMPLES, python_command
from .repositories import parameter
from .server import ServerProcess
from .test_workers import worker_of
from .waiting import wait_until

pytest.importorskip("nvidia.dali", reason="needs DALI: make test-backends")

COLOURS = ("red", "green", "blue")
PROTOCOLS = ("http", "grpc")
IN_PYTHON = """\
import io
import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "ENCODED").as_numpy()) for each in requests]

    def answer(self, rows):
        images = [Image.open(io.BytesIO(row.tobytes())).convert("RGB").resize((32, 32)) for row in rows]
        array = np.stack([np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1 for image in images])
        return pb_utils.InferenceResponse([pb_utils.Tensor("IMAGE", array)])
"""
PYTHON_CONFIG = """\
backend: "python"
max_batch_size: 4
input [ { name: "ENCODED" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] } ]
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dali")
    subprocess.run(python_command("dali/build.py", folder), check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module")
def server(built: Path) -> Iterator[ServerProcess]:
    """The example, and ensembles of a Python step, and of networks in other frameworks, as far as these are there."""
    models = built / "models"
    (models / "decode" / "1").mkdir(parents=True)
    (models / "decode" / "1" / "model.py").write_text(IN_PYTHON)
    (models / "decode" / "config.pbtxt").write_text(PYTHON_CONFIG)
    _ensemble(models, "in_python", {"preprocess": "decode"})
    shutil.copytree(models / "network", models / "openvino")
    (models / "openvino" / "config.pbtxt").write_text('backend: "openvino" default_model_filename: "model.onnx"\n')
    _ensemble(models, "by_openvino", {"network": "openvino"})
    repositories = [models]
    try:
        others = built / "others"
        command = [*python_command("frameworks/save.py", others)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        repositories.append(others)
    except subprocess.CalledProcessError:
        pytest.skip("needs TensorFlow, LiteRT and OpenVINO: make test-backends")
    with ServerProcess(repositories=repositories) as server:
        yield server


def _ensemble(models: Path, name: str, members: dict[str, str]) -> None:
    """The example's, with other members."""
    shutil.copytree(models / "colours", models / name)
    text = (models / name / "config.pbtxt").read_text()
    for member, other in members.items():
        text = text.replace(f'model_name: "{member}"', f'model_name: "{other}"')
    (models / name / "config.pbtxt").write_text(text)


def label(server: ServerProcess, protocol: str, model: str, file: Path) -> str:
    """By the stock client."""
    module: Any = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    picture = np.fromfile(file, np.uint8)[None]
    tensor = module.InferInput("PICTURE", list(picture.shape), "UINT8")
    tensor.set_data_from_numpy(picture)
    with module.InferenceServerClient(getattr(server, protocol)) as client:
        answer = client.infer(model, [tensor], outputs=[module.InferRequestedOutput("COLOUR", class_count=1)])
    text: bytes = answer.as_numpy("COLOUR")[0, 0]
    return text.decode().rpartition(":")[2]


@pytest.mark.parametrize("model", ["colours", "in_python", "by_openvino"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_file_becomes_a_label(server: ServerProcess, built: Path, protocol: str, model: str) -> None:
    assert [label(server, protocol, model, built / f"{colour}.jpg") for colour in COLOURS] == list(COLOURS)


def test_all_frameworks_run_beside_dali_in_one_process(server: ServerProcess, built: Path) -> None:
    """Each other one answers before, meanwhile and after."""
    names = [name for name in ("saved", "frozen", "lite", "onnx", "ir", "script") if (built / "others" / name).is_dir()]
    features = np.arange(4, dtype=np.float32)[None]

    def probabilities(name: str) -> Any:
        tensor = tritonclient.http.InferInput("features", [1, 4], "FP32")
        tensor.set_data_from_numpy(features)
        with tritonclient.http.InferenceServerClient(server.http) as client:
            return client.infer(name, [tensor]).as_numpy("OUTPUT__0" if name == "script" else "probabilities")

    expected = probabilities("onnx")
    with ThreadPoolExecutor(6) as pool:
        labels = [pool.submit(label, server, "http", "colours", built / f"{colour}.jpg") for colour in COLOURS * 10]
        for given in pool.map(probabilities, names * 5):
            np.testing.assert_allclose(given, expected, atol=1e-5)
        assert [each.result() for each in labels] == list(COLOURS * 10)


def test_dali_in_a_process_of_its_own(built: Path, tmp_path: Path) -> None:
    for model in ("network", "colours"):
        shutil.copytree(built / "models" / model, tmp_path / model)
    (tmp_path / "preprocess" / "1").mkdir(parents=True)
    shutil.copy(EXAMPLES / "dali" / "pipeline.py", tmp_path / "preprocess" / "1" / "dali.py")
    (tmp_path / "preprocess" / "config.pbtxt").write_text(parameter("isolation", "process"))
    with ServerProcess(repositories=[tmp_path]) as server, tritonclient.http.InferenceServerClient(server.http) as client:
        assert label(server, "grpc", "colours", built / "green.jpg") == "green"
        os.kill(worker_of(server, "preprocess_0"), signal.SIGKILL)
        wait_until(lambda: not client.is_model_ready("preprocess"))
        assert client.is_model_ready("network")
        wait_until(lambda: client.is_model_ready("preprocess"))
        assert label(server, "grpc", "colours", built / "blue.jpg") == "blue"
