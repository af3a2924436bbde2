"""Measures rows/s of `tpy.ray.predict` beside a plain `map_batches` with the same function: EfficientNet's preprocessing, from
JPEG to FP32[3,224,224], for a million pictures. One in a thousand is broken: its row has the reason in a column.

Use: make bench-ray-data, or in a private network python -m benchmarks.ray.predict [--rows N] [--results FILE]

Rounds alternate. Behind both, the same step reduces each picture to a sum, by which the answers are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.ray.serving import environment

EXAMPLE = Path("docs/examples/demo/image_features")
MODEL = "image_features"
BATCH = 64
BROKEN_EVERY = 1000
LOOK_S = 0.1
WARM_UP_ROWS = 256
PICTURES = 64
"""Different ones, in turn."""

Batch = Mapping[str, Any]


def pictures(batch: Batch) -> dict[str, Any]:
    """A column of encoded pictures for a column of numbers."""
    from PIL import Image

    made = []
    for number in range(PICTURES):
        pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).resize((320, 240)).save(buffer, "JPEG")
        made.append(buffer.getvalue())
    ids = batch["id"]
    return {"id": ids, "IMAGE": [b"broken" if id % BROKEN_EVERY == 7 else made[id % PICTURES] for id in ids.tolist()]}


class Plain:
    """The same without tpy: the function of the model, and its errors by row."""

    def __init__(self, model: str) -> None:
        sys.modules.setdefault("triton_python_backend_utils", types.ModuleType("triton_python_backend_utils"))
        spec = importlib.util.spec_from_file_location("image_features_model", model)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(model)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._features: Callable[[bytes], Any] = module.features

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """The pictures' features, zeros for broken ones, whose error is in a column."""
        found = np.zeros((len(batch["id"]), 3, 224, 224), np.float32)
        errors = [""] * len(found)
        for at, content in enumerate(batch["IMAGE"]):
            try:
                found[at] = self._features(content)
            except OSError as error:
                errors[at] = str(error)
        return {"id": batch["id"], "INPUT": found, "error": errors}


def summed(table: Any) -> Any:
    """The number, the sum and whether there is an error of each row."""
    import pyarrow as pa

    from tpy.ray.offline import array_of

    errors = [bool(each) for each in table.column("error").to_pylist()]
    good = table.filter(pa.array([not each for each in errors]))
    sums = np.zeros(len(errors))
    sums[~np.array(errors, bool)] = array_of(good.column("INPUT"), "INPUT").reshape(len(good), -1).sum(axis=1, dtype=np.float64)
    return pa.table({"id": table.column("id"), "sum": sums, "failed": errors})


class CpuTime:
    """The CPU time of all processes in this network: the cluster's, if it is private. Ray's workers end within a run, and nobody
    waits for them: a thread looks again and again."""

    def __init__(self) -> None:
        self._network = os.readlink("/proc/self/ns/net")
        self._ticks: dict[tuple[str, str], int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_often, daemon=True)

    def __enter__(self) -> CpuTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def seconds(self) -> float:
        """Since the machine started."""
        self._look()
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def _look_often(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "ns/net") == self._network:
                    fields = (process / "stat").read_text().rpartition(")")[2].split()
                    self._ticks[process.name, fields[19]] = int(fields[11]) + int(fields[12])


def run(which: str, rows: int, repository: Path) -> tuple[float, dict[str, float]]:
    """Rows/s, and what came out: rows, errors, the sum of all sums."""
    import ray.data

    import tpy.ray

    data = ray.data.range(rows, override_num_blocks=max(rows // 4096, 1)).map_batches(pictures, batch_size=1024)
    if which == "tpy":
        data = tpy.ray.predict(data, repository=str(repository), model=MODEL, on_error="column")
    else:
        data = data.map_batches(
            Plain, fn_constructor_args=(str(EXAMPLE.resolve() / "model.py"),), batch_size=BATCH, concurrency=1, num_cpus=1
        )
    data = data.map_batches(summed, batch_size=BATCH, batch_format="pyarrow")
    begun = time.perf_counter()
    found = {"rows": 0.0, "failed": 0.0, "sum": 0.0}
    for batch in data.iter_batches(batch_size=4096, batch_format="numpy"):
        found["rows"] += len(batch["id"])
        found["failed"] += int(batch["failed"].sum())
        found["sum"] += float(batch["sum"].sum())
    return rows / (time.perf_counter() - begun), found


def main() -> None:
    """Measure and print; with --results also write all values."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ray.predict")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each round (1,000,000)")
    parser.add_argument("--rounds", type=int, default=1, help="of both (1)")
    parser.add_argument("--results", type=Path, help="file for all values, as JSON")
    given = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "models"
        (repository / MODEL / "1").mkdir(parents=True)
        shutil.copy(EXAMPLE / "model.py", repository / MODEL / "1")
        shutil.copy(EXAMPLE / "config.pbtxt", repository / MODEL)
        paths = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH", ""))))
        os.environ.update(environment(Path(folder) / "home", PYTHONPATH=paths))
        import ray.data

        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        with CpuTime() as cpu:
            for which in ("map_batches", "tpy"):  # Ray's own processes start, and files are read
                run(which, WARM_UP_ROWS, repository)
            for number in range(given.rounds):
                for which in ("map_batches", "tpy")[:: 1 if number % 2 else -1]:
                    before_s = cpu.seconds()
                    per_s, found = run(which, given.rows, repository)
                    row_cpu_ms = (cpu.seconds() - before_s) * 1000 / given.rows
                    results.append({"which": which, "per_s": round(per_s, 1), "row_cpu_ms": round(row_cpu_ms, 3), **found})
                    told = f"{per_s:>9.1f} rows/s  {row_cpu_ms:>6.2f} ms of CPU a row"
                    print(f"{which:<12} {told}  {found['failed']:.0f} of {found['rows']:.0f} rows broken", flush=True)
        ray.shutdown()
    outcomes = {(each["rows"], each["failed"], round(each["sum"])) for each in results}
    if len(outcomes) != 1:
        sys.exit(f"the answers differ: {outcomes}")
    best = {which: max(each["per_s"] for each in results if each["which"] == which) for which in ("map_batches", "tpy")}
    print(f"tpy.ray.predict has {best['tpy'] / best['map_batches']:.2f} of the rows/s of map_batches")
    if given.results is not None:
        machine = {"cores": os.cpu_count(), "load": os.getloadavg()}
        given.results.parent.mkdir(parents=True, exist_ok=True)
        given.results.write_text(json.dumps({"machine": machine, "rows": given.rows, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
