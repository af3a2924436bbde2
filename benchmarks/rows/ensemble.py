"""Ensembles: what a step costs above what its model takes, from the servers' own statistics."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.measurement import Measurement
from benchmarks.servers.models import write_builtin_identity, write_identity_chain, write_python_identity
from benchmarks.servers.plans import TpyPlan, TritonPlan
from benchmarks.servers.process import HOST, Server, running

ROW = "an ensemble of tiny identity models"
BASELINE = "Triton python"
STEPS = 3
WARMUP_REQUESTS = 20
REQUESTS_PER_S = 200
"""Requests that stand for a second of effort: about as many as it takes."""


def measure(bench: Bench) -> None:
    """tpy with members in threads and in processes, and Triton, interleaved."""
    with contextlib.ExitStack() as stack:
        contenders = []
        members: tuple[tuple[str, Callable[[Path, str], None]], ...] = (
            ("tpy identity backend", write_builtin_identity),
            ("tpy python worker", write_python_identity),
        )
        for name, write in members:
            repository = bench.fresh(name.replace(" ", "_"))
            write_identity_chain(repository, write, STEPS)
            plan = TpyPlan(repository=repository)
            contenders.append((name, stack.enter_context(running(plan, bench.fresh(f"{repository.name}.log")))))
        if bench.peers.triton is not None:
            repository = bench.fresh("triton")
            write_identity_chain(repository, write_python_identity, STEPS)
            triton = TritonPlan(triton=bench.peers.triton, repository=repository)
            contenders.append((BASELINE, stack.enter_context(running(triton, bench.fresh("triton.log")))))
        for number in bench.rounds():
            for name, server in contenders:
                bench.note(
                    Measurement(
                        row=ROW,
                        case=f"{STEPS} steps in a row, one request at a time",
                        metric="time per step above its model's",
                        unit="us",
                        contender=name,
                        baseline=BASELINE,
                        round=number,
                        value=_overhead_us(server, REQUESTS_PER_S * bench.effort.seconds),
                    )
                )


def _overhead_us(server: Server, requests: int) -> float:
    """Mean time of a request to the ensemble, without the mean times of its steps' requests, for each step."""
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]})
    connection = http.client.HTTPConnection(HOST, server.ports.http, timeout=30)
    try:
        for _ in range(WARMUP_REQUESTS):
            _ask(connection, "POST", "/v2/models/chain/infer", body)
        before_ns = _times_ns(connection)
        for _ in range(requests):
            _ask(connection, "POST", "/v2/models/chain/infer", body)
        after_ns = _times_ns(connection)
    finally:
        connection.close()
    whole, *steps = (after - before for before, after in zip(before_ns, after_ns, strict=True))
    return (whole - sum(steps)) / requests / STEPS / 1000


def _times_ns(connection: http.client.HTTPConnection) -> list[int]:
    """The time of all successful requests until now: of the ensemble, and of each step's model."""
    names = ("chain", *(f"step{number}" for number in range(STEPS)))
    answers = [json.loads(_ask(connection, "GET", f"/v2/models/{name}/stats")) for name in names]
    return [int(answer["model_stats"][0]["inference_stats"]["success"]["ns"]) for answer in answers]


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None) -> bytes:
    connection.request(method, path, body)
    response = connection.getresponse()
    answer = response.read()
    if response.status != http.client.OK:
        raise RuntimeError(f"{path}: {answer.decode(errors='replace')}")
    return answer
