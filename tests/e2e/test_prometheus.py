"""A real Prometheus scrapes a real `tpy serve`: the dashboard's queries answer, rules are evaluated, exemplars lead to traces."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.docs.monitoring import RULES, expressions, names_in, rules

from .repositories import ModelFolder, parameter
from .server import ServerProcess
from .waiting import wait_until

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian's package of that name)")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TOKENS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TOKENS_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
TENANTS = """
default = "rest"
[[tenants]]
name = "search"
weight = 3
[[tenants]]
name = "rest"
"""
WITHOUT_DATA = {"nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage"}
WITHOUT_DATA |= {"nv_energy_consumption", "nv_inference_request_failure"}
WITHOUT_DATA |= {"tpy_memory_budget_gpu_used_bytes", "tpy_memory_budget_gpu_bytes", "tpy_batching_padding_ratio"}
"""Series that this server lacks, or that the query leaves out while nothing fails."""


class Prometheus:
    """The API of one that runs."""

    def __init__(self, address: str) -> None:
        self.address = address

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        assert found["status"] == "success", found
        return found["data"]

    def has_data(self, promql: str) -> bool:
        return any(each["value"][1] != "NaN" for each in self.get("query", query=promql)["result"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("prometheus")
    ModelFolder(folder / "models", "m").identity("dynamic_batching { }")
    ModelFolder(folder / "models", "cached").identity("response_cache { enable: true }")
    ModelFolder(folder / "models", "tokens").config(TOKENS_CONFIG).python(TOKENS)
    ModelFolder(folder / "models", "on_demand").identity(parameter("load", "on_demand"))
    tuned = parameter("batching", "auto") + parameter("target_p99_ms", 50)
    ModelFolder(folder / "models", "tuned").identity(f"dynamic_batching {{ }}\n{tuned}")
    plan = parameter("rollout", json.dumps({"steps": [{"percent": 50, "seconds": 3600}]}).replace('"', '\\"'))
    ModelFolder(folder / "models", "new").identity(f"version_policy {{ all {{ }} }}\n{plan}", versions=(1, 2))
    (folder / "rollouts.json").write_text('{"new": {"version": 1}}')
    (folder / "tenants.toml").write_text(TENANTS)
    flags = ("histogram_latencies=true", "summary_latencies=true")
    with ServerProcess(
        *(f"--metrics-config={flag}" for flag in flags),
        "--cache-config=local,size=1048576",
        "--metrics-interval-ms=200",
        "--model-memory-budget=1GiB",
        f"--rollout-file={folder / 'rollouts.json'}",
        f"--tenants-file={folder / 'tenants.toml'}",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        f"--trace-config=triton,file={folder / 'traces.json'}",
        repositories=[folder / "models"],
    ) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("data")
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "tpy", "static_configs": [{"targets": [server.metrics]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        str(PROMETHEUS),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=warn",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        try:
            running = Prometheus(f"127.0.0.1:{port}")
            wait_until(running.is_ready)
            yield running
        finally:
            process.terminate()


def post(server: ServerProcess, path: str, body: object) -> None:
    url = f"http://{server.http}/v2/models/{path}"
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
    except urllib.error.HTTPError as refusal:
        refusal.close()


def some_requests(server: ServerProcess) -> None:
    """To each model, and one that does not fit."""
    served = ("m", "cached", "on_demand", "tuned", "new", "new")
    for model, shape in (*((name, [1, 1]) for name in served), ("m", [1, 2])):
        given = {"name": "INPUT0", "datatype": "INT32", "shape": shape, "data": [1] * shape[1]}
        post(server, f"{model}/infer", {"inputs": [given]})
    post(server, "tokens/generate_stream", {"INPUT0": 1})


def test_every_query_of_the_dashboard_answers(server: ServerProcess, prometheus: Prometheus) -> None:
    """Those of what this server has no data of answer with nothing, but without an error."""
    asked = [promql for promql in expressions() if not names_in(promql) & WITHOUT_DATA]
    assert len(asked) > 25

    def unanswered() -> list[str]:
        some_requests(server)
        return [promql for promql in asked if not prometheus.has_data(promql)]

    wait_until(lambda: not unanswered(), within_s=60)
    for promql in expressions():
        prometheus.get("query", query=promql)


def test_the_target_is_scraped_in_openmetrics(server: ServerProcess, prometheus: Prometheus) -> None:
    """Triton's names are what they are in the text format."""
    wait_until(lambda: prometheus.has_data("up == 1"))
    [target] = prometheus.get("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    names = set(prometheus.get("label/__name__/values"))
    assert {"nv_inference_request_success", "tpy_inference_refused_total", "nv_inference_request_summary_us"} <= names
    assert not {name for name in names if name.startswith("nv_") and name.endswith("_total")}


def test_exemplars_lead_to_traces(server: ServerProcess, prometheus: Prometheus) -> None:
    families = ("tpy_inference_request_duration_seconds", "nv_inference_first_response_histogram_ms")

    def traced(family: str) -> list[str]:
        some_requests(server)
        found = prometheus.get("query_exemplars", query=f"{family}_bucket", start="0", end="4102444800")
        return [exemplar["labels"]["trace_id"] for each in found for exemplar in each["exemplars"]]

    for family in families:
        assert set(wait_until(lambda family=family: traced(family))) == {TRACE}


def test_the_rules_are_evaluated(prometheus: Prometheus) -> None:
    def evaluated() -> Any:
        groups = prometheus.get("rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found and all(rule["health"] == "ok" for rule in found) and found

    found = wait_until(evaluated)
    assert [rule["name"] for rule in found] == [rule["alert"] for rule in rules()]
    assert not [rule["name"] for rule in found if rule["state"] == "firing"]
