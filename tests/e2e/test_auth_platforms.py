"""--auth-config on the ports of other protocols: MLflow, OpenAI, SageMaker, TensorFlow Serving, TorchServe, Vertex AI."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.error import HTTPError

import grpc
import pytest
from openai import AuthenticationError, NotFoundError, OpenAI, PermissionDeniedError, RateLimitError

from tests.docs.pages import ROOT
from tpy.frontends.access.config import digest, key_entry
from tpy_platforms.tensorflow_serving.protos import pb, tf

from .repositories import ModelFolder
from .server import ServerProcess
from .test_origin import refused
from .waiting import wait_until

EXAMPLES = ROOT / "docs" / "examples" / "openai" / "models"
BODY = b'{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}'
KEYS = {
    "writer": (["infer"], ["writer"]),
    "same": (["infer"], ["same"]),
    "slow": (["infer"], ["*"]),
    "admin": (["manage", "observe"], ["*"]),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("platforms")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[ServerProcess]:
    ModelFolder(home / "models", "same").identity()
    entries = [key_entry(name, digest(f"key-of-{name}"), roles, models) for name, (roles, models) in KEYS.items()]
    entries[2] += "\nrequests_per_s = 0.01\nburst = 1\n"
    (home / "auth.toml").write_text("\n".join(entries))
    flags = (
        f"--auth-config={home / 'auth.toml'}",
        "--auth-required=true",
        f"--access-log={home / 'access.log'}",
        "--access-log-format=json",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--allow-mlflow=true",
        "--mlflow-model=same",
        "--allow-openai=true",
        "--allow-sagemaker=true",
        "--sagemaker-default-model=same",
        "--allow-tensorflow-serving=true",
        "--allow-torchserve=true",
        "--allow-vertex-ai=true",
        "--vertex-ai-default-model=same",
        "--vertex-ai-predict-route=/predict",
        "--vertex-ai-health-route=/health",
    )
    with ServerProcess(*flags, repositories=[home / "models", EXAMPLES]) as running:
        yield running
        assert "key-of-" not in running.log


def client(server: ServerProcess, key: str) -> OpenAI:
    return OpenAI(base_url=f"http://{server.address('OpenAI HTTPService')}/v1", api_key=f"key-of-{key}", max_retries=0)


def call(
    server: ServerProcess,
    service: str,
    path: str,
    body: bytes | None = None,
    *,
    key: str = "",
    method: str | None = None,
    to: str = "",
) -> tuple[int, Mapping[str, str]]:
    headers = {"X-Vertex-Ai-Triton-Redirect": to} if to else {}
    if service == "MLflow":
        headers["Content-Type"] = "application/json"
    if key:
        headers["X-API-Key"] = f"key-of-{key}"
    request = urllib.request.Request(f"http://{server.address(f'{service} HTTPService')}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers
    except HTTPError as error:
        status, text, headers = error.code, error.read().decode(), error.headers
    assert "key-of-" not in text
    return status, headers


def test_openais_client_with_keys(server: ServerProcess) -> None:
    with client(server, "writer") as writer:
        assert writer.completions.create(model="writer", prompt="a", max_tokens=2).choices[0].text
        chat = writer.chat.completions.create(
            model="writer", messages=[{"role": "user", "content": "a"}], max_tokens=2, stream=True
        )
        assert len(list(chat)) >= 2
        assert [model.id for model in writer.models.list()] == ["writer"], "those that this key may ask"
        for refused in (
            lambda: writer.embeddings.create(model="embedder", input="a"),
            lambda: writer.completions.create(model="nobody", prompt="a"),
            lambda: writer.models.retrieve("embedder"),
        ):
            with pytest.raises(PermissionDeniedError, match="'writer' has no role"):
                refused()
    with client(server, "nobody") as nobody:
        for unknown in (nobody.models.list, lambda: nobody.completions.create(model="writer", prompt="a")):
            with pytest.raises(AuthenticationError, match="not known here") as told:
                unknown()
            assert told.value.response.headers["www-authenticate"] == 'Bearer realm="tpy"'
    with client(server, "admin") as admin, pytest.raises(PermissionDeniedError, match="no role 'infer'"):
        admin.completions.create(model="writer", prompt="a")
    with client(server, "slow") as slow:
        slow.embeddings.create(model="embedder", input="a")
        with pytest.raises(RateLimitError, match="too many requests") as late:
            slow.embeddings.create(model="embedder", input="a")
        assert 1 <= int(late.value.response.headers["retry-after"]) <= 100
        with pytest.raises(NotFoundError):
            slow.completions.create(model="nobody", prompt="a")


def test_openais_port_loads_for_managers_only(server: ServerProcess) -> None:
    for key, status in (("", 401), ("writer", 403), ("admin", 200)):
        assert call(server, "OpenAI", "/v1/models/writer/load", b"", key=key)[0] == status
    assert call(server, "OpenAI", "/health/ready")[0] == 200


def test_sagemaker_with_keys(server: ServerProcess) -> None:
    assert call(server, "Sagemaker", "/ping")[0] == 200
    for key, status in (("", 401), ("writer", 403), ("admin", 403), ("same", 200)):
        assert call(server, "Sagemaker", "/invocations", BODY, key=key)[0] == status
    load = json.dumps({"model_name": "a", "url": "/opt/ml/models/a/model"}).encode()
    for method, path, body in (("POST", "/models", load), ("GET", "/models/a", None), ("DELETE", "/models/a", None)):
        for key, status in (("", 401), ("same", 403)):
            assert call(server, "Sagemaker", path, body, key=key, method=method)[0] == status, (method, key)
    assert call(server, "Sagemaker", "/models", load, key="admin")[0] == 400, "there is no such folder"
    assert call(server, "Sagemaker", "/models/a", key="admin", method="DELETE")[0] == 404


def test_mlflow_with_keys(server: ServerProcess) -> None:
    assert call(server, "MLflow", "/ping")[0] == 200
    for path in ("/invocations", "/models/same/invocations", "/models/same/versions/1/invocations"):
        for key, status in (("", 401), ("writer", 403), ("admin", 403), ("same", 200)):
            assert call(server, "MLflow", path, b'{"inputs": [[7]]}', key=key)[0] == status, (path, key)
    assert call(server, "MLflow", "/models/writer/invocations", b'{"inputs": [["a"]]}', key="same")[0] == 403


def test_tensorflow_serving_with_keys(server: ServerProcess) -> None:
    rows = b'{"instances": [[7]]}'
    for key, status in (("", 401), ("writer", 403), ("admin", 403), ("same", 200)):
        assert call(server, "TensorFlow Serving", "/v1/models/same:predict", rows, key=key)[0] == status, key
    for key, status in (("", 401), ("writer", 403), ("admin", 200), ("same", 200)):
        for path in ("/v1/models/same", "/v1/models/same/metadata"):
            assert call(server, "TensorFlow Serving", path, key=key)[0] == status, (path, key)
    request = pb.PredictRequest(model_spec={"name": "same"})
    request.inputs["INPUT0"].CopyFrom(
        tf.TensorProto(dtype="DT_INT32", tensor_shape={"dim": [{"size": 1}, {"size": 1}]}, int_val=[7])
    )
    reload = pb.ReloadConfigRequest(config={"model_config_list": {"config": [{"name": "nobody"}]}})
    denied = ("PERMISSION_DENIED", "UNAUTHENTICATED")
    with grpc.insecure_channel(server.address("TensorFlow Serving GRPCService") or "") as channel:
        for path, message, allowed in (
            ("PredictionService/Predict", request, "same"),
            ("PredictionService/GetModelMetadata", pb.GetModelMetadataRequest(model_spec={"name": "same"}), ""),
            ("ModelService/GetModelStatus", pb.GetModelStatusRequest(model_spec={"name": "same"}), "same"),
            ("ModelService/HandleReloadConfigRequest", reload, "admin"),
        ):
            method = channel.unary_unary(f"/tensorflow.serving.{path}", request_serializer=type(message).SerializeToString)
            for key in ("", "writer", "same", "admin"):
                metadata = (("x-api-key", f"key-of-{key}"),) if key else ()
                try:
                    method(message, metadata=metadata, timeout=30)
                    status = "OK"
                except grpc.RpcError as error:
                    status = error.code().name
                if key in ("", "writer"):
                    assert status == denied[not key], (path, key)
                elif key == allowed:
                    assert status == ("NOT_FOUND" if message is reload else "OK"), path


def test_torchserve_with_keys(server: ServerProcess) -> None:
    assert call(server, "TorchServe", "/ping")[0] == 200
    for key, status in (("", 401), ("writer", 403), ("admin", 403), ("same", 501)):  # it is not made of an archive
        for path in ("/predictions/same", "/wfpredict/same"):
            assert call(server, "TorchServe", path, BODY, key=key)[0] == status, (path, key)
    for method, path in (("POST", "/models?url=same"), ("PUT", "/models/same"), ("DELETE", "/models/same"), ("GET", "/models")):
        for key, status in (("", 401), ("same", 403)):
            assert call(server, "TorchServe", path, key=key, method=method)[0] == status, (method, key)
    assert call(server, "TorchServe", "/models/same", key="admin")[0] == 200
    assert call(server, "TorchServe", "/models?url=none", key="admin", method="POST")[0] == 404


def test_vertex_ai_with_keys(server: ServerProcess) -> None:
    assert call(server, "Vertex AI", "/health")[0] == 200
    for key, status in (("", 401), ("writer", 403), ("same", 200)):
        assert call(server, "Vertex AI", "/predict", BODY, key=key)[0] == status
    for target, needed, others in (
        ("v2/models/same/infer", "same", ("writer", "admin")),
        ("v2/models/same", "same", ("writer",)),
        ("v2/models/same/config", "same", ("writer",)),
        ("v2/models/same/stats", "admin", ("same",)),
        ("v2/models/stats", "admin", ("same",)),
        ("v2/repository/index", "admin", ("same",)),
        ("metrics", "admin", ("same",)),
    ):
        body = BODY if target.endswith("infer") else b"{}"
        for key, status in (("", 401), *((other, 403) for other in others), (needed, 200)):
            assert call(server, "Vertex AI", "/predict", body, key=key, to=target)[0] == status, (target, key)


@pytest.mark.parametrize(
    ("service", "path", "to", "protocol"),
    [
        ("OpenAI", "/v1/completions", "", "openai"),
        ("Sagemaker", "/invocations", "", "sagemaker"),
        ("Sagemaker", "/models/a/invoke", "", "sagemaker"),
        ("Vertex AI", "/predict", "", "vertex-ai"),
        ("Vertex AI", "/predict", "v2/models/same/versions/1/infer", "vertex-ai"),
    ],
)
def test_refused_inference_is_counted_and_logged(
    server: ServerProcess, home: Path, service: str, path: str, to: str, protocol: str
) -> None:
    def lines() -> list[dict[str, object]]:
        return [json.loads(line) for line in (home / "access.log").read_text().splitlines()]

    counted, logged = refused(server, "UNAUTHENTICATED", "key-of-admin"), len(lines())
    assert call(server, "Vertex AI", "/predict", b"{}", key="nobody", to="v2/models/stats")[0] == 401, "this is no inference"
    assert call(server, service, path, BODY, key="nobody", to=to)[0] == 401
    wait_until(lambda: len(lines()) > logged)
    [line] = lines()[logged:]
    assert (line["protocol"], line["status"]) == (protocol, "Unauthenticated")
    assert refused(server, "UNAUTHENTICATED", "key-of-admin") == counted + 1
