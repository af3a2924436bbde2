"""A model whose executions wait until the test lets them go: what is in flight is known, not guessed."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput

from .repositories import IDENTITY_PAIR, ModelFolder
from .server import ServerProcess
from .waiting import wait_until

_SOURCE = """
import os, pathlib, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.notes = pathlib.Path(args["model_repository"]).parent.parent / (args["model_name"] + ".notes")
        self.notes.mkdir(exist_ok=True)

    def note(self, text):
        with open(self.notes / "log", "a") as file:
            file.write(text + "\\n")

    def execute(self, requests):
        self.note("batch " + " ".join(request.request_id() for request in requests))
        for request in requests:
            while not (self.notes / request.request_id()).exists():
                if request.request_id().startswith("watching") and request.is_cancelled():
                    self.note("told " + request.request_id())
                    break
                time.sleep(0.002)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())]) for r in requests]
"""


class GatedModel:
    """A python model in a repository: an execution ends when `open_gate` was called for each of its requests. Requests are named
    by their ids and answer the number that they bring."""

    def __init__(self, repository: Path, name: str = "gated", *, batching: str = "dynamic_batching { }", batch: int = 8) -> None:
        self.name = name
        folder = ModelFolder(repository, name)
        folder.config(f'backend: "python"\nmax_batch_size: {batch}\n{IDENTITY_PAIR}\n{batching}\n').python(_SOURCE)
        self._notes = repository.parent / f"{name}.notes"

    def open_gate(self, *request_ids: str) -> None:
        """Let these requests end."""
        self._notes.mkdir(exist_ok=True)
        for request_id in request_ids:
            (self._notes / request_id).touch()

    def batches(self) -> list[list[str]]:
        """The request ids of every execution that has begun, in order."""
        return [line.split()[1:] for line in self._log() if line.startswith("batch ")]

    def told(self) -> set[str]:
        """The requests that saw that they are cancelled. Only those whose id begins with "watching" look."""
        return {line.split()[1] for line in self._log() if line.startswith("told ")}

    def wait_executing(self, request_id: str) -> None:
        """Wait until an execution with this request has begun."""
        wait_until(lambda: any(request_id in batch for batch in self.batches()))

    def _log(self) -> list[str]:
        log = self._notes / "log"
        return log.read_text().splitlines() if log.exists() else []


class Asker:
    """Sends requests to one model, each from a thread and a connection of its own."""

    def __init__(self, server: ServerProcess, model: str, pool: ThreadPoolExecutor, *, batched: bool) -> None:
        self._server = server
        self._model = model
        self._pool = pool
        self._shape = (1, 1) if batched else (1,)

    def ask(self, request_id: str, number: int = 0, *, timeout_us: int | None = None, priority: int = 0) -> Future[int]:
        """Send a request; the number that it answers."""
        return self._pool.submit(self._infer, request_id, number, timeout_us, priority)

    def wait_queued(self, count: int) -> None:
        """Wait until so many requests wait in the model's queue."""
        family = f'nv_inference_pending_request_count{{model="{self._model}",version="1"}}'
        wait_until(lambda: metric(self._server, family) == count)

    def _infer(self, request_id: str, number: int, timeout_us: int | None, priority: int) -> int:
        tensor = InferInput("INPUT0", self._shape, "INT32")
        tensor.set_data_from_numpy(np.full(self._shape, number, np.int32))
        with InferenceServerClient(self._server.http) as client:
            answer = client.infer(self._model, [tensor], request_id=request_id, timeout=timeout_us, priority=priority)
        array = answer.as_numpy("OUTPUT0")
        assert array is not None
        return int(array.item())


@contextmanager
def asking(server: ServerProcess, model: str, *, batched: bool = True) -> Iterator[Asker]:
    """An Asker; leaving it waits for its requests. `batched`: the model's inputs have a batch dimension."""
    with ThreadPoolExecutor(32) as pool:
        yield Asker(server, model, pool, batched=batched)


def metrics(server: ServerProcess) -> dict[str, float]:
    """The metrics page: series to value. Fails on a line that is neither comment nor sample."""
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def metric(server: ServerProcess, series: str) -> float:
    """One value of the metrics page."""
    return metrics(server)[series]
