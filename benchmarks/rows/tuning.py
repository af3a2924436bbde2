"""Batching that tunes itself beside fixed settings: three models, one client, eight and 24 that each wait for their answers.

Each setting is a copy of the model in one server, which is asked while the others idle. The copy that tunes itself has learned
what the model costs by the loads of the rounds before, and of a warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.bench import Bench
from benchmarks.http_exchange import HttpRequest
from benchmarks.load import keep_alive
from benchmarks.plain_loop import picture
from benchmarks.rows import batching, models
from benchmarks.rows.sequences import build_detector
from benchmarks.rows.tiny import VALUES
from benchmarks.servers.models import write_onnx_model
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import Server, running
from benchmarks.tensors import FloatArray, ask, binary_request_of

ROW = "{}: batching that tunes itself"
BASELINE = "dynamic_batching { }"
SETTINGS: Mapping[str, str] = {
    "auto": 'dynamic_batching { } parameters { key: "batching" value { string_value: "auto" } }',
    BASELINE: "dynamic_batching { }",
    "preferred 8, 500 us": "dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 500 }",
    "delay 2 ms": "dynamic_batching { max_queue_delay_microseconds: 2000 }",
    "delay 5 ms": "dynamic_batching { max_queue_delay_microseconds: 5000 }",
    "no batches": "",
}
CLIENTS = (1, 8, 24)
_BATCH = 32
_WARM_UP_S = 3

_EFFICIENTNET = f"""\
backend: "onnxruntime"
max_batch_size: {_BATCH}
input [ {{ name: "INPUT" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }} ]
output [ {{ name: "PROBABILITIES" data_type: TYPE_FP32 dims: [ 1000 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "intra_op_thread_count" value: {{ string_value: "1" }} }}
"""
_DETECTOR = batching.config_of("onnxruntime", _BATCH).replace("dynamic_batching { }\n", "")


class Model(msgspec.Struct, frozen=True):
    """A model, and one request's inputs."""

    name: str
    title: str
    inputs: Mapping[str, FloatArray]

    def copy(self, number: int) -> str:
        """The name of the copy with a setting."""
        return f"{self.name}-{number}"

    def request(self, number: int) -> HttpRequest:
        """To that copy."""
        return binary_request_of(self.copy(number), self.inputs)


MODELS = (
    Model(
        "detector",
        "Silero VAD (ONNX, 1 thread)",
        {"INPUT": picture((1, 512)), "STATE": picture((1, 2, 128)), "CONTEXT": picture((1, 64))},
    ),
    Model("efficientnet", "EfficientNet-Lite0 (ONNX, 1 thread)", {"INPUT": picture((1, 3, 224, 224))}),
    Model("slow", "Python model of 2 ms", {"INPUT0": VALUES.reshape(1, -1)}),
)


def measure(bench: Bench) -> None:
    """All settings of a model and load in turn."""
    repository = bench.fresh("tuning")
    _write(bench, repository)
    with running(TpyPlan(repository=repository), bench.fresh("tpy.log")) as server:
        for model in MODELS:
            for number in range(len(SETTINGS)):
                ask(server.ports.http, model.request(number))
            for clients in CLIENTS:
                keep_alive.drive(server.ports.http, model.request(0), connections=clients, seconds=_WARM_UP_S)
        for round_number in bench.rounds():
            for model in MODELS:
                for clients in bench.effort.cases(CLIENTS, CLIENTS[-1:]):
                    _measure_once(bench, server, model, clients, round_number)


def _write(bench: Bench, repository: Path) -> None:
    detector = build_detector(bench.fresh("speech"))
    efficientnet = bench.models / "efficientnet_lite0" / "1" / "model.onnx"
    sleeper = models.Kind(name="slow", title="", batch=_BATCH, sleep_s=0.002)
    for number, setting in enumerate(SETTINGS.values()):
        write_onnx_model(repository, f"detector-{number}", detector, _DETECTOR + setting)
        write_onnx_model(repository, f"efficientnet-{number}", efficientnet, _EFFICIENTNET + setting)
        models.write_model(repository, msgspec.structs.replace(sleeper, name=f"slow-{number}", more=setting))


def _measure_once(bench: Bench, server: Server, model: Model, clients: int, round_number: int) -> None:
    row, case = ROW.format(model.title), f"{clients} client{'s' * (clients > 1)}"
    settings = list(enumerate(SETTINGS))
    first = round_number % len(settings)  # the first one of a turn finds the caches full of other work
    for number, setting in settings[first:] + settings[:first]:
        before_s = server.cpu_s()
        load = keep_alive.drive(server.ports.http, model.request(number), connections=clients, seconds=bench.effort.seconds)
        cpu_us = (server.cpu_s() - before_s) / load.answered * 1e6
        bench.note_each(
            (
                ("throughput", "inferences/s", load.per_s),
                ("p99 latency", "ms", load.latency_p99_ms),
                ("CPU of the server's processes", "us/inference", cpu_us),
            ),
            row=row,
            case=case,
            contender=setting,
            baseline=BASELINE,
            number=round_number,
        )
