"""MLflow's own scoring server and tpy, side by side, with the same models and the same Python for those that need one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import requests

from tests.docs.pages import ROOT
from tests.e2e.server import ServerProcess, run_tpy
from tests.e2e.waiting import wait_until

ENVIRONMENT = ROOT / ".mlflow"
LIBRARIES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
"""One thread for each model: on a busy machine threads spend their time waiting for each other, in both servers."""

_START_S_MAX = 120.0


def missing() -> str:
    """Returns what MLflow and tpy need and is not here, "" for nothing."""
    if not (ENVIRONMENT / "bin" / "mlflow").exists() or find_spec("sklearn") is None or find_spec("pandas") is None:
        return "needs mlflow, scikit-learn and pandas: make test-mlflow"
    return ""


def build(folder: Path) -> None:
    """Make the models."""
    command = [str(ENVIRONMENT / "bin" / "python"), str(Path(__file__).with_name("models.py")), str(folder)]
    outcome = subprocess.run(
        command, env={**os.environ, **LIBRARIES, "PYTHONPATH": ""}, check=False, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr


@contextmanager
def mlflow(home: Path, model: Path) -> Iterator[str]:
    """The address of `mlflow models serve` with one model."""
    port = _free_port()
    command = [str(ENVIRONMENT / "bin" / "mlflow"), "models", "serve", "-m", str(model), "--env-manager", "local"]
    with (home / f"{model.name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "-h", "127.0.0.1", "-p", str(port)],
            cwd=home,
            env={**os.environ, **LIBRARIES, "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: process.poll() is not None or _is_there(port), within_s=_START_S_MAX)
        if process.poll() is not None:
            raise RuntimeError((home / f"{model.name}.log").read_text())
        yield f"127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_there(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/ping", timeout=10).ok
    except requests.RequestException:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def tpy(home: Path, folder: Path) -> Iterator[str]:
    """The address of tpy's MLflow port, with what it has made of the models."""
    models = home / "models"
    for source in sorted(folder.iterdir()):
        outcome = run_tpy("import", str(source), "--to", str(models), "--trust")
        assert outcome.code == 0, outcome.out
    place = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}\n'
    for config in models.glob("*/config.pbtxt"):
        if 'backend: "python"' in config.read_text():
            config.write_text(config.read_text() + place)
    flags = ("--allow-mlflow=true", "--backend-config=sklearn,allow-pickle=true")
    with ServerProcess(*flags, repositories=[models], environment=LIBRARIES) as server:
        yield server.address("MLflow HTTPService") or ""
