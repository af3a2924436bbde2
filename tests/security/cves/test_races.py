"""Calls that meet: control calls at once, and streams that end before they begin."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import grpc
import pytest

from tests.chaos.models import write_models
from tests.e2e.server import ServerProcess
from tests.security.attacker import Attacker, tensor

from .calls import SERVICE, infer_message

ROUNDS = 15


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    home = tmp_path_factory.mktemp("races")
    write_models(home / "models")
    flags = ("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true")
    with ServerProcess(*flags, repositories=[home / "models"]) as server:
        yield Attacker(server, home)


def _at_once(*calls: Callable[[], int]) -> list[int]:
    """The statuses of calls that are made again and again, each in a thread."""
    statuses: list[int] = []

    def make(call: Callable[[], int]) -> None:
        statuses.extend(call() for _ in range(ROUNDS))

    threads = [threading.Thread(target=make, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return statuses


def test_cve_2025_33254(busy: Attacker) -> None:
    """362, a race: loads, unloads and requests of one model at once."""
    statuses = _at_once(
        lambda: busy.load("copy", {}).status,
        lambda: busy.ask("POST", "/v2/repository/models/copy/unload").status,
        lambda: busy.infer({"inputs": [tensor([1.0, 2.0, 3.0])]}, "copy").status,
        lambda: busy.infer({"inputs": [tensor([1.0, 2.0, 3.0])]}, "chain").status,
        lambda: busy.ask("POST", "/v2/repository/index").status,
    )
    assert set(statuses) <= {200, 400, 404, 500, 503}
    assert busy.load("copy", {}).status == 200
    assert busy.load("chain", {}).status == 200
    assert busy.infer({"inputs": [tensor([1.0, 2.0, 3.0])]}, "chain").status == 200
    busy.check_served()
    assert "Traceback" not in busy.server.log


def test_cve_2025_33238(busy: Attacker) -> None:
    """362, a race: settings, statistics and regions that are changed and read at once."""
    region = json.dumps({"key": "/tpy-cve-none", "offset": 0, "byte_size": 12}).encode()
    statuses = _at_once(
        lambda: busy.ask("POST", "/v2/logging", b'{"log_verbose_level":1}').status,
        lambda: busy.ask("POST", "/v2/logging", b'{"log_verbose_level":0}').status,
        lambda: busy.ask("POST", "/v2/models/affine/trace/setting", b'{"trace_rate":"3"}').status,
        lambda: busy.ask("POST", "/v2/models/affine/trace/setting", b'{"trace_rate":null}').status,
        lambda: busy.ask("POST", "/v2/systemsharedmemory/region/r/register", region).status,
        lambda: busy.ask("POST", "/v2/systemsharedmemory/unregister").status,
        lambda: busy.ask("GET", "/v2/models/affine/stats").status,
    )
    assert set(statuses) <= {200, 400, 404, 500}
    assert busy.ask("POST", "/v2/logging", b'{"log_verbose_level":0}').status == 200
    busy.check_served()
    assert "Traceback" not in busy.server.log


def test_cve_2025_23322(attacker: Attacker) -> None:
    """415, double free: a stream that is cancelled before its first request begins, and in the middle of others."""
    request = infer_message().SerializeToString()
    with grpc.insecure_channel(attacker.server.grpc) as channel:
        stream = channel.stream_stream(f"{SERVICE}ModelStreamInfer")
        for count in range(30):
            stream(iter([request] * count), timeout=20).cancel()
        answers = list(stream(iter([request] * 3), timeout=20))
    assert len(answers) == 3
