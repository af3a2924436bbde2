"""Dynamic batching of a small real model: 64 clients, what batches are worth to the model alone and served.

The model is the voice detector of the row `sequences`, here with its state as inputs and outputs: every request stands alone.
Triton has no ONNX backend here: it runs onnxruntime in its python backend, with the packages of the environment of this program,
and its batches are joined and cut in that model.py.
"""

from __future__ import annotations

import contextlib
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import plain_loop
from benchmarks.bench import Bench
from benchmarks.http_exchange import HttpRequest
from benchmarks.load import keep_alive
from benchmarks.measurement import Measurement
from benchmarks.plain_loop import picture
from benchmarks.rows.sequences import build_detector
from benchmarks.rows.tiny import Contender
from benchmarks.servers.models import write_onnx_model, write_python_onnx_model
from benchmarks.servers.peers import Triton
from benchmarks.servers.plans import TpyPlan, TritonPlan
from benchmarks.servers.process import Server, running
from benchmarks.tensors import ask, binary_request_of

ROW = "Silero VAD (ONNX, state as inputs), 64 clients, dynamic batching, 1 thread"
LOOP = "plain loop"
TRITON = "Triton python running onnxruntime"

CLIENTS = 64
BATCH = 8
"""Sizes of the loop's batches; servers take all waiting requests, up to one of each client."""

_INPUTS = {"INPUT": (512,), "STATE": (2, 128), "CONTEXT": (64,)}
_OUTPUTS = {"PROBABILITY": (1,), "STATE_OUT": (2, 128), "CONTEXT_OUT": (64,)}
_IMPORT_S_MAX = 30
MODELS = {"one_by_one": 1, "batched": CLIENTS}
"""Name -> max_batch_size."""


def measure(bench: Bench) -> None:
    """Loop and servers in turn, without batches and with them."""
    file = build_detector(bench.fresh("speech"))
    with _servers(bench, file) as contenders:
        for number in bench.rounds():
            _measure_round(bench, number, file, contenders)


def config_of(backend: str, batch: int) -> str:
    """The model's config.pbtxt without its name; batches form from what waits, without delay."""
    lines = [f'backend: "{backend}"', f"max_batch_size: {batch}"]
    for kind, tensors in (("input", _INPUTS), ("output", _OUTPUTS)):
        listed = ", ".join(f'{{ name: "{name}" data_type: TYPE_FP32 dims: {list(dims)} }}' for name, dims in tensors.items())
        lines.append(f"{kind} [ {listed} ]")
    lines += ["dynamic_batching { }"] if batch > 1 else []
    lines += ["instance_group [ { kind: KIND_CPU count: 1 } ]"]
    if backend == "onnxruntime":
        lines += ['parameters { key: "intra_op_thread_count" value: { string_value: "1" } }']
    return "\n".join(lines) + "\n"


def cannot_import_onnxruntime(triton: Triton, packages: Path) -> str:
    """The reason for which the interpreter of Triton's python backend cannot use onnxruntime from `packages`; empty if it can."""
    program = [
        str(triton.environment / "bin" / "python"),
        "-c",
        f"import sys; sys.path.append({str(packages)!r}); import onnxruntime",
    ]
    done = subprocess.run(program, capture_output=True, text=True, timeout=_IMPORT_S_MAX, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]


@contextlib.contextmanager
def _servers(bench: Bench, file: Path) -> Iterator[Sequence[Contender]]:
    with contextlib.ExitStack() as stack:
        repository = bench.fresh("batching")
        for model, batch in MODELS.items():
            write_onnx_model(repository, model, file, config_of("onnxruntime", batch))
        contenders = [Contender("tpy", stack.enter_context(running(TpyPlan(repository=repository), bench.fresh("tpy.log"))), "")]
        triton = bench.peers.triton
        packages = Path(sysconfig.get_path("purelib"))
        if triton is not None and (reason := cannot_import_onnxruntime(triton, packages)):
            bench.say(f"Triton is left out of row '{ROW}': its python cannot import onnxruntime ({reason})")
        elif triton is not None:
            repository = bench.fresh("batching-triton")
            for model, batch in MODELS.items():
                write_python_onnx_model(repository, model, file, config_of("python", batch), packages)
            plan = TritonPlan(triton=triton, repository=repository)
            contenders.append(Contender(TRITON, stack.enter_context(running(plan, bench.fresh("triton.log"))), ""))
        for contender in contenders:
            for model in MODELS:
                ask(contender.server.ports.http, _request(model))
        yield contenders


def _request(model: str) -> HttpRequest:
    return binary_request_of(model, {name: picture((1, *dims)) for name, dims in _INPUTS.items()})


def _measure_round(bench: Bench, number: int, file: Path, contenders: Sequence[Contender]) -> None:
    """One value for each contender. The gain is what batches give over no batches, each contender by itself."""
    per_s: dict[str, list[float]] = {LOOP: [], **{contender.name: [] for contender in contenders}}

    def note(metric: str, unit: str, contender: str, value: float, case: str = "") -> None:
        measurement = Measurement(
            row=ROW, case=case, metric=metric, unit=unit, contender=contender, baseline=LOOP, round=number, value=value
        )
        bench.note(measurement)

    def note_rate(contender: str, case: str, rate: float, cpu_us: float) -> None:
        per_s[contender].append(rate)
        note("throughput", "rows/s", contender, rate, case)
        note("CPU", "us/row", contender, cpu_us, case)

    seconds = bench.effort.seconds
    for model, size in MODELS.items():
        case = "batched" if size > 1 else "one by one"
        rows = min(size, BATCH)
        loop = plain_loop.drive(file, {name: (rows, *dims) for name, dims in _INPUTS.items()}, threads=1, seconds=seconds)
        note_rate(LOOP, case, loop.per_s * rows, loop.cpu_s / (loop.runs * rows) * 1e6)
        for contender in contenders:
            server: Server = contender.server
            before_s = server.cpu_s()
            load = keep_alive.drive(server.ports.http, _request(model), connections=CLIENTS, seconds=seconds)
            note_rate(contender.name, case, load.per_s, (server.cpu_s() - before_s) / load.answered * 1e6)
            note("p99 latency", "ms", contender.name, load.latency_p99_ms, case)
    for name, (alone, together) in per_s.items():
        note("gain from batches", "times", name, together / alone)
