"""The wheel of `make wheel`: installed into a fresh environment without a compiler, it has the module `tritonserver` and runs
compiled backends. Without the built library, and without a compiler, the reason says what to install."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.native.compiled import library

from .repositories import ModelFolder

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import numpy as np
import tpy
import tritonserver

assert tpy.__file__.startswith(sys.prefix) and tritonserver.__file__.startswith(sys.prefix), tpy.__file__
ones = np.ones((1, 2), np.float32)
with tpy.Server(sys.argv[1], load_model=["echo"], backend_directory=sys.argv[2]) as server:
    print(server.model("echo").infer({"INPUT0": ones})["OUTPUT0"].tolist())
started = tritonserver.Server(model_repository=sys.argv[1], backend_directory=sys.argv[2]).start(wait_until_ready=True)
for response in started.model("echo").infer(inputs={"INPUT0": ones * 2}):
    print(np.from_dlpack(response.outputs["OUTPUT0"]).tolist())
started.stop()
"""
WITHOUT = """
import sys
import tpy

with tpy.Server(sys.argv[1], load_model=[], backend_directory=sys.argv[2]) as server:
    try:
        server.load("echo")
    except tpy.errors.TpyError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A repository with a model of a compiled backend, and the folder of that."""
    folder = tmp_path_factory.mktemp("wheel")
    backend = folder / "backends" / "everywhere"
    backend.mkdir(parents=True)
    (backend / "libtriton_everywhere.so").symlink_to(library("identity"))
    tensors = """input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]
        output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]"""
    config = f'backend: "everywhere"\nmax_batch_size: 4\n{tensors}'
    ModelFolder(folder / "models", "echo").config(config).file("1/.keep", "")
    return str(folder / "models"), str(folder / "backends")


def run(python: str, program: str, places: tuple[str, str], folder: Path) -> str:
    """Runs a program where there is no compiler and nothing was built before. Returns what it prints."""
    environment = {"PATH": str(folder), "HOME": str(folder), "TMPDIR": str(folder)}
    command = [python, "-c", program, *places]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_tag(name: str, libraries: list[bytes]) -> None:
    """An index takes the tag, and it promises no older glibc than the libraries ask for."""
    tag = re.fullmatch(rf".*-py3-none-(?:manylinux\w+\.)*manylinux_2_(\d+)_{platform.machine()}\.whl", name)
    assert tag is not None, name
    asked = [int(minor) for library in libraries for minor in re.findall(rb"\bGLIBC_2\.(\d+)", library)]
    here = int(platform.libc_ver()[1].split(".")[1])
    assert max(asked) <= int(tag[1]) <= here


def test_the_wheel_runs_compiled_backends_in_a_fresh_environment(tmp_path: Path, places: tuple[str, str]) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    make = ["make", "-o", f"{sys.prefix}/.tpy-setup", "wheel", f"VENV={sys.prefix}", f"WHEELS={tmp_path}"]
    subprocess.run(make, cwd=ROOT, env=plain, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    files = zipfile.ZipFile(wheel)
    assert {"tritonserver.py", "triton_python_backend_utils.py"} < set(files.namelist())
    check_tag(wheel.name, [files.read(name) for name in files.namelist() if name.endswith(".so")])
    (metadata,) = [files.read(name).decode() for name in files.namelist() if name.endswith(".dist-info/METADATA")]
    assert re.search("^Author: .+", metadata, re.MULTILINE)
    fresh = tmp_path / "fresh"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    python = str(fresh / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    (packages,) = fresh.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # those that this environment has
    assert run(python, PROGRAM, places, tmp_path) == "[[1.0, 1.0]]\n[[2.0, 2.0]]\n"
    assert not (tmp_path / ".cache").exists()


def test_without_a_compiler_the_reason_says_what_to_install(tmp_path: Path, places: tuple[str, str]) -> None:
    said = run(sys.executable, WITHOUT, places, tmp_path)
    assert "install one (apt-get install gcc libc6-dev), or a wheel of tpy-server that has the library (make wheel)" in said
    assert "\n" not in said.strip()
