"""`python -m tests.mlserver.speed`: requests a second of MLServer and of tpy, of the same models with one worker each, one after
another in one run, and the ratio; the table of docs/reference/migration.md."""

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
from .test_mlserver import CASES

CALLERS = (1, 8)
REQUESTS = 400
ROUNDS = 5
WORK = ("scikit-learn", "XGBoost", "LightGBM", "arguments", "arguments in batches", "a data frame", "texts, bytes and times")


def rate(address: str, case: str, callers: int) -> float:
    """Requests a second of so many callers, each with a connection; every answer has to be good."""
    barrier = threading.Barrier(callers + 1)
    failures: list[str] = []
    name, document = CASES[case]
    body = json.dumps(document)

    def call() -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.connect()
        barrier.wait()
        for _ in range(REQUESTS // callers):
            connection.request("POST", f"/v2/models/{name}/infer", body, {"Content-Type": "application/json"})
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
        servers.build(home / "repository")
        found: dict[tuple[str, int], list[tuple[float, float]]] = {}
        with servers.mlserver(home, home / "repository") as theirs, servers.tpy(home, home / "repository") as ours:
            for case in WORK:
                for address in (theirs, ours):
                    rate(address, case, 1)  # warm
            for _ in range(ROUNDS):
                for case in WORK:
                    for callers in CALLERS:
                        pair = rate(theirs, case, callers), rate(ours, case, callers)
                        found.setdefault((case, callers), []).append(pair)
        print("| model | callers | MLServer | tpy | ratio |\n|---|--:|--:|--:|--:|")
        for (case, callers), pairs in found.items():
            their, our = (statistics.median(each) for each in zip(*pairs, strict=True))
            ratios = sorted(our / their for their, our in pairs)
            print(f"| {case} | {callers} | {their:.0f} | {our:.0f} | {our / their:.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f}) |")


if __name__ == "__main__":
    main()
