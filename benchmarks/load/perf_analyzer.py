"""perf_analyzer: Triton's own load generator."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.load import Load, LoadFailed
from benchmarks.load.child import run_child
from benchmarks.servers.peers import PerfAnalyzer
from benchmarks.servers.process import HOST

_WINDOWS = 3
"""It wants at least this many measurement windows; the asked seconds are divided among them."""

_WINDOWS_MAX = 2 * _WINDOWS
"""It goes on for this many when one of the last three had no answer at all."""

_ANY_SPREAD = "999"
"""Percent by which windows may differ: how steady the result is, is judged over the rounds instead."""

_RATE_THREADS = 16
"""Its asynchronous mode needs no threads, but falls behind the rate by itself over HTTP."""


def parse_report(text: str, *, seconds: float, cpu_s: float) -> Load:
    """Read the report that it writes as CSV: one line for one concurrency or rate. Raises LoadFailed when it holds nothing."""
    rows = list(csv.DictReader(io.StringIO(text)))
    if len(rows) != 1:
        raise LoadFailed(f"perf_analyzer reported {len(rows)} results, expected 1:\n{text[-3000:]}")
    row = rows[0]
    return Load(
        answered=round(float(row["Inferences/Second"]) * seconds),
        seconds=seconds,
        latency_p50_ms=float(row["p50 latency"]) / 1e3,
        latency_p99_ms=float(row["p99 latency"]) / 1e3,
        cpu_s=cpu_s,
    )


def drive(program: PerfAnalyzer, port: int, model: str, *, shape: str, protocol: str, concurrency: int, seconds: int) -> Load:
    """Keep `concurrency` requests of binary tensors in flight over `protocol` (http or grpc); `shape` is "NAME:SIZE".

    Its own CPU time includes the time before and after the measured windows, as far as it is known. Raises LoadFailed.
    """
    load = ["--concurrency-range", str(concurrency)]
    return _run(program, port, ["-m", model, "-i", protocol, "--shape", shape, *load], seconds=seconds)


def drive_rate(program: PerfAnalyzer, port: int, model: str, *, shape: str, protocol: str, per_s: int, seconds: int) -> Load:
    """The same, but begin `per_s` requests each second, evenly spaced, whether or not those before are answered.

    It has a thread for each request in flight, `_RATE_THREADS` at most: with as many in flight further ones begin late, and the
    result shows fewer than `per_s`. Raises LoadFailed.
    """
    load = ["--request-rate-range", str(per_s), "--request-distribution", "constant", "--max-threads", str(_RATE_THREADS)]
    return _run(program, port, ["-m", model, "-i", protocol, "--shape", shape, *load], seconds=seconds)


def _run(program: PerfAnalyzer, port: int, options: Sequence[str], *, seconds: int) -> Load:
    window_ms = max(200, seconds * 1000 // _WINDOWS)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.csv"
        command = [str(program.binary), "-u", f"{HOST}:{port}", *options]
        command += ["-p", str(window_ms), "-s", _ANY_SPREAD, "-r", str(_WINDOWS_MAX)]
        text, cpu_s = run_child([*command, "-f", str(report)], environment={"LD_LIBRARY_PATH": str(program.library_path)})
        if not report.exists():
            raise LoadFailed(f"perf_analyzer wrote no report:\n{text[-3000:]}")
        return parse_report(report.read_text(), seconds=_WINDOWS * window_ms / 1e3, cpu_s=cpu_s)
