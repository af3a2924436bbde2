"""An application for each model, and one for the routes of the server."""

from __future__ import annotations

import json
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
MODELS = ("simple", "simple2", "caller", "asker", "writer")
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


def write_callers(repository: Path) -> None:
    """`caller` has the model that it calls in its replica, `asker` has it in the application of that model."""
    for name, way in ("caller", "ray.beside"), ("asker", "ray.calls"):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(_CALLER)
        config = _CALLER_CONFIG.replace("caller", name).replace("ray.beside", way)
        (repository / name / "config.pbtxt").write_text(config)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpclient.InferenceServerClient]:
    folder = tmp_path_factory.mktemp("per-model")
    repository = build(folder / "models")
    copy_of(repository, "simple", "simple2")
    write_callers(repository)
    models = "models=simple,simple2,caller,asker,writer"
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


def test_a_model_calls_one_of_another_application(client: httpclient.InferenceServerClient) -> None:
    def executions() -> int:
        return int(client.get_inference_statistics("simple")["model_stats"][0]["execution_count"])

    before = executions()
    assert (client.infer("asker", _inputs(httpclient)).as_numpy("OUTPUT0") == 2 * ROW).all()
    assert executions() == before + 1
    client.unload_model("simple")
    with pytest.raises(InferenceServerException, match="'simple' has no available versions"):
        client.infer("asker", _inputs(httpclient))
    client.load_model("simple")
    assert (client.infer("asker", _inputs(httpclient)).as_numpy("OUTPUT0") == 2 * ROW).all()


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
