"""The server's libraries send no data about their use, and write nothing outside of the server's folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tritonclient.http import InferenceServerClient, InferInput

from .repositories import ModelFolder
from .server import ServerProcess

MODEL = """
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = os.path.join(args["model_repository"], "..", "identity", "1", "model.onnx")
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.session.run(None, {"IN": each})[0])]) for each in tensors]
"""
CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Identity", ["IN"], ["OUT"])], "g", [tensors[0]], [tensors[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder = tmp_path / "models" / "identity" / "1"
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    ModelFolder(tmp_path / "models", "own").config(CONFIG).file("1/model.py", MODEL)
    return tmp_path / "models"


def test_onnx_runtime_leaves_nothing_in_the_users_cache(models: Path, tmp_path: Path) -> None:
    """In the server, and in a worker whose model uses it by itself."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "CI": "", "GITHUB_ACTIONS": ""}
    with ServerProcess(repositories=[models], environment=environment) as server, InferenceServerClient(server.http) as client:
        for model in ("identity", "own"):
            tensor = InferInput("IN", [2], "FP32").set_data_from_numpy(np.ones(2, np.float32))
            assert client.infer(model, [tensor]).as_numpy("OUT").tolist() == [1, 1]
    assert [path for path in home.rglob("*") if path.is_file()] == []
