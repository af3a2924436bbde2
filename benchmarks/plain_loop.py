"""The loop that served models are compared with: a framework alone, called again and again from one thread.

`drive` starts it as its own program (settings as one JSON argument), so that it can run on given cores.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypedDict

import msgspec
import numpy as np

from benchmarks import processes
from benchmarks.load.child import run_child

WARM_UP_RUNS = 3


class _Settings(TypedDict):
    model: str
    inputs: dict[str, list[int]]
    before: list[int]
    threads: int
    seconds: float


class LoopResult(msgspec.Struct, frozen=True):
    """`runs` in `seconds`, which took `cpu_s` of all threads. Before that the program was started and the model loaded, which
    took `load_s`, and then `resident` bytes."""

    runs: int
    seconds: float
    cpu_s: float
    load_s: float = 0
    resident: int = 0

    @property
    def per_s(self) -> float:
        """Runs per second."""
        return self.runs / self.seconds


def picture(shape: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The input of loop and servers alike: the same FP32 noise in every run."""
    return np.random.default_rng(0).random(tuple(shape), dtype=np.float32)


def drive(
    model: Path,
    inputs: Mapping[str, Sequence[int]],
    *,
    threads: int,
    seconds: float,
    cores: Sequence[int] | None = None,
    before: Sequence[int] = (),
) -> LoopResult:
    """Run the loop for `seconds` on `inputs`, name -> shape, with `threads` threads in the runtime's pool (0: its default).
    The name of the model tells its framework: `_LOOPS`. `before` are sizes of batches that a TorchScript model runs with first:
    the C library keeps memory that was freed only up to twice the largest piece so far, and a server that is compared has seen
    other sizes. Raises LoadFailed."""
    shapes = {name: list(shape) for name, shape in inputs.items()}
    settings: _Settings = {"model": str(model), "inputs": shapes, "before": list(before), "threads": threads, "seconds": seconds}
    text, _ = run_child([sys.executable, "-m", "benchmarks.plain_loop", json.dumps(settings)], cores=cores)
    return msgspec.json.decode(text.splitlines()[-1], type=LoopResult)


def _run(settings: _Settings) -> LoopResult:
    run = _LOOPS[Path(settings["model"]).suffix](settings)
    resident = processes.memory(os.getpid()).resident
    load_s = processes.age_s(os.getpid())
    for _ in range(WARM_UP_RUNS):
        run()
    runs = 0
    begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
    while (seconds := time.perf_counter() - begin_s) < settings["seconds"]:
        run()
        runs += 1
    return LoopResult(runs=runs, seconds=seconds, cpu_s=time.process_time() - cpu_begin_s, load_s=load_s, resident=resident)


def _torch_script(settings: _Settings) -> Callable[[], object]:
    import torch

    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    module = torch.jit.load(settings["model"]).eval()
    shapes = settings["inputs"].values()

    def run(tensors: Sequence[torch.Tensor]) -> object:
        with torch.inference_mode():
            return module(*tensors)

    for size in settings["before"]:
        run([torch.from_numpy(picture((size, *shape[1:]))) for shape in shapes])
    return partial(run, [torch.from_numpy(picture(shape)) for shape in shapes])


def _onnx(settings: _Settings) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings["threads"]
    session = onnxruntime.InferenceSession(settings["model"], options, providers=["CPUExecutionProvider"])
    feed = {name: picture(shape) for name, shape in settings["inputs"].items()}
    return lambda: session.run(None, feed)


def _openvino(settings: _Settings) -> Callable[[], object]:
    import openvino

    properties = {"INFERENCE_NUM_THREADS": settings["threads"], "NUM_STREAMS": 1}
    request = openvino.Core().compile_model(settings["model"], "CPU", properties).create_infer_request()
    feed = list(_arrays(settings).values())
    return lambda: request.infer(feed, share_inputs=True)


def _saved_model(settings: _Settings) -> Callable[[], object]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(settings["threads"])
    loaded = tf.saved_model.load(settings["model"])
    function = loaded.signatures["serving_default"]
    arrays = _arrays(settings)

    def run() -> object:
        made = function(**{name: tf.constant(array) for name, array in arrays.items()})
        return [tensor.numpy() for tensor in made.values()], loaded

    return run


def _tflite(settings: _Settings) -> Callable[[], object]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=settings["model"], num_threads=settings["threads"])
    runner = interpreter.get_signature_runner("serving_default")
    arrays = _arrays(settings)
    return lambda: (runner(**arrays), interpreter)


def _dali(settings: _Settings) -> Callable[[], object]:
    import nvidia.dali

    pipeline = nvidia.dali.Pipeline.deserialize(
        filename=settings["model"],
        num_threads=settings["threads"],
        exec_pipelined=True,
        exec_async=True,
        exec_dynamic=True,
        prefetch_queue_depth=1,
    )
    arrays = _arrays(settings)
    return lambda: [made.as_array() for made in pipeline.run(**arrays)]


def _trees(settings: _Settings) -> Callable[[], object]:
    import treelite

    model = treelite.frontend.load_lightgbm_model(settings["model"])
    (rows,) = _arrays(settings).values()
    return lambda: treelite.gtil.predict(model, rows, nthread=settings["threads"])


def _estimator(settings: _Settings) -> Callable[[], object]:
    from skops import io

    estimator = io.load(settings["model"])
    (rows,) = _arrays(settings).values()
    return lambda: (estimator.predict(rows), estimator.predict_proba(rows))


def _arrays(settings: _Settings) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {name: picture(shape) for name, shape in settings["inputs"].items()}


_LOOPS: Mapping[str, Callable[[_Settings], Callable[[], object]]] = {
    ".onnx": _onnx,
    ".pt": _torch_script,
    ".xml": _openvino,
    ".savedmodel": _saved_model,
    ".tflite": _tflite,
    ".dali": _dali,
    ".txt": _trees,
    ".skops": _estimator,
}

if __name__ == "__main__":
    print(msgspec.json.encode(_run(json.loads(sys.argv[1]))).decode())
