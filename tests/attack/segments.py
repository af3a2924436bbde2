"""Segments of shared memory that have no memory."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path

from tests.chaos.models import COPY, python_config
from tests.e2e.repositories import ModelFolder

from .arena import Arena, Outcome, measured, serving

_COUNT = 1_000_000
_BYTES = 4 * _COUNT
_SIZE_MIB = 24
_SPARSE_REQUESTS = 60


def sparse_segment(folder: Path, *, frontends: int) -> Outcome:
    """Outputs into a segment that the full /dev/shm has no memory for: they fail, those into other segments do not."""
    stop, said = threading.Event(), Counter[str]()

    def write(repository: Path) -> None:
        ModelFolder(repository, "large").config(python_config("-1", batch=0, count=2)).python(COPY)

    flags = ("--allow-client-shm=true", f"--frontend-processes={frontends}")
    mount = f"&& mount -t tmpfs -o size={_SIZE_MIB}m tmpfs /dev/shm"
    with serving(folder, *flags, write=write, limits=mount, apart=True) as arena:
        shm = Path(f"/proc/{arena.server.process.pid}/root/dev/shm")
        for name in ("good0", "good1", "rest"):
            _allocate(shm / name)
        rest = os.statvfs(shm)
        _allocate(shm / "rest", rest.f_bavail * rest.f_frsize + _BYTES)
        (shm / "sparse").touch()
        os.truncate(shm / "sparse", _BYTES)
        for name in ("good0", "good1", "sparse"):
            _register(arena, name)

        def good(name: str) -> None:
            while not stop.is_set():
                arena.outcome.lost += _infer(arena, name) != 200
                said["good"] += 1

        with measured(arena) as outcome:
            threads = [threading.Thread(target=good, args=(f"good{number}",)) for number in (0, 1)]
            for thread in threads:
                thread.start()
            for _ in range(_SPARSE_REQUESTS):
                said[f"sparse {_infer(arena, 'sparse')}"] += 1
            stop.set()
            for thread in threads:
                thread.join()
        outcome.note(", ".join(f"{count} {what}" for what, count in said.items()))
    return outcome


def _allocate(path: Path, size: int = _BYTES) -> None:
    with path.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _register(arena: Arena, name: str) -> None:
    settings = {"key": f"/{name}", "offset": 0, "byte_size": _BYTES}
    status, body = arena.ask("POST", f"/v2/systemsharedmemory/region/{name}/register", settings)
    assert status == 200, body


def _infer(arena: Arena, region: str) -> int:
    """The status of a request with its output, and its input unless there is no memory for one, in this region."""
    place = {"shared_memory_region": region, "shared_memory_byte_size": _BYTES}
    source = {"shared_memory_region": "good0", "shared_memory_byte_size": _BYTES}
    tensor = {"name": "INPUT", "shape": [_COUNT], "datatype": "FP32", "parameters": source}
    request = {"inputs": [tensor], "outputs": [{"name": "OUTPUT", "parameters": place}]}
    return arena.ask("POST", "/v2/models/large/infer", json.dumps(request).encode())[0]
