"""The wheel for aarch64, run by qemu-user in Debian's Python for that machine: make test-aarch64 installs them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from release.__main__ import main
from tests.backends import onnx_models
from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess

FOLDER = Path(os.environ.get("TPY_AARCH64", ".aarch64")).absolute()
QEMU = shutil.which("qemu-aarch64-static")

pytestmark = [
    pytest.mark.skipif(QEMU is None or not (FOLDER / "site").is_dir(), reason="make test-aarch64 installs what this needs"),
    pytest.mark.time_limit(1800),
]

CONFIG = """
backend: "python" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
MODEL = """
import platform
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info(f"runs on {platform.machine()}")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * r.inputs()[0].as_numpy())]) for r in requests]
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python with what the wheel has. It takes itself for the program that it was called by, so that it can start workers."""
    dist = tmp_path_factory.mktemp("dist")
    assert main(["--to", str(dist)]) == 0
    (wheel,) = dist.glob("*aarch64.whl")
    place = tmp_path_factory.mktemp("wheel")
    zipfile.ZipFile(wheel).extractall(place)
    root, program = FOLDER / "root", place / "python3.11"
    path = os.pathsep.join((str(place), str(FOLDER / "site")))
    command = [
        str(QEMU),
        "-0",
        str(program),
        "-L",
        str(root),
        "-E",
        f"PYTHONPATH={path}",
        str(root / "usr" / "bin" / "python3.11"),
    ]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    return program


def test_the_compiled_parts_are_used(python: Path) -> None:
    program = """
import platform
from tpy.hot import codec
from tpy_native import building, library
print(platform.machine(), codec.FORM, building.built_folder().is_relative_to(building.PREBUILT))
library.host()
"""
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "aarch64 native True\n", done.stderr


def test_both_protocols_serve_models_of_python_and_onnx(python: Path, tmp_path: Path) -> None:
    ModelFolder(tmp_path / "models", "twice").config(CONFIG).python(MODEL)
    ModelFolder(tmp_path / "models", "affine").config('backend: "onnxruntime"').file("1/model.onnx", onnx_models.affine(2.0, 1.0))
    launcher = ("sh", "-c", f'shift; exec {shlex.quote(str(python))} "$@"', "sh")  # in place of the Python that it is given
    with ServerProcess(repositories=[tmp_path / "models"], launcher=launcher) as server:
        for kind, address in ((triton_http, server.http), (triton_grpc, server.grpc)):
            with kind.InferenceServerClient(address) as client:
                given = kind.InferInput("X", [1, 4], "FP32")
                given.set_data_from_numpy(np.arange(4, dtype=np.float32).reshape(1, 4))
                assert client.infer("twice", [given]).as_numpy("Y").tolist() == [[0.0, 2.0, 4.0, 6.0]]
                row = kind.InferInput("INPUT", [1, 3], "FP32")
                row.set_data_from_numpy(np.ones((1, 3), np.float32))
                assert client.infer("affine", [row]).as_numpy("OUTPUT").tolist() == [[3.0, 3.0, 3.0]]
        assert "runs on aarch64" in server.log
