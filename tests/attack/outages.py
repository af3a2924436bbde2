"""Outages around the server: logs that nobody reads, workers that are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from pathlib import Path

from tests.chaos.models import python_config
from tests.e2e.repositories import ModelFolder

from .arena import Arena, Outcome, measured, serving

_PID = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        time.sleep(0.5)  # weights

    def execute(self, requests):
        pid = np.array([[os.getpid()] * 3], np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", pid)]) for _ in requests]
"""

_TENSOR = {"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
_KILLS = 4
_CLIENTS = 3
_LOGGED = 3000
"""Requests: a pipe holds some 300 of their lines."""


def unread_log(folder: Path, *, flag: str) -> Outcome:
    """A pipe that nobody reads as a log: every port answers, and SIGTERM ends the server."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with serving(folder, "--log-verbose=1", f"{flag}={pipe}") as arena, measured(arena) as outcome:
            failures = 0
            for number in range(_LOGGED):
                status = arena.infer("affine", (float(number), 1.0, 2.0), factor=2.0, timeout_s=2.0)
                failures += status != 200
                if failures > 3:
                    outcome.note(f"stopped after {number} requests")
                    break
    finally:
        os.close(reading)
    return outcome


def killed_workers(folder: Path, *, frontends: int) -> Outcome:
    """The worker of a model with one instance is killed again and again: only what it was executing fails."""
    stop, said = threading.Event(), Counter[str]()

    def write(repository: Path) -> None:
        ModelFolder(repository, "pid").config(python_config(count=1)).python(_PID)

    def ask(arena: Arena) -> None:
        status, body = arena.ask("POST", "/v2/models/pid/infer", {"inputs": [_TENSOR]})
        said["answered" if status == 200 else _reason(body)] += 1

    def client(arena: Arena) -> None:
        while not stop.is_set():
            ask(arena)

    with serving(folder, f"--frontend-processes={frontends}", write=write) as arena, measured(arena) as outcome:
        threads = [threading.Thread(target=client, args=(arena,)) for _ in range(_CLIENTS)]
        for thread in threads:
            thread.start()
        for _ in range(_KILLS):
            goal = said["answered"] + 50
            arena.within(9.0, lambda goal=goal: said["answered"] >= goal)
            os.kill(_worker(arena), signal.SIGKILL)
            arena.within(9.0, lambda: not arena.is_ready("pid"))
            ask(arena)
            arena.within(9.0, lambda: arena.is_ready("pid"))
        stop.set()
        for thread in threads:
            thread.join()
        begun = said["executing"]
        outcome.lost += sum(said.values()) - said["answered"] - begun + max(0, begun - _KILLS * _CLIENTS)
        outcome.note(", ".join(f"{count} {word}" for word, count in said.items()))
    return outcome


def _worker(arena: Arena) -> int:
    _, body = arena.ask("POST", "/v2/models/pid/infer", {"inputs": [_TENSOR]})
    return round(json.loads(body)["outputs"][0]["data"][0])


def _reason(body: bytes) -> str:
    return "executing" if b"is not healthy" in body else body.decode(errors="replace") or "no answer"
