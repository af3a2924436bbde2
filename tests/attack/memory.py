"""A server that may have little memory, and requests that need much."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

from tests.chaos.models import COPY, python_config
from tests.e2e.repositories import ModelFolder

from .arena import Arena, Outcome, measured, serving

_MEMORY_KIB = 1_500_000
_CLIENTS = 10
_REQUESTS = 2
_ELEMENTS = 6_000_000


def large_requests(folder: Path, *, worker: bool) -> Outcome:
    """Many large requests at once, without address space for all: they are refused with 503, and no bug is in the log. The model
    runs in the server, or in a worker, whose answers the server cannot map."""
    tensor = {"name": "INPUT", "shape": [_ELEMENTS], "datatype": "FP32"}
    body = json.dumps({"inputs": [{**tensor, "data": [1.5] * _ELEMENTS}]}).encode()
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 4 * _ELEMENTS}}]}).encode()
    said = Counter[int]()

    def write(repository: Path) -> None:
        config = python_config("-1", batch=0, count=1)
        large = ModelFolder(repository, "large").config(config if worker else config.replace('"python"', '"identity"'))
        if worker:
            large.python(COPY)
        else:
            (large.path / "1").mkdir()

    with serving(folder, write=write, memory_kib=_MEMORY_KIB) as arena, measured(arena) as outcome:

        def client() -> None:
            for _ in range(_REQUESTS):
                said[arena.ask("POST", "/v2/models/large/infer", body, timeout_s=40.0)[0]] += 1
                said[_binary(arena, head, bytes(4 * _ELEMENTS))] += 1

        threads = [threading.Thread(target=client) for _ in range(_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        outcome.lost += said[500]
        outcome.wrong += arena.server.log.count("Traceback") + arena.server.log.count("failed and is started again")
        outcome.note(", ".join(f"{count} times {status or 'no answer'}" for status, count in said.items()))
        arena.infer("affine", factor=2.0)
        arena.infer("copy")
    return outcome


def _binary(arena: Arena, head: bytes, tensor: bytes) -> int:
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return arena.ask("POST", "/v2/models/large/infer", head + tensor, timeout_s=40.0, headers=headers)[0]
