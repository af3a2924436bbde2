"""An unload gives memory back: resident memory after many loads and unloads is that after the first few, for each backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient

from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until
from tests.fleet.run import CONFIG, MODEL_MIB, PYTHON, weighty
from tpy.units import MIB

from .holding import measure

CYCLES = {"onnxruntime": 100, "identity": 100, "python": 20}
WARM_UP = {"onnxruntime": 50, "identity": 20, "python": 5}
"""The first loads import libraries, and each load thread has pools of the allocator's to fill."""
_ROUNDS_MAX = 3
"""The threads that load are chosen by chance: pools can fill in the first round, too. What is lost with each load grows in all of
them."""


def write(repository: Path, backend: str) -> None:
    folder = ModelFolder(repository, "m-1")
    if backend == "identity":
        folder.identity()
        return
    folder.config(CONFIG % backend)
    if backend == "python":
        folder.python(PYTHON)
    else:
        folder.file("1/model.onnx", weighty(1))


def is_unloaded(client: InferenceServerClient) -> bool:
    [entry] = client.get_model_repository_index()
    return bool(entry["state"] == "UNAVAILABLE" and entry["reason"] == "unloaded")


@pytest.mark.time_limit(300)
@pytest.mark.parametrize("backend", CYCLES)
def test_memory_is_given_back(backend: str, tmp_path: Path, soak: int) -> None:
    write(tmp_path / "models", backend)
    with (
        ServerProcess("--model-control-mode=explicit", repositories=[tmp_path / "models"]) as server,
        InferenceServerClient(server.http, network_timeout=60, connection_timeout=60) as client,
    ):

        def load_and_unload(times: int) -> int:
            for _ in range(times):
                client.load_model("m-1")
                client.unload_model("m-1")
            wait_until(lambda: not server.children() and is_unloaded(client))
            return measure(server).resident_bytes

        before = load_and_unload(WARM_UP[backend])
        for _ in range(_ROUNDS_MAX):
            after = load_and_unload(CYCLES[backend] * soak)
            print(f"{backend}: {before / MIB:.1f} MiB, after {CYCLES[backend] * soak} loads and unloads {after / MIB:.1f} MiB")
            bound = 1.05 * before + MODEL_MIB * MIB  # no more than one model more
            if after <= bound:
                return
            before = after
        wait_until(lambda: measure(server).resident_bytes <= bound)  # the server gives free memory back when it has time
