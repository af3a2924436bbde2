"""OpenVINO, TensorFlow, LiteRT, DALI, trees and scikit-learn: what is left of a plain loop's throughput when a model is served,
with one thread each; and what it takes to load a model and to keep it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks import plain_loop, processes
from benchmarks.bench import Bench
from benchmarks.framework_models import FEATURES, SIDE, is_installed
from benchmarks.load import keep_alive
from benchmarks.plain_loop import picture
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import Server, running
from benchmarks.tensors import ask, binary_request

ROW = "a small network, a pipeline of DALI or scikit-learn, or 200 trees, HTTP binary"
BASELINE = "plain loop"
CONTENDER = "tpy"
CLIENTS = 2
"""One request is being executed, one waits."""
_SETTLE_S = 0.5


class Framework(msgspec.Struct, frozen=True):
    """A backend, its module, its model's file, the parameters for one thread, the model's input, the batches to
    measure, and what of the configuration is not completed from the file."""

    backend: str
    module: str
    file: str
    parameters: dict[str, str]
    input: str = "image"
    dims: tuple[int, ...] = (SIDE, SIDE, 3)
    batches: tuple[int, ...] = (1, 8)
    tensors: str = ""


_CLASSIFIER = f"""input [ {{ name: "X" data_type: TYPE_FP32 dims: [ {FEATURES} ] }} ]
output {{ name: "predict" data_type: TYPE_INT64 dims: [ 1 ] }}
output {{ name: "predict_proba" data_type: TYPE_FP64 dims: [ 2 ] }}"""

FRAMEWORKS = (
    Framework("openvino", "openvino", "model.xml", {"INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "1"}),
    Framework("tensorflow", "tensorflow", "model.savedmodel", {"TF_NUM_INTRA_THREADS": "1", "TF_NUM_INTER_THREADS": "1"}),
    Framework("litert", "ai_edge_litert", "model.tflite", {"tflite_num_threads": "1"}),
    Framework("dali", "nvidia.dali", "model.dali", {"num_threads": "1"}),
    Framework("fil", "treelite", "model.txt", {"cpu_nthread": "1"}, input="input__0", dims=(FEATURES,), batches=(1, 8, 1024)),
    Framework("sklearn", "skops", "model.skops", {}, input="X", dims=(FEATURES,), tensors=_CLASSIFIER),
)


def measure(bench: Bench) -> None:
    """Loop and server in turn, for each framework that is there."""
    folder = bench.fresh("framework-files")
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(
        [sys.executable, "-m", "benchmarks.framework_models", folder], check=True, env=quiet, stderr=subprocess.DEVNULL
    )
    for framework in FRAMEWORKS:
        file = folder / framework.file
        if not is_installed(framework.module) or not file.exists():
            missing = framework.module if not is_installed(framework.module) else "what makes its model"
            bench.say(f"frameworks: {framework.backend} is left out, {missing} is not installed (make test-backends)")
            continue
        with _server(bench, framework, file) as server:
            for number in bench.rounds():
                for batch in framework.batches:
                    _measure_throughput(bench, framework, server, file, batch, number)
        for number in bench.rounds():
            _measure_load(bench, framework, file, number)


def config_of(framework: Framework, batch: int) -> str:
    """The model's config.pbtxt; the rest is completed from its file."""
    lines = [f'backend: "{framework.backend}"', f"max_batch_size: {batch}", "instance_group [ { kind: KIND_CPU count: 1 } ]"]
    lines.append(framework.tensors)
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in framework.parameters.items()]
    return "\n".join(lines) + "\n"


def _write(repository: Path, framework: Framework, file: Path, batch: int) -> None:
    version = repository / f"batch{batch}" / "1"
    version.mkdir(parents=True)
    for each in file.parent.glob(f"{file.stem}.bin" if file.suffix == ".xml" else file.name):
        (shutil.copytree if each.is_dir() else shutil.copy)(each, version / each.name)
    if file.suffix == ".xml":
        shutil.copy(file, version)
    (version.parent / "config.pbtxt").write_text(config_of(framework, batch))


@contextlib.contextmanager
def _server(bench: Bench, framework: Framework, file: Path) -> Iterator[Server]:
    """A model for each size of batches, so that none are joined."""
    repository = bench.fresh(f"{framework.backend}-models")
    for batch in framework.batches:
        _write(repository, framework, file, batch)
    with running(TpyPlan(repository=repository), bench.fresh("tpy.log")) as server:
        for batch in framework.batches:
            for _ in range(3):
                ask(server.ports.http, binary_request(f"batch{batch}", framework.input, picture((batch, *framework.dims))))
        yield server


def _measure_throughput(bench: Bench, framework: Framework, server: Server, file: Path, batch: int, number: int) -> None:
    shape = (batch, *framework.dims)
    seconds = bench.effort.seconds
    loop = plain_loop.drive(file, {framework.input: shape}, threads=1, seconds=seconds)
    before_s = server.cpu_s()
    load = keep_alive.drive(
        server.ports.http, binary_request(f"batch{batch}", framework.input, picture(shape)), connections=CLIENTS, seconds=seconds
    )
    cpu_s = server.cpu_s() - before_s
    for contender, values in (
        (BASELINE, (loop.per_s, loop.cpu_s / loop.runs * 1e3)),
        (CONTENDER, (load.per_s, cpu_s / load.answered * 1e3)),
    ):
        bench.note_each(
            zip(("throughput", "CPU"), ("inferences/s", "ms/inference"), values, strict=True),
            row=ROW,
            case=f"{framework.backend}, batch {batch}",
            contender=contender,
            baseline=BASELINE,
            number=number,
        )


def _measure_load(bench: Bench, framework: Framework, file: Path, number: int) -> None:
    """A process that loads the model and keeps it."""
    loop = plain_loop.drive(file, {framework.input: (1, *framework.dims)}, threads=1, seconds=0)
    repository = bench.fresh(f"{framework.backend}-idle")
    _write(repository, framework, file, 1)
    with running(TpyPlan(repository=repository), bench.fresh("tpy.log")) as server:
        time.sleep(_SETTLE_S)
        resident = sum(processes.memory(pid).resident for pid in server.family())
        ready_s = server.ready_s - server.started_s
    for contender, values in ((BASELINE, (loop.load_s, loop.resident / 1e6)), (CONTENDER, (ready_s, resident / 1e6))):
        bench.note_each(
            zip(("start to loaded", "resident when idle"), ("s", "MB"), values, strict=True),
            row=ROW,
            case=framework.backend,
            contender=contender,
            baseline=BASELINE,
            number=number,
        )
