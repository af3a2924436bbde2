"""Deadlines, cancellation, queue limits, priorities and batches, as clients, statistics and metrics see them."""

from __future__ import annotations

import json
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException

from tests.pace import with_patience

from .gated import Asker, GatedModel, asking, metrics
from .server import ServerProcess
from .waiting import wait_until

MODELS = {
    "plain": ("", 0),
    "enforcing": ('parameters { key: "TPY_REQUEST_TIMEOUT" value { string_value: "enforce" } }', 0),
    "batching": ("dynamic_batching { max_queue_delay_microseconds: 1000000 preferred_batch_size: [ 2, 4 ] }", 8),
    "limited": ("dynamic_batching { default_queue_policy { max_queue_size: 1 } }", 1),
    "impatient": ("dynamic_batching { default_queue_policy { default_timeout_microseconds: 150000 } }", 1),
    "prioritised": ("dynamic_batching { priority_levels: 3 default_priority_level: 2 }", 1),
    "cancelling": ("dynamic_batching { }", 4),
}
LATE_S = 0.8
"""The worst delay of an answer on a busy machine. What it waits for without its deadline does not come at all."""


class Rig:
    """One of the models with a way to ask it, and what the server counts about it."""

    def __init__(self, server: ServerProcess, model: GatedModel, asker: Asker) -> None:
        self.server = server
        self.model = model
        self.asker = asker

    def failures(self) -> dict[str, float]:
        """Failed requests by reason."""
        found = metrics(self.server)
        series = 'nv_inference_request_failure{{model="{}",reason="{}",version="1"}}'
        return {reason: found[series.format(self.model.name, reason)] for reason in ("OTHER", "BACKEND", "CANCELED", "REJECTED")}

    def statistics(self) -> dict[str, Any]:
        """The statistics of the model."""
        with InferenceServerClient(self.server.http) as client:
            entry: dict[str, Any] = client.get_inference_statistics(self.model.name)["model_stats"][0]
            return entry

    def hang_up(self, request_id: str) -> socket.socket:
        """Send a request on a connection of its own; closing it resets the connection."""
        host, port = self.server.http.split(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        shape = [1, 1] if MODELS[self.model.name][1] else [1]
        inputs = [{"name": "INPUT0", "datatype": "INT32", "shape": shape, "data": [1]}]
        body = json.dumps({"id": request_id, "inputs": inputs}).encode()
        head = f"POST /v2/models/{self.model.name}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return connection


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, dict[str, GatedModel]]]:
    repository = tmp_path_factory.mktemp("deadlines") / "models"
    models = {name: GatedModel(repository, name, batching=text, batch=batch) for name, (text, batch) in MODELS.items()}
    with ServerProcess(repositories=[repository]) as server:
        yield server, models


@pytest.fixture
def rig(shared: tuple[ServerProcess, dict[str, GatedModel]], request: pytest.FixtureRequest) -> Iterator[Rig]:
    """The model that the test names in its marker."""
    server, models = shared
    model = models[request.param]
    with asking(server, model.name, batched=bool(MODELS[model.name][1])) as asker:
        yield Rig(server, model, asker)


