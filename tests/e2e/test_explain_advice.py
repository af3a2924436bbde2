"""The advice of explanations is true: on a real server under load it names what binds, and the change that it names helps.

Models sleep, so that it is their time that counts and not this machine's.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from tpy_tools.commands.client import client_of

from .repositories import ModelFolder
from .server import ServerProcess
from .waiting import wait_until

SLEEPS = """
import os, pathlib, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pathlib.Path(args["model_repository"], "pid").write_text(str(os.getpid()))

    def execute(self, requests):
        time.sleep(0.05)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each.inputs()[0].as_numpy())]) for each in requests]
"""
CALLS = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for each in requests:
            given = pb_utils.Tensor("X", each.inputs()[0].as_numpy())
            call = pb_utils.InferenceRequest(model_name="called", requested_output_names=["Y"], inputs=[given])
            answers.append(pb_utils.InferenceResponse([call.exec().output_tensors()[0]]))
        return answers
"""
IO = 'input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]\noutput [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]\n'
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 1
ensemble_scheduling { step [
  { model_name: "quick" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "M" } },
  { model_name: "single" model_version: -1 input_map { key: "X" value: "M" } output_map { key: "Y" value: "Y" } } ] }
"""
HELD = 'rate_limiter { resources [ { name: "%s" count: 1 } ] }'


def config(count: int, scheduler: str = "", *, batch: int = 8, limiter: str = "") -> str:
    group = f"instance_group [ {{ kind: KIND_CPU count: {count} {limiter} }} ]\n"
    return f'backend: "python"\nmax_batch_size: {batch}\n{IO}{group}{scheduler}\n'


LATE = "dynamic_batching { max_queue_delay_microseconds: 300000 }"
PREFERRED = "dynamic_batching { preferred_batch_size: [ %d ] max_queue_delay_microseconds: 300000 }"
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 60000000 }"

CASES: dict[str, tuple[str, str, str, str]] = {
    "single": (config(1, batch=1), "instance", "more instances (instance_group.count)", config(4, batch=1)),
    "unbatched": (config(1), "scheduler", "dynamic_batching would have them executed", config(1, "dynamic_batching {}")),
    "full": (
        config(1, "dynamic_batching {}", batch=2),
        "max_batch_size",
        "batches are full (2.0 of 2 rows): a larger max_batch_size",
        config(1, "dynamic_batching {}", batch=8),
    ),
    "late": (config(1, LATE), "batch_delay", "a shorter max_queue_delay_microseconds", config(1, LATE.replace("300000", "1000"))),
    "preferred": (
        config(1, PREFERRED % 8, batch=16),
        "preferred_batch_size",
        "had a preferred size (8), most have 4",
        config(1, PREFERRED % 4, batch=16),
    ),
    "limited": (
        config(4, batch=1, limiter=HELD % "scarce"),
        "rate_limiter",
        "instances that need less",
        config(4, batch=1, limiter=HELD % "ample"),
    ),
    "sequences": (
        config(1, SEQUENCES, batch=1),
        "sequence_slot",
        "more instances, a larger max_batch_size",
        config(4, SEQUENCES, batch=1),
    ),
}
"""The configuration, the limit that binds, words of the advice, and the configuration that follows it."""

CLIENTS = 4
MORE_CLIENTS = 8
"""So that more wait than a full batch takes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("advice")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    for name, (before, _, _, _) in CASES.items():
        ModelFolder(folder, name).config(before).python(SLEEPS)
    ModelFolder(folder, "called").config(config(1, batch=1)).python(SLEEPS)
    ModelFolder(folder, "caller").config(config(2, batch=1)).python(CALLS)
    ModelFolder(folder, "quick").config(config(1)).python(SLEEPS.replace("0.05", "0"))
    ModelFolder(folder, "chain").config(ENSEMBLE + IO).file("1/nothing", "")
    flags = ["--model-control-mode=explicit", "--load-model=*", "--rate-limit=execution_count"]
    flags += ["--rate-limit-resource=scarce:1", "--rate-limit-resource=ample:4"]
    with ServerProcess(*flags, repositories=[folder]) as running:
        yield running


