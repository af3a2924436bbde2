"""Measures the growth of memory with requests, for each backend: `python -m tests.leaks.growth [--seconds N] [MODEL ...]`.

Serves one model at a time, asks it over HTTP and gRPC, and prints the slope of the memory of the server and of its workers, as
the server itself finds it (MemoryTrend), in KiB per million requests. Models whose framework is not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tests.chaos.models import write_models
from tests.e2e.examples import python_command
from tests.e2e.repositories import ModelFolder, parameter
from tests.e2e.server import ServerProcess
from tpy.units import KIB, MIB, NS_PER_S
from tpy_data.backends.python.environment.process import memory_bytes
from tpy_data.engine.memory.core.memory_trend import READINGS_MAX, MemoryTrend

WARM_UP = 0.3
"""The part of the time that is not counted."""
CLIENTS = 4
"""Requests in flight, over each protocol."""


class Grown(NamedTuple):
    """One process, or all workers together: its memory after the warm-up and at the end, and the slope."""

    what: str
    before_bytes: int
    after_bytes: int
    trend: MemoryTrend

    def __str__(self) -> str:
        growth = self.trend.growth
        slope = "unknown"
        if growth is not None:
            kib = [1000 * value / KIB for value in (growth.trend_bytes, growth.trend_bytes_min, growth.trend_bytes_max)]
            slope = f"{kib[0]:+,.0f} KiB per million requests (sixths: {kib[1]:+,.0f} to {kib[2]:+,.0f})"
        return f"{self.what}: {self.before_bytes / MIB:.1f} to {self.after_bytes / MIB:.1f} MiB, {slope}"


def repositories(folder: Path) -> Mapping[str, tuple[Path, str]]:
    """By the name in the report: the repository, and the model in it that is asked."""
    chaos = folder / "plain"
    write_models(chaos)
    ModelFolder(chaos, "echo").identity()
    found = {
        "identity": (chaos, "echo"),
        "onnxruntime": (chaos, "affine"),
        "python": (chaos, "copy"),
        "ensemble": (chaos, "chain"),
    }
    isolated = folder / "isolated"
    shutil.copytree(chaos / "affine", isolated / "affine")
    with (isolated / "affine" / "config.pbtxt").open("a") as config:
        config.write(parameter("isolation", "process"))
    found["onnxruntime, isolated"] = (isolated, "affine")
    if all(find_spec(name) for name in ("tensorflow", "openvino", "ai_edge_litert")):
        frameworks = folder / "frameworks"
        subprocess.run(python_command("frameworks/save.py", frameworks), check=True, stdout=subprocess.DEVNULL)
        names = {"tensorflow": "saved", "openvino": "ir", "litert": "lite", "pytorch": "script"}
        found |= {name: (frameworks, model) for name, model in names.items() if (frameworks / model).is_dir()}
    files = folder / "files"
    subprocess.run([sys.executable, "-m", "benchmarks.framework_models", str(files)], check=True, stdout=subprocess.DEVNULL)
    for name, file in {"fil": "model.txt", "sklearn": "model.skops"}.items():
        if (files / file).is_file():
            ModelFolder(folder / name, name).config(f'backend: "{name}"\nmax_batch_size: 8\n').file(
                f"1/{file}", (files / file).read_bytes()
            )
            found[name] = (folder / name, name)
    return found


def measure(repository: Path, model: str, seconds: float) -> tuple[int, list[Grown]]:
    """The number of requests, and how memory grew."""
    flags = ("--model-control-mode=explicit", *(f"--load-model={name}" for name in _needed(repository, model)))
    window = str(round(1000 * (seconds + 60)))  # longer than all: it is ended
    # A fresh process: one that was forked has pages to copy that it shared, which looks like growth.
    with ServerProcess(*flags, repositories=[repository], launcher=("env",)) as server:
        clients = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tpy",
                    "perf",
                    model,
                    "-u",
                    address,
                    "-i",
                    protocol,
                    "--concurrency",
                    str(CLIENTS),
                    "-p",
                    window,
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for protocol, address in (("http", server.http), ("grpc", server.grpc))
        ]
        try:
            time.sleep(seconds * WARM_UP)
            return _watch(server, model, seconds * (1 - WARM_UP))
        finally:
            for client in clients:
                client.kill()
                client.wait()


def _watch(server: ServerProcess, model: str, seconds: float) -> tuple[int, list[Grown]]:
    workers = server.children()
    pids = {"server": [server.process.pid], **({f"{len(workers)} workers": workers} if workers else {})}
    trends = {what: MemoryTrend() for what in pids}
    sizes: dict[str, list[int]] = {what: [] for what in pids}
    first = _requests(server, model)
    for number in range(READINGS_MAX):
        requests = _requests(server, model)
        for what, ids in pids.items():
            sizes[what].append(sum(map(memory_bytes, ids)))
            trends[what].add(number * NS_PER_S, sizes[what][-1], requests)
        time.sleep(seconds / READINGS_MAX)
    return requests - first, [Grown(what, sizes[what][0], sizes[what][-1], trends[what]) for what in pids]


def _requests(server: ServerProcess, model: str) -> int:
    with urllib.request.urlopen(f"http://{server.http}/v2/models/{model}/stats") as answer:
        return int(json.load(answer)["model_stats"][0]["inference_stats"]["success"]["count"])


def _needed(repository: Path, model: str) -> list[str]:
    return ["affine", "copy", "chain"] if model == "chain" else [model]


def main() -> None:
    """Measure, and print a line for each process as it is known."""
    parser = argparse.ArgumentParser(prog="python -m tests.leaks.growth", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpy-growth-") as folder:
        found = repositories(Path(folder))
        if unknown := set(arguments.models) - set(found):
            parser.error(f"not here: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
        for name in arguments.models or found:
            repository, model = found[name]
            requests, grown = measure(repository, model, arguments.seconds)
            print(f"{name}, {requests:,} requests", *(f"  {each}" for each in grown), sep="\n", flush=True)


if __name__ == "__main__":
    main()
