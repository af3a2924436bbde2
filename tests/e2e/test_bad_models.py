"""Models that cannot be served: each says why, in the index, in the log and to whoever loads it, and harms nobody else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from tests.backends import onnx_models

from .repositories import AFFINE_CONFIG, IDENTITY_PAIR, ModelFolder
from .server import ServerProcess

PYTHON_CONFIG = f'backend: "python"\n{IDENTITY_PAIR}'
COPY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())]) for r in requests]
"""


def initializing(statement: str) -> str:
    """A model.py whose initialize does this."""
    return f"import os, sys, time\n{COPY}\n    def initialize(self, args):\n        {statement}\n"


def python(source: str) -> Callable[[ModelFolder], object]:
    return lambda model: model.config(PYTHON_CONFIG).python(source)


def onnx(config: str, content: bytes = b"") -> Callable[[ModelFolder], object]:
    return lambda model: model.config(config).file("1/model.onnx", content or onnx_models.affine(2, 0))


BAD: dict[str, tuple[Callable[[ModelFolder], object], str]] = {
    "no_versions": (lambda m: m.config(AFFINE_CONFIG), "at least one version must be available under the version policy"),
    "no_file": (lambda m: (m.config(AFFINE_CONFIG).path / "1").mkdir(), r"model\.onnx"),
    "empty_folder": (lambda m: None, "Could not determine backend for model|at least one version"),
    "unknown_backend": (
        onnx('backend: "nosuch"'),
        "unable to find backend library for backend 'nosuch'.*Available backends: .*onnxruntime",
    ),
    "syntax": (onnx('name: "syntax"\nmax_batch_size: 4 5\n'), r"config\.pbtxt:2:19: "),
    "unclosed": (onnx(AFFINE_CONFIG + "dynamic_batching {\n"), r"config\.pbtxt:6:18: |config\.pbtxt:7:1: "),
    "unknown_field": (
        onnx(AFFINE_CONFIG + "\nmax_batchsize: 4\n"),
        r"config\.pbtxt:7:1: max_batchsize: .*no field 'max_batchsize'",
    ),
    "other_name": (onnx('name: "else"\n' + AFFINE_CONFIG), "unexpected directory name 'other_name' for model 'else'"),
    "wrong_dims": (
        onnx(AFFINE_CONFIG.replace('"INPUT" data_type: TYPE_FP32 dims: [ 3 ]', '"INPUT" data_type: TYPE_FP32 dims: [ 4 ]')),
        "INPUT.*3.*4|INPUT.*4.*3",
    ),
    "wrong_type": (onnx(AFFINE_CONFIG.replace("TYPE_FP32", "TYPE_INT32")), "INPUT.*(INT32|FP32)"),
    "wrong_input": (onnx(AFFINE_CONFIG.replace('"INPUT"', '"NOPE"')), "NOPE"),
    "too_large_preferred": (
        onnx(AFFINE_CONFIG + "dynamic_batching { preferred_batch_size: [ 9 ] }"),
        "dynamic batching preferred size must be <= max batch size",
    ),
    "gpu_on_cpu": (
        onnx(AFFINE_CONFIG + "instance_group [ { kind: KIND_CPU gpus: [ 0 ] } ]"),
        "has kind KIND_CPU but specifies one or more GPUs",
    ),
    "text": (onnx(AFFINE_CONFIG, b"this is no model\n"), r"model\.onnx.*"),
    "truncated": (onnx(AFFINE_CONFIG, onnx_models.affine(2, 0)[:-40]), r"model\.onnx"),
    "empty_file": (lambda m: m.config(AFFINE_CONFIG).file("1/model.onnx", b""), r"model\.onnx"),
    "py_syntax": (python("def broken(:\n"), r"SyntaxError.*(.|\n)*model\.py"),
    "py_import": (python("import no_such_module\n" + COPY), "No module named 'no_such_module'"),
    "py_no_class": (python("x = 1\n"), "TritonPythonModel"),
    "py_raises": (
        python(initializing("raise ValueError('no weights here')")),
        r"ValueError: no weights here(.|\n)*model\.py\(\d+\): initialize",
    ),
    "py_exits": (python(initializing("sys.exit(3)")), "exit.*3|SystemExit"),
    "py_aborts": (python(initializing("os.abort()")), "It was ended by SIGABRT while loading the model"),
    "py_hangs": (python(initializing("time.sleep(1000)")), r"initialize.*\b6(\.0)? s|6(\.0)? s.*initialize"),
    "py_hangs_on_import": (python("import time; time.sleep(1000)\n" + COPY), r"\b6(\.0)? s"),
    "py_dies_silently": (python(initializing("os._exit(0)")), "It exited with status 0 while loading the model"),
    "py_bad_complete": (
        lambda m: m.config('backend: "python"').python(
            "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c):\n        raise KeyError('what')\n"
        ),
        "KeyError: 'what'",
    ),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bad") / "models"
    for name, (write, _) in BAD.items():
        write(ModelFolder(path, name))
    ModelFolder(path, "good").config(AFFINE_CONFIG).affine(1, 2)
    ModelFolder(path, "good_python").config(PYTHON_CONFIG).python(COPY)
    return path


@pytest.fixture(scope="module")
def explicit(repository: Path) -> Iterator[ServerProcess]:
    flags = ("--model-control-mode=explicit", "--load-model=good", "--backend-config=python,stub-timeout-seconds=6")
    with ServerProcess(*flags, repositories=[repository]) as server:
        yield server


@pytest.mark.parametrize("name", BAD)
def test_a_load_call_fails_with_the_reason(explicit: ServerProcess, name: str) -> None:
    with InferenceServerClient(explicit.http) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.load_model(name)
        message = caught.value.message()
        assert re.search(BAD[name][1], message), message
        assert f"'{name}'" in message
        rows = [row for row in client.get_model_repository_index() if row["name"] == name]
        assert [row["state"] for row in rows] == ["UNAVAILABLE"]
        assert re.search(BAD[name][1], rows[0]["reason"]), rows
        assert not client.is_model_ready(name)
        assert_served(client, "good")


def assert_served(client: InferenceServerClient, model: str) -> None:
    tensor = InferInput("INPUT", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    answer = client.infer(model, [tensor]).as_numpy("OUTPUT")
    assert answer is not None
    assert answer[0, 0] == 2


def test_all_of_them_at_the_start(repository: Path) -> None:
    """The good ones are served, the bad ones are in the index and the log with their reasons."""
    flags = ("--exit-on-error=false", "--backend-config=python,stub-timeout-seconds=6")
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        assert_served(client, "good")
        assert client.is_model_ready("good_python")
        index = {row["name"]: row for row in client.get_model_repository_index()}
        assert set(index) == {*BAD, "good", "good_python"}
        for name, (_, reason) in BAD.items():
            assert index[name]["state"] == "UNAVAILABLE", index[name]
            assert re.search(reason, index[name]["reason"]), index[name]
            told = rf"^E.*(?:Poll failed for model directory '{name}'|failed to load '{name}' version 1): "
            assert re.search(told, server.log, re.MULTILINE), name
        assert not client.is_server_ready()
        assert server.children() != []