class Load:
    """Clients that each ask again as soon as they are answered. `count` requests were answered."""

    def __init__(self, server: ServerProcess, model: str) -> None:
        self._server = server
        self._model = model
        self._stopped = False
        clients = MORE_CLIENTS if model == "full" else CLIENTS
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(clients)]
        self.counts = [0] * clients

    @property
    def count(self) -> int:
        return sum(self.counts)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join(30)

    def _run(self, number: int) -> None:
        client = tritonclient.http.InferenceServerClient(self._server.http, network_timeout=60, connection_timeout=60)
        given = tritonclient.http.InferInput("X", [1, 1], "INT32")
        given.set_data_from_numpy(np.ones((1, 1), np.int32))
        over = False
        while not over:
            over = self._stopped
            place = {"sequence_id": number + 1, "sequence_start": not self.counts[number], "sequence_end": over}
            client.infer(self._model, [given], **(place if self._model == "sequences" else {}))
            self.counts[number] += 1
        client.close()


@contextmanager
def load(server: ServerProcess, model: str) -> Iterator[Load]:
    running = Load(server, model)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def explained(server: ServerProcess, model: str) -> dict[str, Any]:
    document = client_of(server.http).get(f"/v2/models/{model}/explain")
    assert isinstance(document, dict)
    found: dict[str, Any] = document["explanations"][0]
    return found


def wait_limit(server: ServerProcess, model: str, limit: str, words: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}

    def binds() -> bool:
        found.update(explained(server, model))
        return found["limit"] == limit and any(words in sentence for sentence in found["advice"])

    try:
        wait_until(binds)
    except TimeoutError:
        raise AssertionError(f"{model}: {found['limit']}, {found['advice']}, {found['recent']}") from None
    return found


def rate(running: Load) -> float:
    """Requests in a second, measured over at least a second."""
    count, begun_s = running.count, time.monotonic()
    wait_until(lambda: time.monotonic() - begun_s > 1 and running.count >= count + 4)
    return (running.count - count) / (time.monotonic() - begun_s)


def reload(server: ServerProcess, model: str, text: str) -> None:
    files = tritonclient.http.InferenceServerClient(server.http, network_timeout=60, connection_timeout=60)
    from google.protobuf import text_format
    from google.protobuf.json_format import MessageToJson
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    message = text_format.Parse(text, ModelConfig())
    files.load_model(model, config=MessageToJson(message, preserving_proto_field_name=True))
    files.close()


@pytest.mark.parametrize("model", CASES)
def test_what_it_says_binds_and_the_change_helps(server: ServerProcess, model: str) -> None:
    _, limit, words, after = CASES[model]
    with load(server, model) as running:
        found = wait_limit(server, model, limit, words)
        assert words in found["advice"][0]
        before = rate(running)
    reload(server, model, after)
    with load(server, model) as running:
        wait_until(lambda: running.count > 8)
        changed = rate(running)
        assert explained(server, model)["limit"] != limit
    assert changed > 1.5 * before, (before, changed)


def test_more_instances_of_a_caller_would_wait_for_what_it_calls(server: ServerProcess) -> None:
    with load(server, "caller"):
        found = wait_limit(server, "caller", "called_model")
        assert "Executions wait for the model 'called'" in found["advice"][0]
        assert not any("instance_group" in sentence for sentence in found["advice"])
        [called] = found["activity"]["called"]
        assert (called["name"], called["calls"] >= 1) == ("called", True)


def test_an_ensemble_names_its_member(server: ServerProcess) -> None:
    with load(server, "chain"):
        wait_limit(server, "chain", "member", "'single'")


def test_a_worker_that_is_stopped_is_said_long_before_it_counts_as_hanging(server: ServerProcess, folder: Path) -> None:
    with load(server, "called") as running:
        wait_until(lambda: running.count > 10)
        worker = int((folder / "called" / "pid").read_text())
        os.kill(worker, signal.SIGSTOP)
        try:
            found = wait_limit(server, "called", "instance", "is stopped")
            assert "usual ones take 5" in json.dumps(found["advice"])
        finally:
            os.kill(worker, signal.SIGCONT)
