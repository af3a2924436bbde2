"""The trials, and the servers that they ask."""

from __future__ import annotations

import tempfile

from . import analyzer, examples, load
from .tools import Tools
from .trial import Trial, Version

SERVERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "usual": (("examples", "more"), ("--allow-client-shm=true",)),
    "traced": (("more",), ("--trace-config", f"triton,file={tempfile.gettempdir()}/tpy-interop-trace.json")),
    "eight": (("examples",), ("--model-control-mode=explicit",)),
    "seven": (("seven",), ("--model-control-mode=explicit",)),
    "explicit": (("more",), ("--model-control-mode=explicit",)),
}
"""Folders of models, and flags, by the name of the server. The examples of model control count the models: eight over gRPC, seven
over HTTP."""

NO_SERVER = "none"
"""Of trials that start one."""


def _of_examples(tools: Tools) -> str:
    tools.client_examples()
    return tools.version("client", "tritonclient")


def _of_analyzer(tools: Tools) -> str:
    tools.perf_analyzer()
    return tools.version("model-analyzer", "triton-model-analyzer")


_CLIENT = Version("Triton's client examples (tritonclient)", _of_examples)
_PERF = Version("perf_analyzer", lambda tools: tools.perf_analyzer_version())
_ANALYZER = Version("Model Analyzer", _of_analyzer)
_PYTRITON = Version("PyTriton's client", lambda tools: tools.version("triton", "nvidia-pytriton"))
_TRITONY = Version("tritony", lambda tools: tools.version("tritony", "tritony"))
_AIPERF = Version("aiperf", lambda tools: tools.version("aiperf", "aiperf"))

TRIALS = (
    Trial("examples-infer", _CLIENT, "infer, async, asyncio, compressed; HTTP and gRPC", "usual", examples.infer),
    Trial("examples-strings", _CLIENT, "strings, explicit contents", "usual", examples.contents),
    Trial(
        "examples-health",
        _CLIENT,
        "health, metadata, configuration; custom channel arguments, keep-alive",
        "usual",
        examples.health,
    ),
    Trial(
        "examples-sequences",
        _CLIENT,
        "sequences: sync, streams, asyncio; direct and oldest, ids that are text",
        "usual",
        examples.sequences,
    ),
    Trial("examples-decoupled", _CLIENT, "repeat_int32 (decoupled)", "usual", examples.decoupled),
    Trial(
        "examples-images",
        _CLIENT,
        "image_client, grpc_image_client, ensemble_image_client",
        "usual",
        examples.images,
        note="light networks of the same inputs and outputs in place of DenseNet and Inception",
    ),
    Trial(
        "examples-shared-memory",
        _CLIENT,
        "system shared memory, reused objects",
        "usual",
        examples.shared_memory,
    ),
    Trial(
        "examples-cuda-memory",
        _CLIENT,
        "CUDA shared memory",
        "usual",
        examples.cuda_memory,
        "unable to create cuda shared memory handle",
        "no GPU here",
    ),
    Trial("examples-control-http", _CLIENT, "simple_http_model_control", "seven", examples.control_http),
    Trial("examples-control-grpc", _CLIENT, "simple_grpc_model_control", "eight", examples.control_grpc),
    Trial(
        "perf-analyzer",
        _PERF,
        "concurrency and request rate, HTTP, gRPC, streams, asynchronous, batches, sequences, an ensemble",
        "usual",
        load.perf_analyzer,
    ),
    Trial(
        "perf-analyzer-shared-memory",
        _PERF,
        "`--shared-memory system`",
        "usual",
        load.perf_analyzer_shared_memory,
    ),
    Trial(
        "perf-analyzer-trace",
        _PERF,
        "`--trace-level`",
        "traced",
        load.perf_analyzer_trace,
    ),
    Trial("aiperf", _AIPERF, "`--endpoint-type template` with infer requests, server metrics", "usual", load.aiperf),
    Trial(
        "pytriton",
        _PYTRITON,
        "ModelClient, FuturesModelClient, DecoupledModelClient, waiting for readiness",
        "usual",
        load.pytriton,
    ),
    Trial(
        "tritony", _TRITONY, "InferenceClient: HTTP and gRPC, asynchronous; synchronous, asyncio over gRPC", "usual", load.tritony
    ),
    Trial(
        "analyzer-remote-http", _ANALYZER, "remote mode, HTTP, brute search", "explicit", analyzer.remote_http, note=analyzer.NOTE
    ),
    Trial("analyzer-remote-grpc", _ANALYZER, "remote mode, gRPC, brute search", "explicit", analyzer.remote_grpc),
    Trial("analyzer-ensemble", _ANALYZER, "remote mode, gRPC, quick search of an ensemble", "explicit", analyzer.ensemble),
    Trial("analyzer-local", _ANALYZER, "local mode: starts `tritonserver` from the PATH", NO_SERVER, analyzer.local),
)