def on(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rig", [name], indirect=True)


@on("plain")
def test_a_timeout_means_nothing_outside_of_queues_that_allow_it(rig: Rig) -> None:
    """Some clients send seconds for microseconds."""
    executing = rig.asker.ask("executing", 1, timeout_us=5)
    rig.model.wait_executing("executing")
    waiting = rig.asker.ask("waiting", 2, timeout_us=5)
    rig.asker.wait_queued(1)
    rig.model.open_gate("executing", "waiting")
    assert (executing.result(), waiting.result()) == (1, 2)


@on("enforcing")
def test_an_enforced_timeout_ends_a_request_that_executes_or_waits(rig: Rig) -> None:
    before = rig.failures()
    started_s = time.monotonic()
    executing = rig.asker.ask("executing", timeout_us=200_000)
    rig.model.wait_executing("executing")
    waiting = rig.asker.ask("waiting", timeout_us=100_000)
    for request, limit_s in ((waiting, 0.1), (executing, 0.2)):
        with pytest.raises(InferenceServerException, match=r"^\[503\] .*Request timeout expired$"):
            request.result()
        assert limit_s <= time.monotonic() - started_s < limit_s + with_patience(LATE_S)
    assert rig.model.batches() == [["executing"]]
    rig.model.open_gate("executing", "next")
    assert rig.asker.ask("next", 5).result() == 5
    assert rig.model.batches() == [["executing"], ["next"]]
    after = rig.failures()
    assert sum(after.values()) - sum(before.values()) == 2
    assert after["REJECTED"] - before["REJECTED"] >= 1


@on("impatient")
def test_the_default_timeout_of_the_queue(rig: Rig) -> None:
    """It does not touch what executes."""
    executing = rig.asker.ask("executing", 1)
    rig.model.wait_executing("executing")
    started_s = time.monotonic()
    with pytest.raises(InferenceServerException, match=r"^\[503\] .*Request timeout expired$"):
        rig.asker.ask("waiting").result()
    assert 0.15 <= time.monotonic() - started_s < 0.15 + with_patience(LATE_S)
    assert rig.failures()["REJECTED"] == 1
    rig.model.open_gate("executing")
    assert executing.result() == 1


@on("limited")
def test_a_full_queue_refuses(rig: Rig) -> None:
    executing = rig.asker.ask("executing", 1)
    rig.model.wait_executing("executing")
    waiting = rig.asker.ask("waiting", 2)
    rig.asker.wait_queued(1)
    with pytest.raises(InferenceServerException, match=r"^\[503\] \[request id: refused\] Exceeds maximum queue size$"):
        rig.asker.ask("refused").result()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{rig.server.http}/v2/models/{rig.model.name}/generate", data=b'{"INPUT0": 3}')
    with caught.value as answer:
        assert (answer.code, answer.headers["Retry-After"]) == (503, "1")
    rig.model.open_gate("executing", "waiting")
    assert (executing.result(), waiting.result()) == (1, 2)


@on("prioritised")
def test_priorities_overtake(rig: Rig) -> None:
    requests = [rig.asker.ask("first", 0)]
    rig.model.wait_executing("first")
    for count, (name, priority) in enumerate((("low", 3), ("default", 0), ("high", 1)), 1):
        requests.append(rig.asker.ask(name, count, priority=priority))
        rig.asker.wait_queued(count)
    rig.model.open_gate("first", "low", "default", "high")
    assert [request.result() for request in requests] == [0, 1, 2, 3]
    assert rig.model.batches() == [["first"], ["high"], ["default"], ["low"]]


@on("batching")
def test_batches_are_formed_and_counted(rig: Rig) -> None:
    first = rig.asker.ask("first", 9)
    second = rig.asker.ask("second", 8)
    rig.model.wait_executing("first")  # two make a preferred batch, so they do not wait for more
    waiting = []
    for number in range(4):
        waiting.append(rig.asker.ask(f"w{number}", number))
        rig.asker.wait_queued(number + 1)
    rig.model.open_gate("first", "second", *(f"w{number}" for number in range(4)))
    assert [request.result() for request in (first, second, *waiting)] == [9, 8, 0, 1, 2, 3]
    assert [len(batch) for batch in rig.model.batches()] == [2, 4]
    entry = rig.statistics()
    assert (entry["inference_count"], entry["execution_count"]) == (6, 2)
    assert {batch["batch_size"]: batch["compute_infer"]["count"] for batch in entry["batch_stats"]} == {2: 1, 4: 1}


@on("cancelling")
def test_clients_that_hang_up_are_forgotten(rig: Rig) -> None:
    """One that executes is told, one that waits never executes, and the others of its batch get their answers."""
    blocker = rig.asker.ask("blocker", 1)
    rig.model.wait_executing("blocker")
    waiting = rig.hang_up("never")
    rig.asker.wait_queued(1)
    waiting.close()
    wait_until(lambda: rig.failures()["CANCELED"] == 1)
    rig.asker.wait_queued(0)

    executing = rig.hang_up("watching")
    rig.asker.wait_queued(1)
    companion = rig.asker.ask("companion", 7)
    rig.asker.wait_queued(2)
    rig.model.open_gate("blocker")
    rig.model.wait_executing("watching")
    assert rig.model.batches()[-1] == ["watching", "companion"]
    executing.close()
    wait_until(lambda: "watching" in rig.model.told())
    rig.model.open_gate("companion")
    assert (blocker.result(), companion.result()) == (1, 7)
    wait_until(lambda: rig.failures() == {"OTHER": 0, "BACKEND": 0, "CANCELED": 2, "REJECTED": 0})
    assert [batch for batch in rig.model.batches() if "never" in batch] == []
    stats = rig.statistics()["inference_stats"]
    assert (stats["success"]["count"], stats["fail"]["count"]) == (2, 2)


def test_the_books_balance(shared: tuple[ServerProcess, dict[str, GatedModel]]) -> None:
    """After all of the above: metrics and statistics say the same, and every request is counted once."""
    server, models = shared
    page = metrics(server)
    with InferenceServerClient(server.http) as client:
        entries = {entry["name"]: entry for entry in client.get_inference_statistics()["model_stats"]}
    assert set(entries) == set(models)
    for name, entry in entries.items():
        stats = entry["inference_stats"]
        label = f'{{model="{name}",version="1"}}'
        assert page[f"nv_inference_request_success{label}"] == stats["success"]["count"]
        assert page[f"nv_inference_count{label}"] == entry["inference_count"]
        assert page[f"nv_inference_exec_count{label}"] == entry["execution_count"]
        assert page[f"nv_inference_request_duration_us{label}"] == stats["success"]["ns"] // 1000
        assert page[f"nv_inference_pending_request_count{label}"] == 0
        failures = sum(
            value for series, value in page.items() if series.startswith(f'nv_inference_request_failure{{model="{name}"')
        )
        assert failures == stats["fail"]["count"]
        for part in ("queue", "compute_input", "compute_infer", "compute_output"):
            assert stats[part]["count"] == stats["success"]["count"], part
            assert page[f"nv_inference_{part}_duration_us{label}"] == stats[part]["ns"] // 1000
        assert entry["inference_count"] == stats["success"]["count"]  # every request had one row
        assert entry["execution_count"] == len(models[name].batches())
        assert sum(batch["compute_infer"]["count"] for batch in entry["batch_stats"]) <= entry["execution_count"]
