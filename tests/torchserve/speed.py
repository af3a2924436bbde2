"""`python -m tests.torchserve.speed`: requests a second of TorchServe and of tpy, of the same archives with as many workers, one
after another in one run, and the ratio; the table of docs/reference/migration.md."""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import requests

from . import servers
from .test_torchserve import picture

CALLERS = (1, 8)
REQUESTS = 400
ROUNDS = 5
WORK: dict[str, dict[str, Any]] = {
    "eager": {"data": picture()},
    "texts": {"data": b"the cat is not here"},
    "rows": {"json": [1.5, 2, 3]},
    "function": {"data": b"content"},
}


def rate(address: str, name: str, callers: int) -> float:
    """Requests a second of so many callers, each with a connection; every answer has to be good."""
    barrier = threading.Barrier(callers + 1)
    failures: list[str] = []

    def call() -> None:
        with requests.Session() as session:
            session.get(f"http://{address}/ping", timeout=60)
            barrier.wait()
            for _ in range(REQUESTS // callers):
                answer = session.post(f"http://{address}/predictions/{name}", timeout=60, **WORK[name])
                if answer.status_code != 200:
                    failures.append(answer.text)
            barrier.wait()

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
        servers.build(home / "store")
        found: dict[tuple[str, int], list[tuple[float, float]]] = {}
        with servers.torchserve(home, home / "store") as theirs, servers.tpy(home, home / "store") as ours:
            measure: Callable[[str, str, int], float] = rate
            for name in WORK:
                for address in (theirs, ours):
                    measure(address, name, 1)  # warm
            for _ in range(ROUNDS):
                for name in WORK:
                    for callers in CALLERS:
                        pair = measure(theirs, name, callers), measure(ours, name, callers)
                        found.setdefault((name, callers), []).append(pair)
        print("| archive | callers | TorchServe | tpy | ratio |\n|---|--:|--:|--:|--:|")
        for (name, callers), pairs in found.items():
            their, our = (statistics.median(each) for each in zip(*pairs, strict=True))
            ratios = sorted(our / their for their, our in pairs)
            print(f"| {name} | {callers} | {their:.0f} | {our:.0f} | {our / their:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |")


if __name__ == "__main__":
    main()
