"""Do `tpy perf` and perf_analyzer say the same of one server? They measure it in turn, A B, B A and so on.

    python -m benchmarks.load.agreement PORT MODEL INPUT:SIZES [--protocol grpc] [--concurrency 4] [--rounds 6] [--seconds 3]

Prints the medians of both with their ratio, the extremes of the rounds, and the client's own CPU time for a request. Exit status
1 where a throughput, p50 or p99 differs by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.load import Load, perf_analyzer
from benchmarks.load.child import run_child
from benchmarks.servers.peers import PerfAnalyzer, find_peers

_WINDOWS = 3
_APART_MAX = 0.05


def drive(port: int, model: str, *, shape: str, protocol: str, concurrency: int, seconds: int) -> Load:
    """`tpy perf` with the same load as perf_analyzer's, three windows of it whatever their spread."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "tpy", "perf", "-m", model, "-u", f"127.0.0.1:{port}", "-i", protocol, "--shape", shape]
        command += [
            "--concurrency",
            str(concurrency),
            "-p",
            str(seconds * 1000 // _WINDOWS),
            "-s",
            "1000000",
            "--json",
            str(report),
        ]
        run_child(command)
        (result,) = json.loads(report.read_text())["results"]
    return Load(
        answered=result["requests"],
        seconds=result["seconds"],
        latency_p50_ms=result["latency_us"]["p50"] / 1e3,
        latency_p99_ms=result["latency_us"]["p99"] / 1e3,
        cpu_s=result["client_cpu_us_per_request"] * result["requests"] / 1e6,
    )


def compare(program: PerfAnalyzer, asked: argparse.Namespace) -> bool:
    """Measure in turn and print. Returns whether the medians agree."""
    load = {"shape": asked.shape, "protocol": asked.protocol, "concurrency": asked.concurrency, "seconds": asked.seconds}
    found: dict[str, list[Load]] = {"perf_analyzer": [], "tpy perf": []}
    for number in range(asked.rounds):
        for name in sorted(found, reverse=bool(number % 2)):
            if name == "perf_analyzer":
                found[name].append(perf_analyzer.drive(program, asked.port, asked.model, **load))
            else:
                found[name].append(drive(asked.port, asked.model, **load))
    print(f"{asked.model}, {asked.protocol}, {asked.concurrency} in flight, {asked.rounds} rounds of {asked.seconds} s,", end=" ")
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end")
    agree = True
    metrics = (("requests/s", "per_s"), ("p50 ms", "latency_p50_ms"), ("p99 ms", "latency_p99_ms"))
    for title, field in metrics:
        values = {name: [getattr(one, field) for one in loads] for name, loads in found.items()}
        theirs, ours = (statistics.median(values[name]) for name in ("perf_analyzer", "tpy perf"))
        spread = ", ".join(f"{name} {min(each):.2f} to {max(each):.2f}" for name, each in values.items())
        print(f"{title}: perf_analyzer {theirs:.2f}, tpy perf {ours:.2f}, ratio {ours / theirs:.3f} ({spread})")
        agree = agree and abs(ours / theirs - 1) <= _APART_MAX
    for name, loads in found.items():
        print(f"{name}: {statistics.median(one.cpu_s / one.answered * 1e6 for one in loads):.0f} us of CPU for a request")
    return agree


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="Compare tpy perf with perf_analyzer on one running server.")
    parser.add_argument("port", type=int)
    parser.add_argument("model")
    parser.add_argument("shape", metavar="INPUT:SIZES")
    parser.add_argument("--protocol", choices=["http", "grpc"], default="http")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=3)
    program = find_peers().perf_analyzer
    asked = parser.parse_args()
    if program is None:
        print("there is no perf_analyzer: see benchmarks/servers/peers.py", file=sys.stderr)
        return 1
    return 0 if compare(program, asked) else 1


if __name__ == "__main__":
    sys.exit(main())
