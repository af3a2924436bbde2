"""`python -m tests.torchserve.speed`: requests a second of TorchServe and of tpy, of the same archives with as many workers, one
after another in one run, and the ratio; the table of docs/reference/migration.md."""

from __future__ import annotations

import http.client
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from time import perf_counter

from . import servers
from .test_torchserve import picture

CALLERS = (1, 8)
REQUESTS = 400
ROUNDS = 5
WORK = {
    "eager": (picture(), "image/png"),
    "texts": (b"the cat is not here", "text/plain"),
    "rows": (b"[1.5, 2, 3]", "application/json"),
    "function": (b"content", "application/octet-stream"),
}


def rate(address: str, name: str, callers: int) -> float:
    """Requests a second of so many callers, each with a connection; every answer has to be good."""
    barrier = threading.Barrier(callers + 1)
    failures: list[str] = []
    content, kind = WORK[name]

    def call() -> None:
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.connect()
        barrier.wait()
        for _ in range(REQUESTS // callers):
            connection.request("POST", f"/predictions/{name}", content, {"Content-Type": kind})
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
        servers.build(home / "store")
        found: dict[tuple[str, int], list[tuple[float, float]]] = {}
        with servers.torchserve(home, home / "store") as theirs, servers.tpy(home, home / "store") as ours:
            for name in WORK:
                for address in (theirs, ours):
                    rate(address, name, 1)  # warm
            for _ in range(ROUNDS):
                for name in WORK:
                    for callers in CALLERS:
                        pair = rate(theirs, name, callers), rate(ours, name, callers)
                        found.setdefault((name, callers), []).append(pair)
        print("| archive | callers | TorchServe | tpy | ratio |\n|---|--:|--:|--:|--:|")
        for (name, callers), pairs in found.items():
            their, our = (statistics.median(each) for each in zip(*pairs, strict=True))
            ratios = sorted(our / their for their, our in pairs)
            print(f"| {name} | {callers} | {their:.0f} | {our:.0f} | {our / their:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |")


if __name__ == "__main__":
    main()
