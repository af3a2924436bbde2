"""Sequences: a real stateful model, many streams at once; what batches are worth to it, alone and served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks import engine_loop, plain_loop
from benchmarks.bench import Bench
from benchmarks.http_exchange import HttpRequest
from benchmarks.load import LoadFailed, keep_alive
from benchmarks.measurement import Measurement
from benchmarks.plain_loop import picture
from benchmarks.servers.models import write_onnx_model
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import Server, running
from benchmarks.tensors import ask, binary_request

ROW = "Silero VAD (ONNX, implicit state), 64 sequences, 1 thread"
LOOP = "plain loop"
ENGINE = "tpy engine"
SERVER = "tpy, HTTP binary"

STREAMS = 64
BATCH = 8
"""Sizes of the loop's batches; the server takes all waiting requests, up to one of each stream."""

_INPUT = "INPUT"
_SHAPE = (1, 512)
_STATES = {"STATE": (2, 128), "CONTEXT": (64,)}
_EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
_CONFIG = """\
backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 512 ] }} ]
output [ {{ name: "PROBABILITY" data_type: TYPE_FP32 dims: [ 1 ] }} ]
sequence_batching {{
  oldest {{ max_candidate_sequences: {streams} }}
  max_sequence_idle_microseconds: 600000000
{states}}}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "intra_op_thread_count" value: {{ string_value: "1" }} }}
"""
_STATE = """\
  state {{
    input_name: "{name}" output_name: "{name}_OUT" data_type: TYPE_FP32 dims: {dims}
    initial_state {{ name: "zero" data_type: TYPE_FP32 dims: {dims} zero_data: true }}
  }}
"""
MODELS = {"one_by_one": 1, "batched": STREAMS}
"""Name -> max_batch_size."""


def measure(bench: Bench) -> None:
    """Loop, engine and server in turn, without batches and with them."""
    examples = bench.fresh("speech")
    file = build_detector(examples)
    repository = bench.fresh("sequences")
    states = "".join(_STATE.format(name=name, dims=list(dims)) for name, dims in _STATES.items())
    for model, batch in MODELS.items():
        write_onnx_model(repository, model, file, _CONFIG.format(batch=batch, streams=STREAMS, states=states))
    with running(TpyPlan(repository=repository), bench.fresh("tpy.log")) as server:
        for model in MODELS:
            for stream in range(STREAMS):
                ask(server.ports.http, _request(model, stream, start=True))
        for number in bench.rounds():
            _measure_once(bench, number, file, repository, server)


def build_detector(folder: Path) -> Path:
    """The voice detector's file, as the example `speech` has it. Raises LoadFailed when its packages are missing."""
    command = [sys.executable, str(_EXAMPLES / "build.py"), "speech", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LoadFailed(f"no model for this row, `make serve-speech` brings it: {done.stderr.strip()}")
    return folder / "vad" / "1" / "model.onnx"


def _request(model: str, stream: int, *, start: bool = False) -> HttpRequest:
    parameters = {"sequence_id": stream + 1, "sequence_start": start, "sequence_end": False}
    return binary_request(model, _INPUT, picture(_SHAPE), parameters)


def _measure_once(bench: Bench, number: int, file: Path, repository: Path, server: Server) -> None:
    """One value for each contender. The gain is what batches give over no batches, each contender by itself."""
    per_s: dict[str, list[float]] = {LOOP: [], ENGINE: [], SERVER: []}

    def note(metric: str, unit: str, contender: str, value: float, case: str = "") -> None:
        measurement = Measurement(
            row=ROW, case=case, metric=metric, unit=unit, contender=contender, baseline=LOOP, round=number, value=value
        )
        bench.note(measurement)

    for model, size in MODELS.items():
        case = "batched" if size > 1 else "one by one"
        rows = min(size, BATCH)
        feed = {_INPUT: (rows, *_SHAPE[1:]), **{name: (rows, *dims) for name, dims in _STATES.items()}}
        seconds = bench.effort.seconds
        loop = plain_loop.drive(file, feed, threads=1, seconds=seconds)
        engine = engine_loop.drive(repository, model, _INPUT, _SHAPE, streams=STREAMS, seconds=seconds)
        requests = [_request(model, stream) for stream in range(STREAMS)]
        before_s = server.cpu_s()
        load = keep_alive.drive(server.ports.http, requests, connections=STREAMS, seconds=seconds)
        server_cpu_s = server.cpu_s() - before_s
        for contender, rate, cpu_s, count in (
            (LOOP, loop.per_s * rows, loop.cpu_s, loop.runs * rows),
            (ENGINE, engine.per_s, engine.cpu_s, engine.rows),
            (SERVER, load.per_s, server_cpu_s, load.answered),
        ):
            per_s[contender].append(rate)
            note("throughput", "rows/s", contender, rate, case)
            note("CPU", "us/row", contender, cpu_s / count * 1e6, case)
        note("rows in a batch", "", LOOP, rows, case)
        note("rows in a batch", "", ENGINE, engine.rows / engine.executions, case)
    for contender, (alone, together) in per_s.items():
        note("gain from batches", "times", contender, together / alone)
