"""An application for each model, and one for the routes of the server."""

from __future__ import annotations

import json
import queue
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from openai import OpenAI
from tritonclient.utils import InferenceServerException

from .repository import build, copy_of
from .serving import HAPROXY, configure, environment, serving, until

HTTP, GRPC = "127.0.0.1:8000", "127.0.0.1:8001"
MODELS = ("simple", "simple2", "caller", "asker", "writer", "repeat", "teller", "steps", "waiter", "waits")
ROW = np.arange(16, dtype=np.int32).reshape(1, 16)


_CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            called = pb_utils.InferenceRequest(model_name="simple", requested_output_names=["OUTPUT0"], inputs=request.inputs())
            answer = called.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            answers.append(pb_utils.InferenceResponse(answer.output_tensors()))
        return answers
"""

_CALLER_CONFIG = """
name: "caller"
backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] } ]
parameters { key: "ray.beside" value { string_value: "simple" } }
"""


_TELLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            called = pb_utils.InferenceRequest(model_name="repeat", requested_output_names=["OUT"], inputs=request.inputs())
            for answer in called.exec(decoupled=True):
                if answer.has_error():
                    sender.send(pb_utils.InferenceResponse(error=answer.error()))
                elif answer.output_tensors():
                    sender.send(pb_utils.InferenceResponse(answer.output_tensors()))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

_TELLER_CONFIG = """
name: "teller"
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "N" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
parameters { key: "ray.calls" value { string_value: "repeat" } }
"""

_WAITER = """
import time

class TritonPythonModel:
    def execute(self, requests):
        while not all(request.is_cancelled() for request in requests):
            time.sleep(0.01)
        raise RuntimeError("nobody waits")
