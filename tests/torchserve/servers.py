"""TorchServe itself and tpy, side by side, with the same archives and the same Python with PyTorch for handlers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.docs.pages import ROOT
from tests.e2e.server import ServerProcess, run_tpy
from tests.e2e.waiting import wait_until

ENVIRONMENT = ROOT / ".torchserve"
PYTHON = ENVIRONMENT / "bin" / "python"
ARCHIVES = ("eager", "scripted", "texts", "rows", "function", "detector", "segmenter")
WORKFLOW = "tour"
LIBRARIES = {"PYTHONPATH": str(Path(__file__).with_name("torchvision")), "OMP_NUM_THREADS": "1"}
"""One thread for each network: on a busy machine PyTorch's threads spend their time waiting for each other, in both servers."""

_START_S_MAX = 120.0


def missing() -> str:
    """Returns what TorchServe needs and is not here, "" for nothing."""
    if not (ENVIRONMENT / "bin" / "torchserve").exists():
        return "needs torchserve: make test-torchserve"
    return "" if shutil.which("java") else "needs Java 11 or newer"


def build(store: Path) -> None:
    """Make the archives."""
    command = [str(PYTHON), str(Path(__file__).with_name("archives.py")), str(store)]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def torchserve(home: Path, store: Path) -> Iterator[str]:
    """The address of TorchServe, with one worker for each model unless its archive says otherwise."""
    ports = [_free_port() for _ in range(5)]
    names = ("inference_address", "management_address", "metrics_address")
    lines = [f"{name}=http://127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)]
    lines += [f"grpc_inference_port={ports[3]}", f"grpc_management_port={ports[4]}", "default_workers_per_model=1"]
    (home / "config.properties").write_text("\n".join(lines))
    command = [str(ENVIRONMENT / "bin" / "torchserve"), "--start", "--foreground", "--ncs", "--disable-token-auth"]
    models = [f"{name}.mar" for name in ARCHIVES]
    environment = {**os.environ, **LIBRARIES, "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}", "LOG_LOCATION": str(home)}
    with (home / "torchserve.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *command,
                "--model-store",
                str(store),
                "--workflow-store",
                str(store),
                "--ts-config",
                str(home / "config.properties"),
                "--models",
                *models,
            ],
            cwd=home,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: process.poll() is not None or _has_models(ports[1]), within_s=_START_S_MAX)
        if process.poll() is not None:
            raise RuntimeError((home / "torchserve.log").read_text())
        registered = requests.post(f"http://127.0.0.1:{ports[1]}/workflows?url={WORKFLOW}.war", timeout=_START_S_MAX)
        if not registered.ok:
            raise RuntimeError(registered.text)
        yield f"127.0.0.1:{ports[0]}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _has_models(port: int) -> bool:
    try:
        for name in ARCHIVES:
            [found] = requests.get(f"http://127.0.0.1:{port}/models/{name}", timeout=10).json()
            if not any(worker["status"] == "READY" for worker in found["workers"]):
                return False
    except (requests.RequestException, ValueError):
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def tpy(home: Path, store: Path) -> Iterator[str]:
    """The address of tpy's port for TorchServe's clients, with what it has made of the archives."""
    models = home / "models"
    outcome = run_tpy("import", str(store), "--to", str(models), "--trust")
    assert outcome.code == 0, outcome.out
    place = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{ENVIRONMENT}" }} }}\n'
    for config in models.glob("*/config.pbtxt"):
        config.write_text(config.read_text() + place)
    with ServerProcess("--allow-torchserve=true", repositories=[models], environment=LIBRARIES) as server:
        yield server.address("TorchServe HTTPService") or ""
