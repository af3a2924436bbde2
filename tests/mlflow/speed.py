"""`python -m tests.mlflow.speed`: requests a second of MLflow's scoring server and of tpy's MLflow port, of the same models with
one worker each, one after another in one run, and the ratio; the table of docs/reference/migration.md."""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from time import perf_counter

from . import servers
from .test_mlflow import BODIES, sent

CALLERS = (1, 8)
REQUESTS = 96
ROUNDS = 3
NAMES = ("classes", "forest", "double", "table", "scaled", "pair", "lengths")


def rate(address: str, path: str, body: bytes, callers: int) -> float:
    """Requests a second of so many callers, each with a connection; every answer has to be good."""
    barrier = threading.Barrier(callers + 1)
    failures: list[str] = []

    def call() -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.connect()
        barrier.wait()
        for _ in range(REQUESTS // callers):
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                failures.append(text.decode())
        barrier.wait()
        connection.close()

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    barrier.wait()
    begun = perf_counter()
    barrier.wait()
    seconds = perf_counter() - begun
    if failures:
        sys.exit(f"{address}: {len(failures)} requests failed: {failures[0]}")
    return REQUESTS / seconds


def main() -> None:
    """Print the table."""
    if servers.missing():
        sys.exit(servers.missing())
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        servers.build(home / "saved")
        print("| model | callers | MLflow | tpy | ratio |\n|---|--:|--:|--:|--:|")
        with servers.tpy(home, home / "saved") as ours:
            for name in NAMES:
                with servers.mlflow(home, home / "saved" / name) as theirs:
                    _compare(name, theirs, ours)


def _compare(name: str, theirs: str, ours: str) -> None:
    places = ((theirs, "/invocations"), (ours, f"/models/{name}/invocations"))
    for address, path in places:
        assert sent(address, path, BODIES[name][0]).ok
    body = json.dumps(BODIES[name][0]).encode()
    for callers in CALLERS:
        pairs = [[rate(*place, body, callers) for place in places] for _ in range(ROUNDS)]
        their, our = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratios = sorted(our / their for their, our in pairs)
        print(f"| {name} | {callers} | {their:.0f} | {our:.0f} | {our / their:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |")


if __name__ == "__main__":
    main()
