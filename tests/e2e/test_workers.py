"""Workers of python models that die under load: who is answered with what, what is told meanwhile, and that it mends itself."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from .gated import GatedModel, asking, metrics
from .repositories import IDENTITY_PAIR, ModelFolder
from .server import ServerProcess, command_of, is_alive
from .waiting import wait_until

COPY = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        if any(request.request_id() == "die" for request in requests):
            os.abort()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())]) for r in requests]
"""


def config(count: int) -> str:
    return f'backend: "python"\nmax_batch_size: 4\n{IDENTITY_PAIR}\ninstance_group [ {{ count: {count} }} ]\n'


@pytest.fixture
def server(repository: Path) -> Iterator[ServerProcess]:
    ModelFolder(repository, "one").config(config(1)).python(COPY)
    ModelFolder(repository, "two").config(config(2)).python(COPY)
    with ServerProcess(repositories=[repository]) as process:
        yield process


def copied(client: InferenceServerClient, model: str, number: int, request_id: str = "") -> int:
    tensor = InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[number]], np.int32))
    answer = client.infer(model, [tensor], request_id=request_id).as_numpy("OUTPUT0")
    assert answer is not None
    return int(answer[0, 0])


def states(client: InferenceServerClient) -> dict[str, tuple[str, str]]:
    return {row["name"]: (row["state"], row.get("reason", "")) for row in client.get_model_repository_index()}


def test_a_model_with_one_instance(server: ServerProcess) -> None:
    """Its request gets an error, then the model is UNAVAILABLE with the reason until another worker is up, for which the next
    requests wait. Others go on."""
    with InferenceServerClient(server.http) as client:
        assert copied(client, "one", 1) == 1
        before = set(server.children())
        with pytest.raises(
            InferenceServerException, match=r"^\[500\] .*Stub process 'one_0_0' is not healthy\. It was ended by SIGABRT$"
        ):
            copied(client, "one", 2, "die")
        state, reason = states(client)["one"]
        assert state == "UNAVAILABLE"
        assert reason.startswith("Internal: Stub process 'one_0_0' is not healthy. It was ended by SIGABRT")
        assert not client.is_model_ready("one")
        assert not client.is_server_ready()
        assert copied(client, "two", 4) == 4
        assert copied(client, "one", 3) == 3
        wait_until(lambda: client.is_model_ready("one"))
        assert copied(client, "one", 5) == 5
        assert states(client)["one"] == ("READY", "")
        assert client.is_server_ready()
        after = set(server.children())
        assert len(after) == len(before) == 3
        assert len(after & before) == 2
    server.wait_log(r"SIGABRT")
    assert metrics(server)['nv_inference_request_failure{model="one",reason="BACKEND",version="1"}'] == 1


def test_killed_under_load(server: ServerProcess) -> None:
    """With two instances, killing a worker costs at most the requests that it had; the model stays READY."""
    outcomes: Counter[str] = Counter()
    lock, stop = threading.Lock(), threading.Event()

    def ask_until_stopped(thread: int) -> None:
        with InferenceServerClient(server.http) as client:
            number = thread * 1_000_000
            while not stop.is_set():
                number += 1
                try:
                    word = "right" if copied(client, "two", number) == number else "wrong"
                except InferenceServerException as error:
                    word = error.message()
                with lock:
                    outcomes[word] += 1

    def answered(count: int) -> bool:
        return outcomes["right"] >= count

    threads = [threading.Thread(target=ask_until_stopped, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    with InferenceServerClient(server.http) as client:
        for turn in range(2):
            wait_until(lambda goal=outcomes["right"] + 50: answered(goal))
            instance = f"two_0_{turn}"
            os.kill(worker_of(server, instance), signal.SIGKILL)
            wait_until(lambda goal=outcomes["right"] + 50: answered(goal))
            assert client.is_model_ready("two")
            server.wait_log(f"instance '{instance}' was started again")
            wait_until(lambda: len(server.children()) == 3)
            wait_until(lambda goal=outcomes["right"] + 50: answered(goal))
    stop.set()
    for thread in threads:
        thread.join()
    failed = {word: count for word, count in outcomes.items() if word != "right"}
    assert all("is not healthy." in word for word in failed), failed
    assert sum(failed.values()) <= 2 * 4  # each kill hits one batch at most
    counted = metrics(server)
    assert counted['nv_inference_request_failure{model="two",reason="BACKEND",version="1"}'] == sum(failed.values())
    assert counted['nv_inference_request_success{model="two",version="1"}'] == outcomes["right"]


def test_requests_that_wait_while_the_only_worker_dies(repository: Path) -> None:
    """They are not lost: another worker answers them, or they are told why not; none hangs."""
    gated = GatedModel(repository, batching="")
    with ServerProcess(repositories=[repository]) as server, asking(server, gated.name) as asker:
        executing = asker.ask("a", 1)
        gated.wait_executing("a")
        waiting = [asker.ask("b", 2), asker.ask("c", 3)]
        asker.wait_queued(2)
        gated.open_gate("b", "c")
        (worker,) = server.children()
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(InferenceServerException, match="is not healthy"):
            executing.result()
        assert [request.result() for request in waiting] == [2, 3]
        assert not is_alive(worker)


def worker_of(server: ServerProcess, instance: str) -> int:
    """The worker of an instance: its name is the last argument of its command."""
    return next(pid for pid in server.children() if instance.encode() in command_of(pid))
