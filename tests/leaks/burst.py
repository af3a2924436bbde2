"""Measures memory after a burst: `python -m tests.leaks.burst`. Sends 24 requests of 16 MiB, eight at a time, to an ONNX and to a
Python model over HTTP and gRPC, a server each, and prints the memory before, at once after them, and when there were no requests
for three and a half minutes: by then the server and the worker have given back what they can."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import numpy as np
import tritonclient.grpc
import tritonclient.http

from tests.chaos.models import COPY, python_config
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess
from tpy.units import MIB

from .holding import resident_bytes

_ROWS = 16 * MIB // 12
_IDLE_S = 210.0


class Case:
    """A model behind a protocol, and its memory so far."""

    def __init__(self, folder: Path, backend: str, client: ModuleType) -> None:
        self.name = f"{backend}, {'gRPC' if client is tritonclient.grpc else 'HTTP'}"
        self._client = client
        repository = folder / self.name
        model = ModelFolder(repository, "m")
        if backend == "python":
            model.config(python_config(batch=2 * _ROWS, count=1)).python(COPY)
        else:
            model.config(AFFINE_CONFIG.replace("max_batch_size: 8", f"max_batch_size: {2 * _ROWS}")).affine(1, 2.0)
        self.server = ServerProcess(repositories=[repository], launcher=("env",))
        self._told: list[str] = []

    def ask(self, rows: int, times: int) -> None:
        """Send requests, one after the other."""
        array = np.ones((rows, 3), np.float32)
        tensor = self._client.InferInput("INPUT", array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        address = self.server.http if self._client is tritonclient.http else self.server.grpc
        options = {"network_timeout": 60, "connection_timeout": 60} if self._client is tritonclient.http else {}
        with self._client.InferenceServerClient(address, **options) as client:
            for _ in range(times):
                client.infer("m", [tensor])

    def note(self) -> None:
        """Remember the memory now, of the server and of the worker."""
        sizes = [resident_bytes(pid) for pid in (self.server.process.pid, *self.server.children())]
        self._told.append(" + ".join(f"{size / MIB:.0f}" for size in sizes))

    def __str__(self) -> str:
        return f"{self.name}: resident MiB {', '.join(self._told)}"


def main() -> None:
    """Measure all at the same time."""
    with tempfile.TemporaryDirectory(prefix="tpy-burst-") as folder, ExitStack() as servers, ThreadPoolExecutor(8) as threads:
        clients = (tritonclient.http, tritonclient.grpc)
        cases = [Case(Path(folder), backend, client) for backend in ("onnxruntime", "python") for client in clients]
        for case in cases:
            servers.enter_context(case.server)
            case.ask(2, 500)
            case.note()
            for burst in [threads.submit(case.ask, _ROWS, 3) for _ in range(8)]:
                burst.result()
            case.note()
        time.sleep(_IDLE_S)
        for case in cases:
            case.note()
            print(case)


if __name__ == "__main__":
    main()
