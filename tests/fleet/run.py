"""One run: a server with a memory budget, clients that ask its models at random, and what came of it."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from tests.backends import onnx_models
from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess
from tpy.messages import DataType
from tpy.units import MIB

MODEL_MIB = 6
"""The weights of a model."""

CLIENTS = 6
_PATIENCE_S = 60

PYTHON = f"""
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.number = float(args["model_name"].partition("-")[2])
        self.weights = np.ones({MODEL_MIB} << 18, np.float32)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "INPUT").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", each + np.float32(self.number))]) for each in inputs]
"""

CONFIG = """
backend: "%s"
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: 3 }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: 3 }
"""


class Report(NamedTuple):
    """Answers by status, some texts of refusals, the waits of answers in seconds, and memory in bytes: the largest growth of the
    server since it was ready, with all its workers."""

    outcomes: Counter[str]
    refusals: list[str]
    wrong: int
    waits_s: list[float]
    loads: int
    budget_bytes: int
    grown_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        waits = sorted(self.waits_s) or [0.0]
        shown = ", ".join(f"{what} {number:,}" for what, number in sorted(self.outcomes.items()))
        quantiles = " ".join(f"{waits[int(share * (len(waits) - 1))] * 1000:.0f}" for share in (0.5, 0.9, 0.99, 1))
        return "\n".join(
            (
                f"{self.outcomes.total():,} requests: {shown}; {self.wrong} wrong answers; {self.loads:,} loads",
                *(f"refused: {text}" for text in self.refusals[:5]),
                f"ms to an answer at 50, 90, 99 and 100 %: {quantiles}",
                f"budget {self.budget_bytes / MIB:.0f} MiB; models and workers had at most {self.grown_bytes / MIB:.0f} MiB",
                f"that is {100 * self.grown_bytes / self.budget_bytes:.0f} %; all processes: {self.total_bytes / MIB:.0f} MiB",
            )
        )

    def check(self) -> None:
        """Nothing but answers, and refusals that say when to come again; memory within the budget and a tenth."""
        assert self.outcomes["200"] > 0, str(self)
        assert self.outcomes.keys() <= {"200", "503 with Retry-After"}, str(self)
        assert not self.wrong, str(self)
        assert self.grown_bytes <= 1.1 * self.budget_bytes, str(self)


def weighty(number: int) -> bytes:
    """INPUT [N, 3] -> OUTPUT [N, 3] = INPUT + number, with weights that nothing folds away."""
    rows = MODEL_MIB * MIB // 12
    weights = onnx.numpy_helper.from_array(np.zeros((rows, 3), np.float32), "weights")
    constants = [weights, *(onnx.numpy_helper.from_array(array, name) for name, array in _small(number).items())]
    nodes = [
        helper.make_node("ReduceMax", ["INPUT"], ["largest"], keepdims=0),
        helper.make_node("Mul", ["largest", "nought"], ["zero"]),
        helper.make_node("Cast", ["zero"], ["index"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["weights", "index"], ["row"], axis=0),
        helper.make_node("Add", ["INPUT", "row"], ["sum"]),
        helper.make_node("Add", ["sum", "number"], ["OUTPUT"]),
    ]
    shape = ("N", 3)
    given = [onnx_models.value(name, DataType.FP32, shape) for name in ("INPUT", "OUTPUT")]
    return onnx_models.model(nodes, given[:1], given[1:], constants)


def _small(number: int) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {"nought": np.array(0, np.float32), "number": np.array([number], np.float32)}


def write(repository: Path, onnx_count: int, python_count: int) -> list[str]:
    """The models, whose answers are their input plus their number. Returns their names."""
    names = []
    for number in range(onnx_count):
        names.append(f"onnx-{number}")
        ModelFolder(repository, names[-1]).config(CONFIG % "onnxruntime").file("1/model.onnx", weighty(number))
    for number in range(python_count):
        names.append(f"python-{number}")
        ModelFolder(repository, names[-1]).config(CONFIG % "python").python(PYTHON)
    return names


class Clients:
    """Threads that ask until `over` is set."""

    def __init__(self, address: str, names: list[str], seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.waits_s: list[float] = []
        self.refusals: list[str] = []
        self.wrong = 0
        self.over = threading.Event()
        self._address = address
        self._names = names
        self._weights = list(accumulate(1 / rank for rank in range(1, 1 + len(names))))
        self._threads = [threading.Thread(target=self._run, args=(random.Random(seed + each),)) for each in range(CLIENTS)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, chance: random.Random) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=2 * _PATIENCE_S)
        while not self.over.is_set():
            [name] = chance.choices(self._names, cum_weights=self._weights)
            began = time.monotonic()
            try:
                outcome = self._ask(connection, name)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                outcome = type(error).__name__
            self.outcomes[outcome] += 1
            self.waits_s.append(time.monotonic() - began)
            self.over.wait(0.01)
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, name: str) -> str:
        tensor = {"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}
        connection.request("POST", f"/v2/models/{name}/infer", json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        answer = json.loads(response.read())
        if response.status != 200:
            self.refusals.append(str(answer))
            return f"{response.status} with Retry-After" if response.headers["Retry-After"] else f"{response.status} {answer}"
        number = int(name.partition("-")[2])
        self.wrong += answer["outputs"][0]["data"] != [1 + number, 2 + number, 3 + number]
        return "200"


def private_bytes(pid: int) -> int:
    """Memory of a process that no file is behind and no other process shares; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Swap:")))


def memory_bytes(server: ServerProcess) -> tuple[int, int]:
    """Of the server's process and of all its workers."""
    return private_bytes(server.process.pid), sum(map(private_bytes, server.children()))


def loads(server: ServerProcess) -> int:
    """Loads on demand since the start."""
    host, port = server.metrics.split(":")
    connection = http.client.HTTPConnection(host, int(port))
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    [line] = [line for line in page.splitlines() if line.startswith("tpy_memory_budget_loads_total ")]
    return int(float(line.split()[1]))


def run(folder: Path, *, seconds: float, onnx_count: int, python_count: int, room: int, seed: int = 1) -> Report:
    """Ask for so long. The budget has `room` models: their weights, and as much again for what a worker or session has beside."""
    names = write(folder / "models", onnx_count, python_count)
    random.Random(seed).shuffle(names)
    budget_bytes = room * 2 * MODEL_MIB * MIB
    flags = (
        "--model-control-mode=on-demand",
        f"--model-memory-budget={budget_bytes}",
        f"--model-sizes-file={folder / 'sizes.json'}",
        f"--model-load-wait-secs={_PATIENCE_S}",
    )
    with ServerProcess(*flags, repositories=[folder / "models"]) as server:
        before, _ = memory_bytes(server)
        grown = total = 0
        with Clients(server.http, names, seed) as clients:
            until = time.monotonic() + seconds
            while not clients.over.wait(0.2) and time.monotonic() < until:
                own, workers = memory_bytes(server)
                grown, total = max(grown, own - before + workers), max(total, own + workers)
        refused = sorted(set(clients.refusals))
        return Report(clients.outcomes, refused, clients.wrong, clients.waits_s, loads(server), budget_bytes, grown, total)
