"""The loop that served models are compared with: onnxruntime or PyTorch alone, called again and again from one thread.

`drive` starts it as a program of its own (settings as one JSON argument), so that it can run on given cores.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import msgspec
import numpy as np

from benchmarks.load.child import run_child

WARM_UP_RUNS = 3


class _Settings(TypedDict):
    model: str
    inputs: dict[str, list[int]]
    threads: int
    seconds: float


class LoopResult(msgspec.Struct, frozen=True):
    """`runs` in `seconds`, which took `cpu_s` of all threads."""

    runs: int
    seconds: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        """Runs per second."""
        return self.runs / self.seconds


def picture(shape: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The input of loop and servers alike: the same FP32 noise in every run."""
    return np.random.default_rng(0).random(tuple(shape), dtype=np.float32)


def drive(
    model: Path, inputs: Mapping[str, Sequence[int]], *, threads: int, seconds: float, cores: Sequence[int] | None = None
) -> LoopResult:
    """Run the loop for `seconds` on `inputs`, name -> shape, with `threads` threads in the runtime's pool (0: its default).
    A `.pt` file is TorchScript. Raises LoadFailed."""
    shapes = {name: list(shape) for name, shape in inputs.items()}
    settings: _Settings = {"model": str(model), "inputs": shapes, "threads": threads, "seconds": seconds}
    text, _ = run_child([sys.executable, "-m", "benchmarks.plain_loop", json.dumps(settings)], cores=cores)
    return msgspec.json.decode(text.splitlines()[-1], type=LoopResult)


def _run(settings: _Settings) -> LoopResult:
    run = (_torch_script if settings["model"].endswith(".pt") else _onnx)(settings)
    for _ in range(WARM_UP_RUNS):
        run()
    runs = 0
    begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
    while (seconds := time.perf_counter() - begin_s) < settings["seconds"]:
        run()
        runs += 1
    return LoopResult(runs=runs, seconds=seconds, cpu_s=time.process_time() - cpu_begin_s)


def _torch_script(settings: _Settings) -> Callable[[], object]:
    import torch

    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    module = torch.jit.load(settings["model"]).eval()
    tensors = [torch.from_numpy(picture(shape)) for shape in settings["inputs"].values()]

    def run() -> object:
        with torch.inference_mode():
            return module(*tensors)

    return run


def _onnx(settings: _Settings) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings["threads"]
    session = onnxruntime.InferenceSession(settings["model"], options, providers=["CPUExecutionProvider"])
    feed = {name: picture(shape) for name, shape in settings["inputs"].items()}
    return lambda: session.run(None, feed)


if __name__ == "__main__":
    print(msgspec.json.encode(_run(json.loads(sys.argv[1]))).decode())
