"""gRPC streaming, one answer for each request: one ModelStreamInfer on which requests are sent ahead of their answers."""

from __future__ import annotations

import sys

from benchmarks.bench import Bench
from benchmarks.load.child import run_child
from benchmarks.rows.decoupled import rate_said
from benchmarks.rows.tiny import BASELINE, Contender, fleet
from benchmarks.servers.models import IDENTITY_INPUT
from benchmarks.servers.statistics import answered

ROW = "gRPC stream, 16 floats, one stream"


def measure(bench: Bench) -> None:
    """Every contender that speaks gRPC, interleaved."""
    with fleet(bench) as contenders:
        able = [contender for contender in contenders if contender.binary]
        for number in bench.rounds():
            for outstanding in bench.effort.cases((1, 16, 64), (16, 64)):
                for contender in able:
                    before, before_s = answered(contender.server, contender.model), contender.server.cpu_s()
                    per_s = _responses_per_s(contender, outstanding, bench.effort.seconds)
                    count = answered(contender.server, contender.model) - before
                    cpu_us = (contender.server.cpu_s() - before_s) / count * 1e6
                    values = (
                        ("throughput", "requests/s", per_s),
                        ("CPU of the server's processes", "us/request", cpu_us),
                    )
                    bench.note_each(
                        values,
                        row=ROW,
                        case=f"{outstanding} request{'s' * (outstanding > 1)} outstanding",
                        contender=contender.name,
                        baseline=BASELINE,
                        number=number,
                    )


def _responses_per_s(contender: Contender, outstanding: int, seconds: int) -> float:
    program = [sys.executable, "-m", "benchmarks.load.stream_pipeline"]
    settings = [str(contender.server.ports.grpc), contender.model, IDENTITY_INPUT, str(outstanding), str(seconds)]
    said, _ = run_child([*program, *settings])
    return rate_said(said)
