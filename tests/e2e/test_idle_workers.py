"""Workers of python models that die while they have nothing to do: it is seen at once, and no request is lost."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient

from .gated import metrics
from .repositories import IDENTITY_PAIR, ModelFolder
from .server import ServerProcess
from .test_workers import copied, states, worker_of
from .waiting import wait_until

PIDFD_GETFD = 438

COPY = """
import os, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        gate = os.path.join(args["model_repository"], "..", "..", "gate")
        while os.path.exists(gate):
            time.sleep(0.01)
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())]) for r in requests]
"""

DECOUPLED = (
    COPY[: COPY.index("        return [")]
    + """
        for request in requests:
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
            request.get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)

MODELS = {
    "plain": "",
    "two": "",
    "batching": "dynamic_batching { }",
    "decoupled": "model_transaction_policy { decoupled: true }",
    "limited": 'parameters { key: "TPY_EXECUTE_TIMEOUT_SECONDS" value { string_value: "1" } }',  # left to its thread
}


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(repository: Path, model: str) -> Iterator[ServerProcess]:
    folder = ModelFolder(repository, model)
    count = len(instances_of(model))
    folder.config(
        f'backend: "python"\nmax_batch_size: 4\n{IDENTITY_PAIR}\n{MODELS[model]}\ninstance_group [ {{ count: {count} }} ]\n'
    )
    folder.python(DECOUPLED if model == "decoupled" else COPY)
    with ServerProcess(repositories=[repository]) as process:
        yield process


def instances_of(model: str) -> list[str]:
    return [f"{model}_0_{number}" for number in range(2 if model == "two" else 1)]


def ask(client: InferenceServerClient, model: str, number: int) -> int:
    """The number that the model copies. Decoupled models take requests over HTTP by `generate` only."""
    if model != "decoupled":
        return copied(client, model, number)
    answer = client._post(f"v2/models/{model}/generate", f'{{"INPUT0":[{number}]}}', None, None)  # the client has no such call
    assert answer.status_code == 200, answer.read()
    return int(json.loads(answer.read())["OUTPUT0"])


def test_it_is_seen_and_mended_without_a_request(server: ServerProcess, repository: Path, model: str) -> None:
    """Readiness, index and log say so, also while the next worker is not there yet; then all is as before."""
    gate = repository.parent / "gate"
    gate.touch()
    with InferenceServerClient(server.http) as client:
        assert client.is_model_ready(model)
        for instance in instances_of(model):
            os.kill(worker_of(server, instance), signal.SIGKILL)
        wait_until(lambda: not client.is_model_ready(model))  # nothing but the death tells the server: the next start is held up
        assert not client.is_server_ready()
        state, reason = states(client)[model]
        assert state == "UNAVAILABLE"
        assert reason.startswith(f"Internal: Stub process '{instances_of(model)[-1]}' is not healthy. It was ended by SIGKILL")
        for instance in instances_of(model):
            server.wait_log(f"instance '{instance}' failed")
        server.wait_log("was ended by SIGKILL")
        gate.unlink()
        wait_until(lambda: client.is_model_ready(model))
        assert [ask(client, model, number) for number in range(6)] == list(range(6))
        assert client.is_server_ready()
    assert metrics(server)[f'nv_inference_request_failure{{model="{model}",reason="BACKEND",version="1"}}'] == 0


def test_a_request_that_its_worker_never_read_is_answered_by_another(server: ServerProcess, model: str) -> None:
    """The worker is stopped, so that what is given to it stays unread; then it dies."""
    with InferenceServerClient(server.http) as client, ThreadPoolExecutor(2) as pool:
        workers = [worker_of(server, instance) for instance in instances_of(model)]
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        asked = [pool.submit(_ask, server, model, number) for number in range(len(workers))]
        for worker in workers:
            wait_until(lambda worker=worker: unread_bytes(worker))
            os.kill(worker, signal.SIGKILL)
        assert [each.result() for each in asked] == list(range(len(workers)))
        wait_until(lambda: client.is_model_ready(model))
        wait_until(lambda: not set(workers) & set(server.children()))
    assert metrics(server)[f'nv_inference_request_failure{{model="{model}",reason="BACKEND",version="1"}}'] == 0


def _ask(server: ServerProcess, model: str, number: int) -> int:
    with InferenceServerClient(server.http) as client:
        return ask(client, model, number)


def unread_bytes(worker: int) -> int:
    """Bytes from the server that this worker has not read."""
    control = int(Path(f"/proc/{worker}/cmdline").read_bytes().split(b"\0")[3])
    process = os.pidfd_open(worker)
    copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, control, 0)
    os.close(process)
    assert copy >= 0, os.strerror(ctypes.get_errno())
    try:
        return int.from_bytes(fcntl.ioctl(copy, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(copy)


@pytest.mark.parametrize("model", ["two"])
def test_many_kills_of_idle_workers_lose_nothing(server: ServerProcess, model: str) -> None:
    """A request directly after each: it may come before the death is seen, or while the model is not ready."""
    with InferenceServerClient(server.http) as client:
        for turn in range(8):
            os.kill(worker_of(server, instances_of(model)[turn % 2]), signal.SIGKILL)
            assert [ask(client, model, number) for number in range(4)] == list(range(4))
            wait_until(lambda turn=turn: server.log.count("was started again") > turn)
    assert metrics(server)[f'nv_inference_request_failure{{model="{model}",reason="BACKEND",version="1"}}'] == 0
