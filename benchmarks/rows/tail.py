"""Latency under a load that a server can bear: requests at an even rate, 60 % of what the server itself does at its best.

A closed loop waits for a slow answer before it asks again, and so hides what its users would have seen. Here requests begin when
their time has come. Each server is given its own rate, so a faster one is not tested by a lighter load; and then the rate of the
baseline, so that the same load is compared too.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    """For each server the peak, and the latencies below it."""
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
                _measure_round(bench, program, able, protocol, number)


def rate_of(peak: Load) -> int:
    """Requests per second that are 60 % of the peak, at least 1."""
    return max(1, round(peak.per_s * SHARE))


def _measure_round(bench: Bench, program: PerfAnalyzer, contenders: Sequence[Contender], protocol: str, number: int) -> None:
    """Each at 60 % of its own peak, and then, where there is a baseline and time, at the baseline's rate."""
    rates: dict[str, int] = {}
    for contender in contenders:
        peak = perf_analyzer.drive(
            program,
            _port(contender, protocol),
            contender.model,
            shape=_SHAPE,
            protocol=protocol,
            concurrency=PEAK_CONCURRENCY,
            seconds=bench.effort.seconds,
        )
        rates[contender.name] = rate_of(peak)
        load = _drive_rate(bench, program, contender, protocol, rates[contender.name])
        more = (f"peak, {PEAK_CONCURRENCY} at a time", "requests/s", peak.per_s)
        _note(bench, contender, _TITLES[protocol], number, load, rates[contender.name], more)
    if BASELINE not in rates or bench.effort.quick:
        return
    for contender in contenders:
        load = _drive_rate(bench, program, contender, protocol, rates[BASELINE])
        _note(bench, contender, f"{_TITLES[protocol]}, all at {BASELINE}'s rate", number, load, rates[BASELINE])


def _note(
    bench: Bench, contender: Contender, case: str, number: int, load: Load, rate: int, *more: tuple[str, str, float]
) -> None:
    values = (
        ("p50 latency", "ms", load.latency_p50_ms),
        ("p99 latency", "ms", load.latency_p99_ms),
        *more,
        ("reached of the rate", "%", load.per_s / rate * 100),
    )
    bench.note_each(values, row=ROW, case=case, contender=contender.name, baseline=BASELINE, number=number)


def _drive_rate(bench: Bench, program: PerfAnalyzer, contender: Contender, protocol: str, per_s: int) -> Load:
    port, seconds = _port(contender, protocol), bench.effort.seconds
    return perf_analyzer.drive_rate(program, port, contender.model, shape=_SHAPE, protocol=protocol, per_s=per_s, seconds=seconds)


def _port(contender: Contender, protocol: str) -> int:
    ports = contender.server.ports
    return ports.grpc if protocol == "grpc" else ports.http
