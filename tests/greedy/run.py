"""Two models of four instances each, whose requests take DELAY_MS whatever else the machine does. `polite` has one client, which
asks both in turn, `greedy` has a hundred. Measured: the latency of `polite` alone, beside `greedy` without tenants, with tenants
of equal weight, and with a concurrency that leaves an instance free."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tests.e2e.repositories import ModelFolder, parameter
from tests.e2e.server import ServerProcess

DELAY_MS = 100
INSTANCES = 4
GREEDY_CLIENTS = 100
MODELS = ("first", "second")
REFUSED_PAUSE_S = 1.0
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()

EQUAL = {
    "header": "x-tenant",
    "trusted_proxies": ["127.0.0.1"],
    "default": "polite",
    "tenants": [{"name": "greedy"}, {"name": "polite"}],
}
LIMITED = {**EQUAL, "tenants": [{"name": "greedy", "concurrency": INSTANCES - 1}, {"name": "polite"}]}


class Figures(NamedTuple):
    """Of one scenario: the latencies of `polite` in milliseconds, and the numbers of answers."""

    name: str
    p50_ms: float
    p99_ms: float
    polite: int
    greedy: int
    refused: int

    def __str__(self) -> str:
        return (
            f"{self.name:32} p50 {self.p50_ms:7.1f} ms  p99 {self.p99_ms:7.1f} ms  answers: polite {self.polite}, "
            f"greedy {self.greedy}, refused {self.refused}"
        )


class Report(NamedTuple):
    """All scenarios."""

    alone: Figures
    without: Figures
    equal: Figures
    limited: Figures

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def check(self) -> None:
        """Raise AssertionError where `polite` feels more of `greedy` than it may: the batches that run, or, with an instance left
        free, a tenth of its p99."""
        assert self.equal.p99_ms <= self.alone.p99_ms + 1.5 * DELAY_MS, "polite waits for more than the batches that run"
        assert self.limited.p99_ms <= 1.1 * self.alone.p99_ms, "polite feels greedy, although an instance is left free"


class Client:
    """One connection of a tenant that asks again and again until `stop`."""

    def __init__(self, address: str, tenant: str, stop: threading.Event) -> None:
        self.latencies_s: list[float] = []
        self.refused = 0
        self._address = address
        self._tenant = tenant
        self._stop = stop

    def run(self) -> None:
        """Ask the models in turn."""
        connection = http.client.HTTPConnection(self._address, timeout=60)
        number, chance = 0, random.Random(id(self))
        while not self._stop.is_set():
            number += 1
            begun_s = time.monotonic()
            connection.request("POST", f"/v2/models/{MODELS[number % 2]}/infer", BODY, {"X-Tenant": self._tenant})
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                self.latencies_s.append(time.monotonic() - begun_s)
            else:
                assert answer.status == 429, answer.status
                self.refused += 1
                self._stop.wait(REFUSED_PAUSE_S * chance.uniform(0.5, 1.5))
        connection.close()


def run(folder: Path, seconds: float) -> Report:
    """Run all scenarios, each so long."""
    for name in MODELS:
        more = f"instance_group {{ kind: KIND_CPU count: {INSTANCES} }}\n{parameter('execute_delay_ms', DELAY_MS)}"
        ModelFolder(folder / "models", name).identity(more)
    return Report(
        _scenario(folder, "polite alone", seconds, None, greedy=0),
        _scenario(folder, "greedy beside, no tenants", seconds, None, greedy=GREEDY_CLIENTS),
        _scenario(folder, "tenants of equal weight", seconds, EQUAL, greedy=GREEDY_CLIENTS),
        _scenario(folder, f"greedy has concurrency {INSTANCES - 1}", seconds, LIMITED, greedy=GREEDY_CLIENTS),
    )


def _scenario(folder: Path, name: str, seconds: float, tenants: object, *, greedy: int) -> Figures:
    flags = []
    if tenants is not None:
        (folder / "tenants.json").write_text(json.dumps(tenants))
        flags = [f"--tenants-file={folder / 'tenants.json'}"]
    stop = threading.Event()
    with ServerProcess(*flags, repositories=[folder / "models"]) as server:
        clients = [Client(server.http, "greedy" if number else "polite", stop) for number in range(1 + greedy)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads[1:]:
            thread.start()
        if greedy:
            time.sleep(1)  # the queue fills
        threads[0].start()
        time.sleep(seconds)
        stop.set()
        for thread in threads:
            thread.join()
    latencies_ms = sorted(1000 * each for each in clients[0].latencies_s)
    return Figures(
        name,
        latencies_ms[len(latencies_ms) // 2],
        latencies_ms[len(latencies_ms) * 99 // 100],
        len(latencies_ms),
        sum(len(client.latencies_s) for client in clients[1:]),
        sum(client.refused for client in clients),
    )
