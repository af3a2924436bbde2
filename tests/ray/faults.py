"""Faults of a cluster of several raylets under load, and what clients notice of each: a program, for a private network.

Use: python -m tests.ray.faults FOLDER [SCENARIO ...]       prints a line of JSON for each scenario

Clients are stock ones with one retry. `lost` are requests that failed twice, `retried` those that failed once, `wrong` are
answers that are not the sum that was asked for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tritonclient.http as httpclient
import yaml

from .repository import build
from .serving import BIN, HAPROXY, configure, environment, processes, until

URL = "127.0.0.1:8000"
CLIENTS = 4
PAUSE_S = 0.01
AROUND_S = 3.0
"""Load before a fault and after it is over."""
RETRY_AFTER_S = 0.5
"""The pause of a client before its one retry: HAProxy looks at its replicas twice meanwhile."""

REPLICA = "ray::ServeReplica:tpy:tpy"
CONTROLLER = "ray::ServeController"
CHANGES = "ray::ChangesActor"


class Counts(NamedTuple):
    """Requests of the clients, and how they went."""

    sent: int
    retried: int
    lost: int
    wrong: int
    errors: list[str]


class Load:
    """Requests of some clients, one after the other each, until stopped."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._sent = self._retried = self._lost = self._wrong = 0
        self._errors: set[str] = set()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send for the length of the block, and a while before and after."""
        for thread in self._threads:
            thread.start()
        try:
            time.sleep(AROUND_S)
            yield
            time.sleep(AROUND_S)
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    @property
    def counts(self) -> Counts:
        return Counts(self._sent, self._retried, self._lost, self._wrong, sorted(self._errors)[:5])

    def _run(self, number: int) -> None:
        with httpclient.InferenceServerClient(URL, network_timeout=60, connection_timeout=60) as client:
            at = 0
            while not self._stop.is_set():
                at += 1
                self._one(client, np.full((1, 16), 1000 * number + at % 1000, np.int32))
                self._stop.wait(PAUSE_S)

    def _one(self, client: Any, row: np.ndarray[Any, Any]) -> None:
        found = None
        for attempt in range(2):
            try:
                found = client.infer("simple", _inputs(row)).as_numpy("OUTPUT0")
                break
            except Exception as error:
                with self._lock:
                    self._errors.add(f"{type(error).__name__}: {error}"[:200])
                    self._retried += not attempt
                    self._lost += attempt
                if not attempt:
                    self._stop.wait(RETRY_AFTER_S)
        with self._lock:
            self._sent += 1
            self._wrong += found is not None and not bool((found == 2 * row).all())


def _inputs(row: np.ndarray[Any, Any]) -> list[Any]:
    found = []
    for name in ("INPUT0", "INPUT1"):
        tensor = httpclient.InferInput(name, row.shape, "INT32")
        tensor.set_data_from_numpy(row)
        found.append(tensor)
    return found


class FaultyCluster:
    """A cluster of raylets on this machine with an application, and what can be done to it. `cpus` are those of each raylet,
    `workers` their number beside the head."""

    def __init__(self, folder: Path, *, repository: Path | None = None, workers: int = 2, cpus: int = 2) -> None:
        self.repository = build(folder / "models") if repository is None else repository
        self._file = folder / "serve.yaml"
        self._environ = environment(folder / "home", **HAPROXY)
        os.environ.update(self._environ)
        from ray.cluster_utils import Cluster

        self._node = {"num_cpus": cpus, **_NODE}
        self._cluster = Cluster(initialize_head=True, head_node_args=self._node)
        self.nodes = [self._cluster.add_node(**self._node) for _ in range(workers)]

    def deploy(self, *words: str) -> None:
        """Have this configuration be the deployed one, and wait until it is."""
        configure(self._file, f"repository={self.repository}", "cpus=0.5", *words)
        config = yaml.safe_load(self._file.read_text())
        config["proxy_location"] = "HeadOnly"  # one machine has one port 8000
        config["applications"][0]["deployments"][0]["health_check_period_s"] = 2
        self._file.write_text(yaml.safe_dump(config))
        command = [BIN / "serve", "run", "--non-blocking", "--address", self._cluster.address, self._file]
        subprocess.run(command, check=True, env=self._environ, capture_output=True)

    def replicas(self) -> list[int]:
        """The process ids of all replicas."""
        return processes(REPLICA)

    def kill_node(self) -> None:
        """Kill a raylet with all that runs there."""
        self._cluster.remove_node(self.nodes.pop(), allow_graceful=False)

    def add_node(self) -> None:
        """Add one."""
        self.nodes.append(self._cluster.add_node(**self._node))

    def shutdown(self) -> None:
        """End everything."""
        self._cluster.shutdown()


_NODE = {"object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1", "include_dashboard": False}


def _kill(name: str) -> None:
    os.kill(processes(name)[0], signal.SIGKILL)


# Scenarios


def replica_killed(cluster: FaultyCluster) -> None:
    before = set(cluster.replicas())
    _kill(REPLICA)
    until(lambda: len(set(cluster.replicas()) - before) == 1, seconds=90)


def node_killed(cluster: FaultyCluster) -> None:
    before = set(cluster.replicas())
    cluster.kill_node()
    until(lambda: before - set(cluster.replicas()))  # some were there
    cluster.add_node()
    until(lambda: len(cluster.replicas()) == len(before), seconds=120)


def controller_killed(cluster: FaultyCluster) -> None:
    before = set(processes(CONTROLLER))
    _kill(CONTROLLER)
    until(lambda: set(processes(CONTROLLER)) - before, seconds=90)


def new_version(cluster: FaultyCluster) -> None:
    before = set(cluster.replicas())
    cluster.deploy("replicas=3", "log_verbose=1")
    until(lambda: len(cluster.replicas()) == 3 and not set(cluster.replicas()) & before, seconds=180)


def scaled(cluster: FaultyCluster) -> None:
    for count in (1, 4, 1):
        cluster.deploy(f"replicas={count}", "log_verbose=1")
        until(lambda: len(cluster.replicas()) == count, seconds=180)  # noqa: B023  # called at once
    cluster.deploy("replicas=3", "log_verbose=1")
    until(lambda: len(cluster.replicas()) == 3, seconds=180)


SCENARIOS: dict[str, Callable[[FaultyCluster], None]] = {
    "replica killed": replica_killed,
    "node killed": node_killed,
    "controller killed": controller_killed,
    "new version": new_version,
    "scale 1-4-1": scaled,
}


def main(folder: Path, names: list[str]) -> None:
    """Run these scenarios, all by default."""
    cluster = FaultyCluster(folder)
    try:
        cluster.deploy("replicas=3")
        until(lambda: _is_ready() and len(cluster.replicas()) == 3, seconds=180)
        for name in names or SCENARIOS:
            load = Load()
            begun = time.monotonic()
            with load.running():
                SCENARIOS[name](cluster)
            print(
                json.dumps({"scenario": name, "seconds": round(time.monotonic() - begun, 1), **load.counts._asdict()}), flush=True
            )
    finally:
        cluster.shutdown()


def _is_ready() -> bool:
    with httpclient.InferenceServerClient(URL) as client:
        return bool(client.is_model_ready("simple"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
