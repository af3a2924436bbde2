"""Rolling restarts of two servers behind HAProxy and nginx, under load over HTTP with keep-alive and over gRPC: no request fails.
`make test-rollout` has 100 restarts, `make test` two."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.e2e.repositories import ModelFolder
from tests.e2e.waiting import wait_until

from .balancers import HAPROXY, NGINX, Doors, Place, balancers, free_ports
from .kubelet import Deployment

pytestmark = pytest.mark.skipif(HAPROXY is None or NGINX is None, reason="needs haproxy and nginx (Debian's packages)")

BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [[7]]}]})
ANSWER = [7]


def over_http(doors: Doors, stack: ExitStack) -> Callable[[], None]:
    """One connection for all requests; one that the balancer has closed in order, with `Connection: close`, is replaced."""
    connection = http.client.HTTPConnection("127.0.0.1", doors.http, timeout=20)
    stack.callback(connection.close)

    def ask() -> None:
        connection.request("POST", "/v2/models/identity/infer", BODY)
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, (response.status, text)
        assert json.loads(text)["outputs"][0]["data"] == ANSWER

    return ask


def over_grpc(doors: Doors, stack: ExitStack) -> Callable[[], None]:
    """One channel for all requests."""
    client = triton.InferenceServerClient(f"127.0.0.1:{doors.grpc}")
    stack.callback(client.close)
    given = triton.InferInput("INPUT0", [1, 1], "INT32")
    given.set_data_from_numpy(np.array([ANSWER], np.int32))

    def ask() -> None:
        assert client.infer("identity", [given], client_timeout=20).as_numpy("OUTPUT0").tolist() == [ANSWER]

    return ask


class Load:
    """Clients that ask all the time, with a pause between two requests. `right` and `wrong` count their answers."""

    def __init__(self, clients: dict[str, Callable[[], None]]) -> None:
        self.right: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=client) for client in clients.items()]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, ask: Callable[[], None]) -> None:
        while not self._over.wait(0.005):
            try:
                ask()
            except Exception as error:
                self.wrong[f"{name}: {type(error).__name__}: {error}"] += 1
            else:
                self.right[name] += 1


def test_no_request_fails_in_rolling_restarts(tmp_path: Path, soak: int) -> None:
    ModelFolder(tmp_path / "models", "identity").identity()
    ports = free_ports(13)
    places = [Place(*ports[at : at + 3]) for at in (4, 7, 10)]
    deployment = Deployment(places, tmp_path / "models")
    restarts = 2 * soak
    with balancers(tmp_path / "balancers", places) as doors, ExitStack() as stack:
        try:
            deployment.add()
            deployment.add()
            clients = {
                f"{balancer} {protocol}": make(doors[balancer], stack)
                for balancer in doors
                for protocol, make in (("http", over_http), ("grpc", over_grpc))
            }
            for ask in clients.values():
                wait_until(lambda ask=ask: _answers(ask))
            with Load(clients) as load:
                for _ in range(restarts):
                    deployment.restart()
                    seen = load.right.copy()
                    wait_until(lambda seen=seen: load.wrong or all(load.right[name] > seen[name] + 20 for name in clients))
        finally:
            while deployment.pods:
                deployment.remove()
    print(f"{restarts} restarts, {load.right.total()} requests: {dict(load.right)}; failed: {dict(load.wrong)}")
    assert load.wrong == {}
    assert deployment.failures == []


def _answers(ask: Callable[[], None]) -> bool:
    try:
        ask()
    except Exception:
        return False
    return True
