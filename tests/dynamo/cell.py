"""Dynamo on loopback: its Rust frontend, and workers that are `python -m dynamo.triton` on our module `tritonserver`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.waiting import wait_until

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".dynamo"
TRITON_VERSION = "26.08"
"""Dynamo gives that and newer ones `log_callback`."""

_START_S = 60.0
_STOP_S = 60.0


class Cell:
    """A frontend and its workers. `url` is that of the gRPC port, `metrics_ports` have a page for each worker."""

    def __init__(self, folder: Path, models: Path, ports: Sequence[int]) -> None:
        """`ports`: gRPC, metrics of the frontend, metrics of each worker."""
        self.url = f"127.0.0.1:{ports[0]}"
        self.metrics_ports = ports[2:]
        self.workers: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self._models = models
        flags = ("--kserve-grpc-server", "--http-host", "127.0.0.1", "--http-port", str(ports[0]))
        self.frontend = self._start("frontend", "dynamo.frontend", *flags, "--grpc-metrics-port", str(ports[1]))
        for number in range(len(self.metrics_ports)):
            self.add_worker(number)

    def add_worker(self, number: int) -> None:
        """Start the worker whose metrics are on this one of the ports."""
        port = self.metrics_ports[number]
        self.workers.append(
            self._start(f"worker-{number}", "dynamo.triton", "--model-repository", str(self._models), DYN_SYSTEM_PORT=str(port))
        )

    def wait_served(self, model: str, workers: int) -> None:
        """Wait until a client finds the model, and so many workers have registered it."""

        def is_served() -> bool:
            registered = list((self._folder / "discovery" / "v1" / "instances").glob(f"*{model.replace('_', '%5F')}*"))
            with suppress(InferenceServerException), triton.InferenceServerClient(self.url) as client:
                return len(registered) == workers and bool(client.is_model_ready(model))
            return False

        wait_until(is_served, within_s=_START_S)

    def metrics(self, number: int) -> str:
        """The page of a worker."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_ports[number]}/metrics", timeout=30) as page:
            text: str = page.read().decode()
        return text

    def log(self, name: str) -> str:
        """The log of a process so far."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """End what has not ended."""
        for process in (*self.workers, self.frontend):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (*self.workers, self.frontend):
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, module: str, *flags: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(INSTALLED),
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(self._folder / "discovery"),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_SYSTEM_HOST": "127.0.0.1",
            "DYN_LOGGING_JSONL": "true",
            "NVIDIA_TRITON_SERVER_VERSION": TRITON_VERSION,
            **variables,
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-m", module, *flags], env=environment, stdout=log, stderr=log, cwd=ROOT)


@contextmanager
def running(folder: Path, models: Path, ports: Sequence[int]) -> Iterator[Cell]:
    """A cell that is stopped at the end."""
    cell = Cell(folder, models, ports)
    try:
        yield cell
    finally:
        cell.stop()
