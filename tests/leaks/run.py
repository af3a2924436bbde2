"""One run: traffic, models that come and go, and what is left."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tritonclient.http import InferenceServerClient

from tests.backends import onnx_models
from tests.chaos.models import COPY, python_config, write_models
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until

from .holding import Holding, measure, private_shm
from .traffic import Progress, grpc_thread, http_thread

_STAYING = ("affine", "copy", "chain", "count")
_COMING = ("coming-onnx", "coming-python")
_CYCLES_PER_REQUEST = 1 / 2000
_SAMPLES = 10
_MIB = 1024 * 1024


class Report(NamedTuple):
    """The work done, and the resources held before and after."""

    requests: int
    cycles: int
    outcomes: Counter[str]
    before: Holding
    after: Holding
    resident_mib: list[float]
    """Of the server, after each tenth of the requests."""

    left: Counter[str]
    """Open files at the end that were not open before."""

    def __str__(self) -> str:
        outcomes = ", ".join(f"{what} {count:,}" for what, count in sorted(self.outcomes.items()))
        growth = (self.after.resident_bytes - self.before.resident_bytes) / _MIB
        return "\n".join(
            (
                f"{self.requests:,} requests ({outcomes}), {self.cycles} times loaded and unloaded each of {', '.join(_COMING)}",
                f"before: {self.before}",
                f"after:  {self.after}",
                f"resident MiB on the way: {' '.join(f'{value:.0f}' for value in self.resident_mib)}; grown by {growth:.1f}",
            )
        )

    def check(self, *, growth_bytes_max: int) -> None:
        """All counts end where they began, and no timer is of a model that was unloaded; memory may differ by this much, for what
        the allocator keeps."""
        assert self.after.counts() == self.before.counts(), f"{self}\nleft open: {self.left}"
        assert self.after.timers <= len(_STAYING), str(self)
        assert self.after.resident_bytes - self.before.resident_bytes <= growth_bytes_max, str(self)
        assert self.after.workers_bytes - self.before.workers_bytes <= growth_bytes_max, str(self)
        allowed = {
            "HTTP 200",
            "HTTP 404",
            "HTTP 503",
            "gRPC OK",
            "gRPC NOT_FOUND",
            "gRPC UNAVAILABLE",
            "gRPC left",
            "gRPC stream of 3",
        }
        assert self.outcomes.keys() <= allowed, self.outcomes


def _write(repository: Path) -> None:
    write_models(repository)
    wide = AFFINE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 4096")
    ModelFolder(repository, "affine").config(wide + "dynamic_batching { }\n")
    for name in ("copy", "coming-python"):
        ModelFolder(repository, name).config(python_config(batch=4096, count=1)).python(COPY)
    chain = (repository / "chain" / "config.pbtxt").read_text()
    ModelFolder(repository, "chain").config(chain.replace("max_batch_size: 8", "max_batch_size: 4096"))
    ModelFolder(repository, "coming-onnx").config(wide).file("1/model.onnx", onnx_models.affine(3, 0))


def _come_and_go(server: ServerProcess, cycles: int) -> None:
    with InferenceServerClient(server.http, network_timeout=60, connection_timeout=60) as client:
        for _ in range(cycles):
            for name in _COMING:
                client.load_model(name)
            for name in _COMING:
                client.unload_model(name)


def _ask(server: ServerProcess, requests: int, cycles: int) -> tuple[Counter[str], list[float]]:
    progress = Progress(requests)
    targets = [http_thread, http_thread, grpc_thread, grpc_thread]
    threads = [threading.Thread(target=target, args=(server, progress)) for target in targets]
    changes = threading.Thread(target=_come_and_go, args=(server, cycles))
    for thread in (*threads, changes):
        thread.start()
    resident = []
    for tenth in range(1, _SAMPLES + 1):
        progress.wait_done(requests * tenth // _SAMPLES, lambda: any(thread.is_alive() for thread in threads))
        resident.append(measure(server).resident_bytes / _MIB)
    for thread in (*threads, changes):
        thread.join()
    assert progress.done >= requests, f"only {progress.done:,} of {requests:,} were answered: a thread that asks has failed"
    return progress.outcomes, resident


def run(folder: Path, requests: int) -> Report:
    """Send so many requests, after a tenth as many to warm up."""
    _write(folder / "models")
    cycles = max(5, round(requests * _CYCLES_PER_REQUEST))
    flags = ("--model-control-mode=explicit", *(f"--load-model={name}" for name in _STAYING))
    with ServerProcess(*flags, repositories=[folder / "models"], launcher=private_shm()) as server:
        idle = measure(server)
        _ask(server, requests // 10, max(5, cycles // 10))
        wait_until(lambda: measure(server).descriptors <= idle.descriptors)
        before, files = measure(server), server.open_files()
        outcomes, resident = _ask(server, requests, cycles)
        with contextlib.suppress(TimeoutError):  # the report says what is left
            wait_until(lambda: measure(server).counts() == before.counts())
        return Report(requests, cycles, outcomes, before, measure(server), resident, server.open_files() - files)
