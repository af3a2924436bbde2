"""Workers that die, stop, or fork."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.chaos.models import python_config
from tests.e2e.repositories import ModelFolder
from tests.e2e.server import is_alive

from .arena import Arena, Outcome, measured, serving

_BACK_S_MAX = 9.0

_FORK = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        self.count = getattr(self, "count", 0) + 1
        if self.count % 20 == 0:
            os.fork()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]
"""


def kill_idle(folder: Path, *, model: str, instances: int) -> Outcome:
    """Kill all workers while nobody asks; then one request for each instance."""
    with serving(folder) as arena, measured(arena) as outcome:
        for _ in range(4):
            _ask(arena, model)
        outcome.lost = 0
        for pid in arena.server.children():
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        untrue = arena.within(_BACK_S_MAX, lambda: not arena.is_ready(model))
        if untrue is None:
            outcome.note(f"readiness says 200 for {_BACK_S_MAX:.0f} s")
        else:
            outcome.note(f"readiness noticed after {1000 * untrue:.0f} ms")
            arena.within(_BACK_S_MAX, lambda: arena.is_ready(model))
        for _ in range(instances + 1):
            _ask(arena, model)
        back = arena.within(_BACK_S_MAX, lambda: len([pid for pid in arena.server.children() if is_alive(pid)]) >= 3)
        if back is None:
            outcome.note(f"no restart within {_BACK_S_MAX:.0f} s")
        else:
            outcome.note(f"all back {time.monotonic() - killed:.1f} s after the kill")
    return outcome


def _ask(arena: Arena, model: str) -> None:
    if model != "count":
        arena.infer(model)
        return
    status, body = arena.ask("POST", "/v2/models/count/generate", {"INPUT": [1.0]})
    if status != 200:
        arena.outcome.lost += 1
    elif json.loads(body)["OUTPUT"] not in (0.0, [0.0]):
        arena.outcome.wrong += 1


def fork_in_execute(folder: Path, *, requests: int) -> Outcome:
    """A model that forks, whose child answers too: each client gets its own number."""

    def write(repository: Path) -> None:
        ModelFolder(repository, "forks").config(python_config(count=1)).python(_FORK)

    refused = [0]

    def client(arena: Arena, number: int) -> None:
        for count in range(requests // 4):
            if time.monotonic() > until:
                return
            value = float(number * 100_000 + count)
            tensor = {"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [value] * 3}
            status, body = arena.ask("POST", "/v2/models/forks/infer", {"inputs": [tensor]}, timeout_s=5.0)
            if status == 200:
                arena.outcome.wrong += json.loads(body)["outputs"][0]["data"] != [value] * 3
            else:
                refused[0] += 1

    with serving(folder, write=write) as arena, measured(arena) as outcome:
        until = time.monotonic() + 15
        with ThreadPoolExecutor(4) as pool:
            for number in range(4):
                pool.submit(client, arena, number)
        outcome.note(f"{refused[0]} of the forking model's requests refused")
    return outcome


def stopped_at_shutdown(folder: Path) -> Outcome:
    """A worker is stopped, requests wait for it, the server is told to end: each gets an answer."""
    statuses: list[int] = []
    ids: list[threading.Thread] = []
    with serving(folder, "--exit-timeout-secs=3") as arena:
        with measured(arena) as outcome:
            arena.infer("copy")
            workers = arena.server.children()
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
            tensor = {"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}

            def client() -> None:
                statuses.append(arena.ask("POST", "/v2/models/copy/infer", {"inputs": [tensor]}, timeout_s=30)[0])

            ids.extend(threading.Thread(target=client) for _ in range(6))
            for each in ids:
                each.start()
            time.sleep(0.3)
        arena.server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        for each in ids:
            each.join()
        outcome.lost += statuses.count(0)
        ended = arena.within(15, lambda: arena.server.process.poll() is not None)
        outcome.note(f"answers {sorted(set(statuses))} of {len(statuses)}")
        outcome.note("did not end" if ended is None else f"ended after {time.monotonic() - began:.1f} s")
        outcome.alive = ended is not None
        for pid in workers:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        arena.outcome = Outcome()  # it is meant to have ended
    return outcome
