"""MLServer itself and tpy, side by side, with the same folders and the same Python."""

from __future__ import annotations

import json
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

from .folders import SETTINGS

ENVIRONMENT = ROOT / ".mlserver"
LIBRARIES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""One thread for each model: on a busy machine threads spend their time waiting for each other, in both servers."""

_START_S_MAX = 120.0


def missing() -> str:
    """Returns what MLServer and tpy need and is not here, "" for nothing."""
    if not (ENVIRONMENT / "bin" / "mlserver").exists() or find_spec("sklearn") is None or find_spec("pandas") is None:
        return "needs mlserver, scikit-learn and pandas: make test-mlserver"
    return ""


def build(repository: Path) -> None:
    """Make the models."""
    command = [str(ENVIRONMENT / "bin" / "python"), str(Path(__file__).with_name("folders.py")), str(repository)]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def mlserver(home: Path, repository: Path) -> Iterator[str]:
    """The address of MLServer, with one worker for all models, its default."""
    ports = [_free_port() for _ in range(3)]
    settings = {
        "host": "127.0.0.1",
        **dict(zip(("http_port", "grpc_port", "metrics_port"), ports, strict=True)),
        "debug": False,
        "environments_dir": str(home / "environments"),
        "metrics_dir": str(home / "metrics"),
    }
    (repository / "settings.json").write_text(json.dumps(settings))
    with (home / "mlserver.log").open("wb") as log:
        process = subprocess.Popen(
            [str(ENVIRONMENT / "bin" / "mlserver"), "start", str(repository)],
            cwd=home,
            env={**os.environ, **LIBRARIES, "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": ""},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: process.poll() is not None or _has_models(ports[0]), within_s=_START_S_MAX)
        if process.poll() is not None:
            raise RuntimeError((home / "mlserver.log").read_text())
        yield f"127.0.0.1:{ports[0]}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _has_models(port: int) -> bool:
    try:
        return all(requests.get(f"http://127.0.0.1:{port}/v2/models/{name}/ready", timeout=10).ok for name in SETTINGS)
    except requests.RequestException:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def tpy(home: Path, repository: Path) -> Iterator[str]:
    """The address of tpy, with what it has made of the folders."""
    models = home / "models"
    outcome = run_tpy("import", str(repository), "--to", str(models), "--trust")
    assert outcome.code == 0, outcome.out
    place = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}\n'
    for config in models.glob("*/config.pbtxt"):
        config.write_text(config.read_text() + place)
    with ServerProcess("--backend-config=sklearn,allow-pickle=true", repositories=[models], environment=LIBRARIES) as server:
        yield server.address("HTTPService") or ""
