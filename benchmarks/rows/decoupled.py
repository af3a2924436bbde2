"""Decoupled streaming over gRPC: 500 tiny responses per request, counted by a client that decodes none of them."""

from __future__ import annotations

import contextlib
import re
import sys

from benchmarks.bench import Bench
from benchmarks.load import LoadFailed
from benchmarks.load.child import run_child
from benchmarks.measurement import Measurement
from benchmarks.servers.models import write_counting
from benchmarks.servers.plans import TpyPlan, TritonPlan
from benchmarks.servers.process import Server, running

ROW = "gRPC streaming, 500 responses of 1 number per request"
BASELINE = "Triton python"
RESPONSES = 500

_SAID = re.compile(r"(\d+) responses in ([\d.]+) s")


def measure(bench: Bench) -> None:
    """tpy with the model in a process and in a thread, and Triton, interleaved."""
    repository = bench.fresh("tpy")
    write_counting(repository, "worker")
    write_counting(repository, "thread", in_thread=True)
    with contextlib.ExitStack() as stack:
        tpy = stack.enter_context(running(TpyPlan(repository=repository), bench.fresh("tpy.log")))
        contenders = [("tpy python worker", tpy, "worker"), ("tpy python thread", tpy, "thread")]
        if bench.peers.triton is not None:
            repository = bench.fresh("triton")
            write_counting(repository, "counting")
            plan = TritonPlan(triton=bench.peers.triton, repository=repository)
            contenders.append((BASELINE, stack.enter_context(running(plan, bench.fresh("triton.log"))), "counting"))
        for number in bench.rounds():
            for streams in bench.effort.cases((1, 4, 16), (4,)):
                for name, server, model in contenders:
                    bench.note(
                        Measurement(
                            row=ROW,
                            case=f"{streams} stream{'s' * (streams > 1)}",
                            metric="throughput",
                            unit="responses/s",
                            contender=name,
                            baseline=BASELINE,
                            round=number,
                            value=_responses_per_s(server, model, streams, bench.effort.seconds),
                        )
                    )


def _responses_per_s(server: Server, model: str, streams: int, seconds: int) -> float:
    program = [sys.executable, "-m", "benchmarks.load.stream_counter"]
    said, _ = run_child([*program, str(server.ports.grpc), model, str(RESPONSES), str(streams), str(seconds)])
    return rate_said(said)


def rate_said(said: str) -> float:
    """Responses per second, from what a counter of responses printed. Raises LoadFailed."""
    found = _SAID.search(said)
    if found is None:
        raise LoadFailed(f"the stream counter said: {said}")
    return int(found[1]) / float(found[2])