"""

_STEPS_CONFIG = """
name: "steps"
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] } ]
ensemble_scheduling { step [
  {
    model_name: "simple"
    model_version: -1
    input_map [ { key: "INPUT0" value: "INPUT0" }, { key: "INPUT1" value: "INPUT1" } ]
    output_map [ { key: "OUTPUT0" value: "OUTPUT0" } ]
  }
] }
parameters { key: "ray.calls" value { string_value: "simple" } }
"""


def write_callers(repository: Path) -> None:
    """`caller` has the model that it calls in its replica, `asker` and the ensemble `steps` have it in the application of that
    model, as `teller` has a decoupled one, and `waits` one that answers nobody."""
    for name, way in ("caller", "ray.beside"), ("asker", "ray.calls"):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(_CALLER)
        config = _CALLER_CONFIG.replace("caller", name).replace("ray.beside", way)
        (repository / name / "config.pbtxt").write_text(config)
    (repository / "steps" / "1").mkdir(parents=True)
    (repository / "steps" / "config.pbtxt").write_text(_STEPS_CONFIG)
    (repository / "waiter" / "1").mkdir(parents=True)
    (repository / "waiter" / "1" / "model.py").write_text(_WAITER)
    (repository / "waiter" / "config.pbtxt").write_text(_CALLER_CONFIG.replace("caller", "waiter").partition("parameters")[0])
    (repository / "waits" / "1").mkdir(parents=True)
    (repository / "waits" / "config.pbtxt").write_text(_STEPS_CONFIG.replace("steps", "waits").replace("simple", "waiter"))
    (repository / "teller" / "1").mkdir(parents=True)
    (repository / "teller" / "1" / "model.py").write_text(_TELLER)
    (repository / "teller" / "config.pbtxt").write_text(_TELLER_CONFIG)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpclient.InferenceServerClient]:
    folder = tmp_path_factory.mktemp("per-model")
    repository = build(folder / "models")
    copy_of(repository, "simple", "simple2")
    write_callers(repository)
    models = f"models={','.join(MODELS)}"
    words = (f"repository={repository},docs/examples/openai/models", "per_model=true", models, "cpus=0.1", "allow_openai=true")
    environ = environment(folder / "home", **HAPROXY)
    served = serving(configure(folder / "serve.yaml", *words), folder / "log", environ, f"http://{HTTP}/v2/health/ready")
    with served, httpclient.InferenceServerClient(HTTP, network_timeout=60) as client:
        until(lambda: [row["state"] for row in _rows(client)] == ["READY"] * len(MODELS), seconds=120)
        yield client


def _rows(client: httpclient.InferenceServerClient) -> list[dict[str, Any]]:
    try:
        return [row for row in client.get_model_repository_index() if row["name"] in MODELS]
    except Exception as error:  # applications come one after the other
        raise OSError(str(error)) from None


def _inputs(module: Any) -> list[Any]:
    found = []
    for name in ("INPUT0", "INPUT1"):
        tensor = module.InferInput(name, ROW.shape, "INT32")
        tensor.set_data_from_numpy(ROW)
        found.append(tensor)
    return found


def test_http_clients_reach_each_model_at_its_url(client: httpclient.InferenceServerClient) -> None:
    for name in ("simple", "simple2"):
        assert client.is_model_ready(name)
        assert client.get_model_metadata(name)["name"] == name
        answer = client.infer(name, _inputs(httpclient))
        assert answer.get_response()["model_name"] == name
        assert (answer.as_numpy("OUTPUT0") == 2 * ROW).all()


def test_the_servers_routes_speak_for_all_models(client: httpclient.InferenceServerClient) -> None:
    client.infer("simple", _inputs(httpclient))
    counts = {each["name"]: each["inference_count"] for each in client.get_inference_statistics()["model_stats"]}
    assert set(counts) == set(MODELS)
    assert counts["simple"] > 0
    client.unload_model("simple2")
    assert {row["name"]: row["state"] for row in _rows(client)} == {**dict.fromkeys(MODELS, "READY"), "simple2": "UNAVAILABLE"}
    with pytest.raises(InferenceServerException, match="has no available versions"):
        client.infer("simple2", _inputs(httpclient))
    client.load_model("simple2")
    assert (client.infer("simple2", _inputs(httpclient)).as_numpy("OUTPUT0") == 2 * ROW).all()


def test_grpc_clients_name_the_application(client: httpclient.InferenceServerClient) -> None:
    with grpcclient.InferenceServerClient(GRPC) as grpc:
        for name in ("simple", "simple2"):
            assert (grpc.infer(name, _inputs(grpcclient), headers={"application": name}).as_numpy("OUTPUT0") == 2 * ROW).all()
        assert {row.name for row in grpc.get_model_repository_index(headers={"application": "tpy"}).models} >= {
            "simple",
            "simple2",
        }


def test_a_model_has_those_that_it_calls_beside_it(client: httpclient.InferenceServerClient) -> None:
    assert (client.infer("caller", _inputs(httpclient)).as_numpy("OUTPUT0") == 2 * ROW).all()


@pytest.mark.parametrize("name", ["asker", "steps"])
def test_a_model_or_an_ensemble_calls_one_of_another_application(client: httpclient.InferenceServerClient, name: str) -> None:
    def executions() -> int:
        return int(client.get_inference_statistics("simple")["model_stats"][0]["execution_count"])

    before = executions()
    assert (client.infer(name, _inputs(httpclient)).as_numpy("OUTPUT0") == 2 * ROW).all()
    assert executions() == before + 1
    client.unload_model("simple")
    with pytest.raises(InferenceServerException, match="'simple' has no available versions"):
        client.infer(name, _inputs(httpclient))
    client.load_model("simple")
    assert (client.infer(name, _inputs(httpclient)).as_numpy("OUTPUT0") == 2 * ROW).all()


def test_a_decoupled_model_of_another_application_sends_all_responses() -> None:
    answers: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    count = grpcclient.InferInput("N", [1], "INT32")
    count.set_data_from_numpy(np.array([100], np.int32))
    with grpcclient.InferenceServerClient(GRPC) as grpc:
        grpc.start_stream(lambda result, error: answers.put((result, error)), headers={"application": "teller"})
        grpc.async_stream_infer("teller", [count])
        found = [answers.get(timeout=60) for _ in range(100)]
        grpc.stop_stream()
    assert [None if result is None else result.as_numpy("OUT").tolist() for result, _ in found] == [[n] for n in range(100)]


def test_a_request_that_is_cancelled_is_cancelled_in_the_other_application(client: httpclient.InferenceServerClient) -> None:
    def cancelled() -> bool:
        [row] = client.get_inference_statistics("waiter")["model_stats"]
        return bool(row["inference_stats"]["fail"]["count"])

    with grpcclient.InferenceServerClient(GRPC) as grpc, pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        grpc.infer("waits", _inputs(grpcclient), headers={"application": "waits"}, client_timeout=3)
    until(cancelled, seconds=20)


def _post(path: str, body: object) -> Any:
    request = urllib.request.Request(f"http://{HTTP}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as reply:
        return json.load(reply)


def test_other_apis_are_below_the_url_of_the_model(client: httpclient.InferenceServerClient) -> None:
    row = {"INPUT0": [1] * 16, "INPUT1": [2] * 16}
    found = _post("/v2/models/simple/v1/models/simple:predict", {"instances": [row]})
    assert found["predictions"][0]["OUTPUT0"] == [3] * 16
    with OpenAI(base_url=f"http://{HTTP}/v2/models/writer/v1", api_key="none", max_retries=0) as openai:
        assert openai.completions.create(model="writer", prompt="every request", max_tokens=3).choices[0].text


def test_who_asks_the_servers_application_for_a_model_is_told_where_it_is(client: httpclient.InferenceServerClient) -> None:
    text = (
        "model 'simple' is served by its own application: ask below /v2/models/simple, over gRPC with the metadata "
        "'application: simple'"
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        _post("/v1/models/simple:predict", {"instances": [[1]]})
    assert (refused.value.code, json.load(refused.value)["error"]) == (404, text)
    with grpcclient.InferenceServerClient(GRPC) as grpc, pytest.raises(InferenceServerException) as raised:
        grpc.infer("simple", _inputs(grpcclient), headers={"application": "tpy"})
    assert (raised.value.status(), raised.value.message()) == ("StatusCode.NOT_FOUND", text)
