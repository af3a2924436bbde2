"""The table of all rows, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from benchmarks.bench import Bench
from benchmarks.rows import (
    batching,
    bls,
    compiled,
    decoupled,
    ensemble,
    floor,
    frameworks,
    frontends,
    many,
    memory,
    models,
    onnx,
    program,
    pytorch,
    sequences,
    shared_memory,
    start,
    stream,
    tail,
    tiny,
    tuning,
)


class Row(msgspec.Struct, frozen=True):
    """A part of the table that can be run alone. `needs_models`: it serves models of the demo repository. `quick`: also when in a
    hurry."""

    name: str
    about: str
    measure: Callable[[Bench], None]
    needs_models: bool = False
    quick: bool = False


ROWS: tuple[Row, ...] = (
    Row("json", "tiny identity model, HTTP JSON, by wrk", tiny.measure_json, quick=True),
    Row("floor", "the same beside an epoll loop in C that copies and answers, and system calls by strace", floor.measure),
    Row("binary", "tiny identity model, HTTP binary, by wrk", tiny.measure_binary),
    Row("connections", "the same, with a connection for each request", tiny.measure_connections),
    Row("heads", "tiny identity model, HTTP JSON, each request with another head, by wrk", tiny.measure_heads),
    Row("numbers", "identity model and 1,000 to 150,000 floats, HTTP JSON, by wrk", tiny.measure_numbers),
    Row("perf_analyzer", "tiny identity model, HTTP binary, by perf_analyzer", tiny.measure_perf_analyzer, quick=True),
    Row(
        "models",
        "python models of other kinds: batches, delays, instances, many tensors, strings; HTTP JSON, by wrk",
        models.measure,
    ),
    Row("large", "identity model and 12 MB, HTTP binary, by our own load generator", tiny.measure_large),
    Row(
        "shared_memory",
        "identity model and 12 MB through system shared memory, HTTP, by our own load generator",
        shared_memory.measure,
    ),
    Row("tail", "latency at 60 % of each server's own peak, HTTP binary and gRPC, by perf_analyzer", tail.measure, quick=True),
    Row("stream", "tiny identity model, one gRPC stream with 1, 16 and 64 requests outstanding", stream.measure, quick=True),
    Row("grpc", "tiny identity model and 12 MB, gRPC, by perf_analyzer", tiny.measure_grpc, quick=True),
    Row("cache", "one request again and again, with and without response cache, HTTP binary, by wrk", tiny.measure_cache),
    Row("frontends", "tiny identity models behind 0, 1, 2 and 4 frontend processes, HTTP and gRPC", frontends.measure),
    Row("decoupled", "a model that sends many small responses, gRPC streaming", decoupled.measure),
    Row("bls", "a model that calls another one k times, HTTP", bls.measure),
    Row("ensemble", "three tiny identity models in a row as an ensemble, HTTP", ensemble.measure),
    Row("compiled", "identity backends in C beside the built-in one and a Python model, HTTP binary, by wrk", compiled.measure),
    Row("program", "calls of tpy.Server in a program, by threads and tasks", program.measure),
    Row("onnx", "EfficientNet against a plain onnxruntime loop", onnx.measure, needs_models=True),
    Row(
        "tuning", "batching that tunes itself beside fixed settings, three models, HTTP binary", tuning.measure, needs_models=True
    ),
    Row("pytorch", "EfficientNet as TorchScript, batches of 1 and 8, against a plain PyTorch loop", pytorch.measure),
    Row(
        "frameworks",
        "OpenVINO, TensorFlow, LiteRT, DALI, trees and scikit-learn, batches, against plain loops",
        frameworks.measure,
    ),
    Row("sequences", "64 sequences of a voice detector, engine and HTTP, against a plain onnxruntime loop", sequences.measure),
    Row("batching", "64 clients of a voice detector, dynamic batching, against a plain loop", batching.measure, quick=True),
    Row("memory", "peak memory of one 12 MB tensor, HTTP", memory.measure),
    Row("grpc_memory", "peak memory of one 12 MB tensor, gRPC", memory.measure_grpc),
    Row(
        "many",
        "start-up with 50 ONNX models and with 50 Python models, memory of an idle worker",
        many.measure,
        needs_models=True,
    ),
    Row("start", "start-up time and idle memory", start.measure, needs_models=True, quick=True),
)

QUICK_ROWS: tuple[Row, ...] = tuple(row for row in ROWS if row.quick)


def rows_named(names: str) -> tuple[Row, ...]:
    """The rows of a comma-separated list, in the program's order. Raises ValueError for a name that no row has."""
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    unknown = wanted - {row.name for row in ROWS}
    if unknown or not wanted:
        raise ValueError(f"no row {', '.join(sorted(unknown))!r}; rows: {', '.join(row.name for row in ROWS)}")
    return tuple(row for row in ROWS if row.name in wanted)
