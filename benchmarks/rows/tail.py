"""Latency under a load that a server can bear: requests at an even rate, 60 % of what the server itself does at its best.

A closed loop waits for a slow answer before it asks again, and so hides what its users would have seen. Here requests begin when
their time has come. Each server is given its own rate, so a faster one is not tested by a lighter load.
"""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.grpc_exchange import call
from benchmarks.load import Load, perf_analyzer
from benchmarks.rows.tiny import BASELINE, VALUES, Contender, fleet
from benchmarks.servers.models import IDENTITY_INPUT
from benchmarks.servers.peers import PerfAnalyzer

ROW = "latency at 60 % of the server's own peak, 16 floats (perf_analyzer)"
PEAK_CONCURRENCY = 16
SHARE = 0.6

_SHAPE = f"{IDENTITY_INPUT}:{VALUES.size}"
_TITLES = {"http": "HTTP binary", "grpc": "gRPC"}


def measure(bench: Bench) -> None:
    """For each server the peak, and at once the latencies below it."""
    program = bench.peers.perf_analyzer
    if program is None:
        bench.say(f"perf_analyzer is missing: row '{ROW}' is left out")
        return
    with fleet(bench) as contenders:
        able = [contender for contender in contenders if contender.binary]
        for contender in able:
            call(contender.server.ports.grpc, contender.model, IDENTITY_INPUT, VALUES)
        for number in bench.rounds():
            for protocol in ("http",) if bench.effort.quick else ("http", "grpc"):
                for contender in able:
                    _measure_one(bench, program, contender, protocol, number)


def rate_of(peak: Load) -> int:
    """Requests per second that are 60 % of the peak, at least 1."""
    return max(1, round(peak.per_s * SHARE))


def _measure_one(bench: Bench, program: PerfAnalyzer, contender: Contender, protocol: str, number: int) -> None:
    ports = contender.server.ports
    port, seconds = ports.grpc if protocol == "grpc" else ports.http, bench.effort.seconds
    peak = perf_analyzer.drive(
        program,
        port,
        contender.model,
        shape=_SHAPE,
        protocol=protocol,
        concurrency=PEAK_CONCURRENCY,
        seconds=seconds,
    )
    rate = rate_of(peak)
    load = perf_analyzer.drive_rate(program, port, contender.model, shape=_SHAPE, protocol=protocol, per_s=rate, seconds=seconds)
    values = (
        ("p50 latency", "ms", load.latency_p50_ms),
        ("p99 latency", "ms", load.latency_p99_ms),
        (f"peak, {PEAK_CONCURRENCY} at a time", "requests/s", peak.per_s),
        ("reached of the rate", "%", load.per_s / rate * 100),
    )
    bench.note_each(values, row=ROW, case=_TITLES[protocol], contender=contender.name, baseline=BASELINE, number=number)
