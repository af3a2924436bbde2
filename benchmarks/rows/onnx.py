"""A real model: how much of a plain onnxruntime loop's throughput is left when the model is served."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import msgspec

from benchmarks import plain_loop
from benchmarks.bench import Bench
from benchmarks.load import keep_alive
from benchmarks.measurement import Measurement
from benchmarks.plain_loop import picture
from benchmarks.servers.models import write_onnx_model
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import Server, running
from benchmarks.tensors import ask, binary_request

ROW = "EfficientNet-Lite0 (ONNX), batch 1, HTTP binary"
BASELINE = "plain loop"
CONTENDER = "tpy"
MODEL = "efficientnet"
INPUT = "INPUT"
SHAPE = (1, 3, 224, 224)

_CONFIG = """\
backend: "onnxruntime"
max_batch_size: 1
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
output [ { name: "PROBABILITIES" data_type: TYPE_FP32 dims: [ 1000 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
_THREADS = 'parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{}" }} }}\n'


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One way to compare. `threads` in ONNX Runtime's pool (0: its default); cores of server and loop, and of the clients (None:
    all). `accounted`: the pool fills every core, so the clients take their CPU time from the model, and a second ratio leaves it
    out."""

    case: str
    threads: int
    server_cores: tuple[int, ...] | None = None
    client_cores: tuple[int, ...] | None = None
    accounted: bool = False


def settings_for(cores: Sequence[int]) -> tuple[Setting, ...]:
    """The comparisons that make sense on `cores`. Keeping clients away from the server's core needs two."""
    shared = Setting(case="1 thread, nothing pinned", threads=1)
    every = Setting(case="default threads", threads=0, accounted=True)
    if len(cores) < 2:
        return (shared, every)
    apart = Setting(
        case="1 thread, server on one core, clients on another", threads=1, server_cores=(cores[0],), client_cores=(cores[-1],)
    )
    return (shared, apart, every)


def measure(bench: Bench) -> None:
    """tpy and the loop in turn, for each setting and number of clients."""
    cores = sorted(os.sched_getaffinity(0))
    with _servers(bench, settings_for(cores)) as servers:
        for number in bench.rounds():
            for clients in bench.effort.cases((1, 8), (8,)):
                for setting, server in servers:
                    _measure_once(bench, setting, server, number, clients=clients, core_count=len(cores))


@contextlib.contextmanager
def _servers(bench: Bench, settings: Sequence[Setting]) -> Iterator[Sequence[tuple[Setting, Server]]]:
    request = binary_request(MODEL, INPUT, picture(SHAPE))
    with contextlib.ExitStack() as stack:
        servers = []
        for setting in settings:
            repository = bench.fresh("onnx")
            config = _CONFIG + (_THREADS.format(setting.threads) if setting.threads else "")
            write_onnx_model(repository, MODEL, bench.models / "efficientnet_lite0" / "1" / "model.onnx", config)
            plan = TpyPlan(repository=repository)
            server = stack.enter_context(running(plan, bench.fresh("tpy.log"), cores=setting.server_cores))
            ask(server.ports.http, request)
            servers.append((setting, server))
        yield servers


def _measure_once(bench: Bench, setting: Setting, server: Server, number: int, *, clients: int, core_count: int) -> None:
    def note(metric: str, unit: str, contender: str, value: float) -> None:
        bench.note(
            Measurement(
                row=ROW,
                case=f"{clients} client{'s' * (clients > 1)}, {setting.case}",
                metric=metric,
                unit=unit,
                contender=contender,
                baseline=BASELINE,
                round=number,
                value=value,
            )
        )

    loop = plain_loop.drive(
        bench.models / "efficientnet_lite0" / "1" / "model.onnx",
        {INPUT: SHAPE},
        threads=setting.threads,
        seconds=bench.effort.seconds,
        cores=setting.server_cores,
    )
    request = binary_request(MODEL, INPUT, picture(SHAPE))
    before_s = server.cpu_s()
    load = keep_alive.drive(
        server.ports.http, request, connections=clients, seconds=bench.effort.seconds, cores=setting.client_cores
    )
    server_cpu_s = server.cpu_s() - before_s
    note("throughput", "inferences/s", BASELINE, loop.per_s)
    note("throughput", "inferences/s", CONTENDER, load.per_s)
    if setting.accounted:
        metric = "throughput, clients' CPU time left out"
        note(metric, "inferences/s", BASELINE, loop.per_s)
        note(metric, "inferences/s", CONTENDER, without_clients(load.answered, load.seconds, load.cpu_s, core_count))
    note("CPU of the server's processes", "ms/inference", BASELINE, loop.cpu_s / loop.runs * 1e3)
    note("CPU of the server's processes", "ms/inference", CONTENDER, server_cpu_s / load.answered * 1e3)


def without_clients(answered: int, seconds: float, client_cpu_s: float, core_count: int) -> float:
    """Throughput as if the machine's cores had stood still while clients ran on them: answers per second, divided by the share of
    all cores' time that was left to the server."""
    return answered / (seconds - client_cpu_s / core_count)
