"""A real model of PyTorch: how much of a plain loop's throughput is left when it is served, alone and eight at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec

from benchmarks import plain_loop
from benchmarks.bench import Bench
from benchmarks.load import keep_alive
from benchmarks.plain_loop import picture
from benchmarks.rows.onnx import without_clients
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import Server, running
from benchmarks.tensors import ask, binary_request

ROW = "EfficientNet-Lite0 (TorchScript), HTTP binary"
BASELINE = "plain loop"
CONTENDER = "tpy"
MODEL = "efficientnet"
INPUT = "image"
FIRST = (1, 8, 1, 8, 1, 8)
"""Pictures in the first requests, as TorchScript optimises in its first runs with a shape."""
SAVE = Path(__file__).parents[2] / "docs" / "examples" / "pytorch" / "save.py"

_CONFIG = """\
platform: "pytorch_libtorch"
max_batch_size: 8
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1000 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "INTRA_OP_THREAD_COUNT" value: { string_value: "THREADS" } }
"""


class Setting(msgspec.Struct, frozen=True):
    """Threads of server and loop, and pictures in a request."""

    threads: int
    pictures: int

    @property
    def case(self) -> str:
        return f"batch {self.pictures}, {self.threads} thread{'s' * (self.threads > 1)}"


def measure(bench: Bench) -> None:
    """tpy and the loop in turn. Nothing without PyTorch."""
    if find_spec("torch") is None:
        bench.say("pytorch: left out, PyTorch is not installed (make setup-torch)")
        return
    cores = len(os.sched_getaffinity(0))
    settings = [Setting(threads, pictures) for threads in sorted({1, cores}) for pictures in (1, 8)]
    repository = bench.fresh("pytorch-models")
    subprocess.run([sys.executable, SAVE, repository], check=True, stdout=subprocess.DEVNULL)
    file = repository / "traced" / "1" / "model.pt"
    with _servers(bench, file, sorted({setting.threads for setting in settings})) as servers:
        for number in bench.rounds():
            for clients in bench.effort.cases((1, 8), (8,)):
                for setting in settings:
                    _measure_once(bench, setting, servers[setting.threads], file, number, clients=clients, core_count=cores)


@contextlib.contextmanager
def _servers(bench: Bench, file: Path, thread_counts: list[int]) -> Iterator[dict[int, Server]]:
    with contextlib.ExitStack() as stack:
        servers = {}
        for threads in thread_counts:
            repository = bench.fresh("pytorch")
            version = repository / MODEL / "1"
            version.mkdir(parents=True)
            shutil.copy(file, version)
            (repository / MODEL / "config.pbtxt").write_text(_CONFIG.replace("THREADS", str(threads)))
            server = stack.enter_context(running(TpyPlan(repository=repository), bench.fresh("tpy.log")))
            for pictures in FIRST:
                ask(server.ports.http, binary_request(MODEL, INPUT, picture((pictures, 3, 224, 224))))
            servers[threads] = server
        yield servers


def _measure_once(
    bench: Bench, setting: Setting, server: Server, file: Path, number: int, *, clients: int, core_count: int
) -> None:
    shape = (setting.pictures, 3, 224, 224)
    loop = plain_loop.drive(file, {INPUT: shape}, threads=setting.threads, seconds=bench.effort.seconds, before=FIRST)
    before_s = server.cpu_s()
    request = binary_request(MODEL, INPUT, picture(shape))
    load = keep_alive.drive(server.ports.http, request, connections=clients, seconds=bench.effort.seconds)
    server_cpu_s = server.cpu_s() - before_s
    served = without_clients(load.answered, load.seconds, load.cpu_s, core_count)
    for contender, values in (
        (BASELINE, (loop.per_s, loop.per_s, loop.cpu_s / loop.runs * 1e3)),
        (CONTENDER, (load.per_s, served, server_cpu_s / load.answered * 1e3)),
    ):
        metrics = ("throughput", "throughput, clients' CPU time left out", "CPU of the server's processes")
        bench.note_each(
            zip(metrics, ("inferences/s", "inferences/s", "ms/inference"), values, strict=True),
            row=ROW,
            case=f"{clients} client{'s' * (clients > 1)}, {setting.case}",
            contender=contender,
            baseline=BASELINE,
            number=number,
        )
