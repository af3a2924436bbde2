"""--tenants-file with stock clients and a frontend process. The how-to page on it is run in one process."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tpy.frontends.access.config import digest, key_entry

from .repositories import ModelFolder, parameter
from .server import ServerProcess, run_tpy
from .waiting import wait_until

TENANTS = """
default = "rest"
header = "x-tenant"
trusted_proxies = ["127.0.0.1"]

[[tenants]]
name = "search"
keys = ["search-key"]
weight = 3

[[tenants]]
name = "slow"
requests_per_s = 0.01
burst = 1

[[tenants]]
name = "narrow"
concurrency = 1

[[tenants]]
name = "short"
queue_requests = 1

[[tenants]]
name = "rest"
"""
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "INT32", "data": [1]}]}).encode()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    home = tmp_path_factory.mktemp("shared")
    ModelFolder(home / "models", "quick").identity("dynamic_batching { }")
    ModelFolder(home / "models", "lazy").identity(parameter("execute_delay_ms", 400))
    (home / "auth.toml").write_text(key_entry("search-key", digest("key-of-search"), ["infer"], ["*"]))
    (home / "tenants.toml").write_text(TENANTS)
    flags = (
        f"--auth-config={home / 'auth.toml'}",
        f"--tenants-file={home / 'tenants.toml'}",
        "--frontend-processes=1",
    )
    with ServerProcess(*flags, repositories=[home / "models"]) as server:
        yield server, home / "tenants.toml"


def ask(server: ServerProcess, model: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(server.http, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", f"/v2/models/{model}/infer", BODY, named)
    answer = connection.getresponse()
    answer.text = answer.read().decode()  # type: ignore[attr-defined]
    connection.close()
    return answer


def metric(server: ServerProcess, name: str) -> float:
    connection = http.client.HTTPConnection(server.metrics, timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


def test_requests_are_counted_for_their_tenants(shared: tuple[ServerProcess, Path]) -> None:
    server, _ = shared
    assert ask(server, "quick", X_API_Key="key-of-search").status == 200
    assert ask(server, "quick", X_Tenant="search").status == 200
    assert ask(server, "quick").status == 200
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        tensor = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
        client.infer("quick", [tensor], headers={"x-tenant": "search"})
        client.infer("quick", [tensor], headers={"authorization": "Bearer key-of-search"})
    assert metric(server, 'tpy_tenant_requests_total{tenant="search"}') == 4
    assert metric(server, 'tpy_tenant_requests_total{tenant="rest"}') == 1
    assert metric(server, 'tpy_tenant_instance_seconds_total{tenant="search"}') > 0


def test_a_rate_is_kept_on_both_protocols(shared: tuple[ServerProcess, Path]) -> None:
    server, _ = shared
    answers = [ask(server, "quick", X_Tenant="slow") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert 1 <= int(answers[1].headers["retry-after"]) <= 100
    assert "tenant 'slow' has sent more than its 0.01 requests a second" in answers[1].text  # type: ignore[attr-defined]
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        tensor = tritonclient.grpc.InferInput("INPUT0", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
        with pytest.raises(InferenceServerException, match="tenant 'slow' has sent more") as refused:
            client.infer("quick", [tensor], headers={"x-tenant": "slow"})
        assert "RESOURCE_EXHAUSTED" in str(refused.value.status())
    assert metric(server, 'tpy_tenant_refusals_total{limit="rate",tenant="slow"}') == 2


def test_concurrency_and_the_share_of_a_queue(shared: tuple[ServerProcess, Path]) -> None:
    server, _ = shared
    with ThreadPoolExecutor(5) as threads:
        answers = list(threads.map(lambda tenant: ask(server, "lazy", X_Tenant=tenant), ("narrow", "narrow", *["short"] * 3)))
    statuses = sorted(answer.status for answer in answers[:2]), sorted(answer.status for answer in answers[2:])
    assert statuses[0] == [200, 429]
    assert 429 in statuses[1]
    texts = [answer.text for answer in answers if answer.status == 429]  # type: ignore[attr-defined]
    assert any("tenant 'narrow' has 1 requests in the server, its concurrency is 1" in text for text in texts)
    assert any("tenant 'short' has 1 requests in the queue of this model, its queue_requests is 1" in text for text in texts)
    assert ask(server, "lazy", X_Tenant="narrow").status == 200


def test_the_file_is_read_again(shared: tuple[ServerProcess, Path]) -> None:
    server, file = shared
    file.write_text(TENANTS.replace("weight = 3", "weight = 0"))
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "tenant 'search': weight is 0, expected 1 to 1,000,000" in server.log)
    assert metric(server, 'tpy_tenant_weight{tenant="search"}') == 3
    file.write_text(TENANTS.replace("weight = 3", "weight = 4"))
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: metric(server, 'tpy_tenant_weight{tenant="search"}') == 4)


def test_a_wrong_file_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "tenants.toml").write_text('[[tenants]]\nname = "a"\nkeys = ["nobody"]\n')
    ended = run_tpy("serve", f"--model-repository={tmp_path}", f"--tenants-file={tmp_path / 'tenants.toml'}")
    assert ended.code != 0
    assert "tenant 'a' has the key 'nobody': --auth-config has no keys" in ended.err
