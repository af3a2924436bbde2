"""`make bench-gpu`: measures, prints what was measured on, and a table for docs/explanation/performance.md."""

from __future__ import annotations

import argparse
import datetime
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpu import loop
from benchmarks.gpu.regions import NotRegistered, binary_request, cuda_regions, region_request, system_regions
from benchmarks.load import Load, keep_alive
from benchmarks.servers.plans import TpyPlan
from benchmarks.servers.process import Server, running
from tpy.devices.cuda import load_driver
from tpy.errors import Unavailable


class Scale(NamedTuple):
    """The size of everything."""

    blocks: tuple[int, ...]
    width: int
    side: int
    half: bool
    device: str
    batches: Sequence[int]
    connections: Sequence[int]
    seconds: float

    @property
    def datatype(self) -> str:
        return "FP16" if self.half else "FP32"

    def pictures(self, count: int) -> np.ndarray:
        dtype = np.float16 if self.half else np.float32
        return np.random.default_rng(0).random((count, 3, self.side, self.side), dtype=np.float32).astype(dtype)


GPU = Scale((3, 4, 6, 3), 64, 224, True, "cuda:0", (1, 2, 4, 8, 16, 32, 64), (1, 4, 16, 64), 5.0)
REHEARSAL = Scale((1, 1), 4, 32, False, "cpu", (1, 2), (1, 4), 0.1)

_CONFIG = """\
platform: "pytorch_libtorch"
max_batch_size: 64
input [ {{ name: "image" data_type: TYPE_{kind} dims: [ 3, {side}, {side} ] }} ]
output [ {{ name: "OUTPUT__0" data_type: TYPE_{kind} dims: [ 1000 ] }} ]
instance_group [ {{ kind: {place} count: {count} }} ]
{more}
"""

_MODELS = {"one": (1, ""), "two": (2, ""), "batching": (2, "dynamic_batching { }")}
"""Of the same file: how many instances, and what else the configuration says."""


def write_models(folder: Path, scale: Scale) -> Path:
    """Returns the network's file; `folder` becomes a repository."""
    from benchmarks.gpu.network import save

    file = folder / "one" / "1" / "model.pt"
    save(file, blocks=scale.blocks, width=scale.width, side=scale.side, half=scale.half, device=scale.device)
    for name, (count, more) in _MODELS.items():
        if name != "one":
            (folder / name / "1").mkdir(parents=True)
            shutil.copy(file, folder / name / "1")
        place = "KIND_CPU" if scale.device == "cpu" else "KIND_GPU"
        text = _CONFIG.format(kind=scale.datatype, side=scale.side, place=place, count=count, more=more)
        (folder / name / "config.pbtxt").write_text(text)
    return file


def measure(scale: Scale, folder: Path, say: Callable[[str], None]) -> list[str]:
    """Returns the lines of the table."""
    repository = folder / "models"
    file = write_models(repository, scale)
    plan = TpyPlan(repository=repository, flags=("--allow-client-shm=true",))
    lines = ["| what | case | pictures/s | of the loop | p50 ms | p99 ms |", "|---|---|--:|--:|--:|--:|"]
    with running(plan, folder / "tpy.log") as server:

        def drive(model: str, batch: int, connections: int) -> Load:
            request = binary_request(model, scale.pictures(batch), scale.datatype)
            port, first = server.ports.http, 10 * connections
            keep_alive.drive(port, request, connections=connections, seconds=scale.seconds, requests=first)
            return keep_alive.drive(port, request, connections=connections, seconds=scale.seconds)

        def note(what: str, case: str, batch: int, load: Load, plain: float | None = None) -> None:
            per_s = load.per_s * batch
            share = "" if plain is None else f"{per_s / plain:.2f}"
            lines.append(f"| {what} | {case} | {per_s:.0f} | {share} | {load.latency_p50_ms:.2f} | {load.latency_p99_ms:.2f} |")
            say(lines[-1])

        for batch in scale.batches:
            plain = loop.drive(file, batch=batch, side=scale.side, seconds=scale.seconds, device=scale.device, half=scale.half)
            lines.append(f"| plain loop | batch {batch} | {plain:.0f} | 1.00 | | |")
            note("served, two instances, 4 clients", f"batch {batch}", batch, drive("two", batch, 4), plain)
        for connections in scale.connections:
            note("dynamic batching, requests of one picture", f"{connections} clients", 1, drive("batching", 1, connections))
        batch = scale.batches[-1] // 2 or 1
        for model in ("one", "two"):
            note("copies beside computation", f"instances: {model}, batch {batch}, 4 clients", batch, drive(model, batch, 4))
        lines += _transports(scale, server, batch, say)
    return lines


def _transports(scale: Scale, server: Server, batch: int, say: Callable[[str], None]) -> list[str]:
    """The same batch in the message, in regions of the system, and in regions of the GPU."""
    pictures = scale.pictures(batch)
    output_bytes = batch * 1000 * pictures.itemsize
    port = server.ports.http
    in_regions = region_request("two", pictures.shape, scale.datatype, pictures.nbytes, output_bytes)
    plain = binary_request("two", pictures, scale.datatype)
    kinds: list[tuple[str, AbstractContextManager[None]]] = [
        ("in the message", nullcontext()),
        ("system shared memory", system_regions(port, pictures, output_bytes)),
    ]
    if scale.device != "cpu":
        kinds.append(("CUDA shared memory", cuda_regions(port, pictures, output_bytes)))
    lines = []
    for name, regions in kinds:
        try:
            with regions:
                request = plain if name == "in the message" else in_regions
                load = keep_alive.drive(port, request, connections=1, seconds=scale.seconds)
        except NotRegistered as refusal:
            lines.append(f"| tensors | {name}: {refusal} | | | | |")
            continue
        lines.append(
            f"| tensors, batch {batch}, 1 client | {name} | {load.per_s * batch:.0f} | | {load.latency_p50_ms:.2f} | "
            f"{load.latency_p99_ms:.2f} |"
        )
        say(lines[-1])
    return lines


def card() -> str:
    """The GPU and its driver, as nvidia-smi names them."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown card ({error})"


def obstacle(*, rehearse: bool) -> str:
    """Returns why nothing can be measured here, "" when it can."""
    if not rehearse:
        try:
            load_driver()
        except Unavailable as error:
            return error.message
    if find_spec("torch") is None:
        return "PyTorch is not installed: pip install torch (a build with CUDA), or a wheel of it from a folder: --find-links"
    if not rehearse:
        import torch

        if not torch.cuda.is_available():
            return f"PyTorch {torch.__version__} finds no GPU: install a build with CUDA, for this driver"
    return ""


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 also where there is nothing to measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--rehearse", action="store_true", help="a tiny network on the CPU: the figures mean nothing")
    given = parser.parse_args(arguments)
    reason = obstacle(rehearse=given.rehearse)
    if reason:
        print(f"bench-gpu: skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        lines = measure(REHEARSAL if given.rehearse else GPU, Path(folder), lambda line: print(line, file=sys.stderr, flush=True))
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    print(f"{'a rehearsal on the CPU' if given.rehearse else card()}, {date}\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
