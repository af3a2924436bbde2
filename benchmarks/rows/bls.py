"""Calls from model to model: a request that makes k calls, one after the other, to a tiny identity model."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import time

from benchmarks.bench import Bench
from benchmarks.measurement import Measurement
from benchmarks.servers.models import write_callers
from benchmarks.servers.plans import TpyPlan, TritonPlan
from benchmarks.servers.process import HOST, Server, running

ROW = "calls from a Python model to a Python model"
BASELINE = "Triton python"
WARMUP_REQUESTS = 20
REQUESTS_PER_S = 100
"""Requests that stand for a second of effort: about as many as it takes."""


def measure(bench: Bench) -> None:
    """tpy with both models in processes and in threads, and Triton, interleaved."""
    with contextlib.ExitStack() as stack:
        contenders = []
        for name, in_thread in (("tpy python worker", False), ("tpy python thread", True)):
            repository = bench.fresh(name.replace(" ", "_"))
            write_callers(repository, in_thread=in_thread)
            plan = TpyPlan(repository=repository)
            contenders.append((name, stack.enter_context(running(plan, bench.fresh(f"{repository.name}.log")))))
        if bench.peers.triton is not None:
            repository = bench.fresh("triton")
            write_callers(repository)
            triton = TritonPlan(triton=bench.peers.triton, repository=repository)
            contenders.append((BASELINE, stack.enter_context(running(triton, bench.fresh("triton.log")))))
        for number in bench.rounds():
            for name, server in contenders:
                requests = REQUESTS_PER_S * bench.effort.seconds
                alone_s = _median_s(server, 0, requests)
                for calls in bench.effort.cases((1, 4, 16), (4,)):
                    per_call_s = (_median_s(server, calls, requests) - alone_s) / calls
                    bench.note(
                        Measurement(
                            row=ROW,
                            case=f"{calls} call{'s' * (calls > 1)} per request",
                            metric="time per call",
                            unit="us",
                            contender=name,
                            baseline=BASELINE,
                            round=number,
                            value=per_call_s * 1e6,
                        )
                    )


def _median_s(server: Server, calls: int, requests: int) -> float:
    body = json.dumps({"inputs": [{"name": "CALLS", "datatype": "INT32", "shape": [1], "data": [calls]}]})
    connection = http.client.HTTPConnection(HOST, server.ports.http, timeout=30)
    took_s = []
    try:
        for number in range(WARMUP_REQUESTS + requests):
            begun_s = time.perf_counter()
            connection.request("POST", "/v2/models/caller/infer", body)
            response = connection.getresponse()
            answer = response.read()
            if response.status != http.client.OK:
                raise RuntimeError(f"the model that calls said: {answer.decode(errors='replace')}")
            if number >= WARMUP_REQUESTS:
                took_s.append(time.perf_counter() - begun_s)
    finally:
        connection.close()
    return statistics.median(took_s)
