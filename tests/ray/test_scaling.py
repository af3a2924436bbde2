"""Replicas by `tpy_load`, and sequences over several of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from .repository import build
from .serving import HAPROXY, configure, environment, is_running, processes, serving, until

HTTP = "127.0.0.1:8000"
REPLICA = "ray::ServeReplica:tpy:tpy"
CLIENTS = 8

_SLOW = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.1 * len(requests))
        return [pb_utils.InferenceResponse([pb_utils.get_input_tensor_by_name(each, "X")]) for each in requests]
"""

_SLOW_CONFIG = """
name: "slow"
backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


def tensor(shape: list[int], value: int) -> httpclient.InferInput:
    found = httpclient.InferInput("X", shape, "INT32")
    found.set_data_from_numpy(np.full(shape, value, np.int32))
    return found


@contextmanager
def load() -> Iterator[None]:
    """More than one instance can do, for the length of the block."""
    stop = threading.Event()

    def run() -> None:
        with httpclient.InferenceServerClient(HTTP, network_timeout=60, connection_timeout=60) as client:
            while not stop.is_set():
                client.infer("slow", [tensor([1], 1)])

    threads = [threading.Thread(target=run) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_replicas_are_added_and_removed_by_load(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "1" / "model.py").write_text(_SLOW)
    (repository / "slow" / "config.pbtxt").write_text(_SLOW_CONFIG)
    words = ("max_replicas=3", "upscale_delay_s=1", "downscale_delay_s=2", "cpus=0.1", "target=0.7")
    config = configure(tmp_path / "serve.yaml", f"repository={repository}", *words)
    environ = environment(tmp_path / "home", RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S="1", **HAPROXY)
    with serving(config, tmp_path / "log", environ, f"http://{HTTP}/v2/models/slow/ready") as process:
        assert len(processes(REPLICA, process.pid)) == 1
        with load():
            until(lambda: len(processes(REPLICA, process.pid)) == 3, seconds=120)
        until(lambda: len(processes(REPLICA, process.pid)) == 1, seconds=180)


@pytest.mark.parametrize("proxy", ["haproxy", "python proxy"])
def test_the_requests_of_a_session_reach_the_replica_of_their_sequence(tmp_path: Path, proxy: str) -> None:
    by_router = "true" if proxy == "python proxy" else "false"  # with HAProxy, Serve refuses other routers
    words = ("replicas=3", "models=sum", "cpus=0.1", f"session_affinity={by_router}")
    config = configure(tmp_path / "serve.yaml", f"repository={build(tmp_path / 'models')}", *words)
    more = {**HAPROXY, "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": "hdr(x-session-id)"} if proxy == "haproxy" else {}
    environ = environment(tmp_path / "home", **more)
    with serving(config, tmp_path / "log", environ, f"http://{HTTP}/v2/models/sum/ready"):
        until(lambda: is_running(environ))  # another replica is another place for some sessions

        def add(id: int, at: int) -> int:
            with httpclient.InferenceServerClient(HTTP) as client:  # another connection each time
                begins, ends = at == 0, at == 3
                answer = client.infer(
                    "sum",
                    [tensor([1, 1], 5)],
                    sequence_id=id,
                    sequence_start=begins,
                    sequence_end=ends,
                    headers={"x-session-id": f"s{id}"},
                )
            return int(answer.as_numpy("SUM")[0, 0])

        for id in range(1, 7):
            assert [add(id, at) for at in range(4)] == [5, 10, 15, 20]
        assert add(7, 0) == 5
        # A sequence that has begun on another replica is refused, and not begun anew.
        with pytest.raises(InferenceServerException, match="START flag"):
            _go_on_elsewhere()


def _go_on_elsewhere() -> None:
    with httpclient.InferenceServerClient(HTTP) as client:
        for number in range(40):
            client.infer("sum", [tensor([1, 1], 5)], sequence_id=7, headers={"x-session-id": f"other{number}"})
