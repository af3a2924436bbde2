"""SageMaker's and Vertex AI's protocols, called as the platforms call them: plain HTTP, their variables, their headers."""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput

from .repositories import IDENTITY_PAIR, ModelFolder
from .server import ServerProcess

BODY = b'{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}'
SAGEMAKER_TYPE = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
FAILING = """
class TritonPythonModel:
    def execute(self, requests):
        raise MemoryError("CUDA out of memory")
"""


def call(
    address: str | None, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, method: str | None = None
) -> tuple[int, bytes, Mapping[str, str]]:
    request = urllib.request.Request(f"http://{address}{path}", body, dict(headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read(), answer.headers
    except HTTPError as error:
        return error.code, error.read(), error.headers


def binary_body() -> tuple[bytes, int]:
    """As the documentation of both platforms makes it: by the stock client."""
    tensor = InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[5]], np.int32))
    body, length = InferenceServerClient.generate_request_body([tensor])
    return body, length


def binary_output(body: bytes, content_type: str, prefix: str) -> list[list[int]]:
    assert content_type.startswith(prefix)
    length = int(content_type.removeprefix(prefix))
    result = InferenceServerClient.parse_response_body(body, header_length=length)
    return result.as_numpy("OUTPUT0").tolist()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    ModelFolder(path, "same").identity()
    ModelFolder(path, "full").config(f'backend: "python"\nmax_batch_size: 8\n{IDENTITY_PAIR}').python(FAILING)
    return path


@pytest.fixture(scope="module")
def sagemaker(repository: Path) -> Iterator[ServerProcess]:
    flags = (
        "--allow-sagemaker=true",
        "--sagemaker-thread-count=4",
        "--frontend-processes=1",
        "--http-restricted-api=model-repository:admin=key",
    )
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "same"}
    with ServerProcess(*flags, repositories=[repository], environment=environment) as server:
        yield server


def test_one_model_on_sagemaker(sagemaker: ServerProcess) -> None:
    address = sagemaker.address("Sagemaker HTTPService")
    assert call(address, "/ping")[0] == 200
    status, answer, _ = call(address, "/invocations", BODY)
    assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [7])
    body, length = binary_body()
    for headers in ({"Content-Type": f"{SAGEMAKER_TYPE}{length}"}, {"Inference-Header-Content-Length": str(length)}):
        status, answer, got = call(address, "/invocations", body, {**headers, "Accept-Encoding": "gzip"})
        assert status == 200
        assert binary_output(answer, got["Content-Type"], SAGEMAKER_TYPE) == [[5]]
        assert "Inference-Header-Content-Length" not in got
    assert "--sagemaker-thread-count has no effect" in sagemaker.log


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (f"text/plain; {SAGEMAKER_TYPE}1", "expect MIME type for binary data starts with"),
        (f"{SAGEMAKER_TYPE}x", "Unable to parse inference header size, got: x"),
        (f"{SAGEMAKER_TYPE}99999999999", "Unable to parse inference header size, value is out of range, got: 99999999999"),
        (f"{SAGEMAKER_TYPE}1000", "inference header size should be in range (0, "),
        (f"{SAGEMAKER_TYPE}-1", "inference header size should be in range (0, "),
        ("application/json", "failed to parse the request JSON buffer"),
    ],
)
def test_bad_requests_of_sagemaker(sagemaker: ServerProcess, kind: str, problem: str) -> None:
    status, answer, _ = call(sagemaker.address("Sagemaker HTTPService"), "/invocations", BODY[:-1], {"Content-Type": kind})
    assert status == 400
    assert problem in json.loads(answer)["error"]


def test_calls_that_sagemaker_does_not_make(sagemaker: ServerProcess) -> None:
    address = sagemaker.address("Sagemaker HTTPService")
    assert call(address, "/invocations")[0] == 405
    assert call(address, "/v2/models/same/infer", BODY)[0] == 404
    assert call(address, "/models")[0] == 403
    status, answer, _ = call(address, "/models", b'{"model_name": "a", "url": "/opt/ml/models/a/model"}', {"admin": "key"})
    assert status == 400
    assert b"/opt/ml/models/a/model" in answer


@pytest.mark.parametrize("kind", ["generate", "generate_stream"])
def test_generate_on_sagemaker(repository: Path, kind: str) -> None:
    environment = {
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "same",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": kind,
        "SAGEMAKER_TRITON_PING_MODE": "live",
    }
    with ServerProcess("--allow-sagemaker=true", repositories=[repository], environment=environment) as server:
        status, answer, headers = call(server.address("Sagemaker HTTPService"), "/invocations", b'{"INPUT0": 3}')
    assert status == 200
    assert b'"OUTPUT0":3' in answer
    assert headers["Content-Type"].startswith("text/event-stream") == (kind == "generate_stream")


@pytest.fixture
def archives() -> Iterator[Path]:
    """The folder of an archive, as SageMaker unpacks it."""
    root = Path("/opt/ml/models") / f"tpytest{os.getpid()}"
    try:
        root.mkdir(parents=True)
    except OSError as error:
        pytest.skip(f"SageMaker's folder cannot be made: {error}")
    yield root
    shutil.rmtree(root)


def test_many_models_on_sagemaker(archives: Path, repository: Path) -> None:
    ModelFolder(archives, "model").identity()
    hash_ = archives.name
    url = f"{archives}/model"

    def load(name: str, where: str, target: str) -> tuple[int, bytes, Mapping[str, str]]:
        body = json.dumps({"model_name": name, "url": where}).encode()
        return call(address, "/models", body, {"X-Amzn-SageMaker-Target-Model": target})

    flags = ("--allow-sagemaker=true", "--model-control-mode=explicit", "--sagemaker-safe-port-range=1-65535")
    with ServerProcess(*flags, repositories=[repository]) as server:
        address = server.address("Sagemaker HTTPService")
        assert call(address, "/ping")[0] == 200
        assert call(address, "/models")[:2] == (200, b'{"models":[]}')
        assert call(address, f"/models/{hash_}")[0] == 404
        assert call(address, f"/models/{hash_}/invoke", BODY)[0] == 404
        assert call(address, f"/models/{hash_}", method="DELETE")[0] == 404
        for _ in range(2):
            assert load(hash_, url, "red.tar.gz")[:2] == (200, b"")
            status, answer, _ = load(hash_, url, "red.tar.gz")
            assert (status, "loaded already" in json.loads(answer)["error"]) == (409, True)
            status, answer, _ = load("other", url, "red.tar.gz")
            assert (status, "has already been registered" in json.loads(answer)["error"]) == (409, True)
            document = {"modelName": hash_, "modelUrl": str(archives)}
            assert json.loads(call(address, "/models")[1]) == {"models": [document]}
            assert json.loads(call(address, f"/models/{hash_}")[1]) == document
            status, answer, _ = call(address, f"/models/{hash_}/invoke", BODY)
            assert (status, json.loads(answer)["model_name"], json.loads(answer)["outputs"][0]["data"]) == (
                200,
                "red.tar.gz",
                [7],
            )
            assert call(address, f"/models/{hash_}", method="DELETE")[:2] == (200, b"")
            assert call(address, f"/models/{hash_}/invoke", BODY)[0] == 404
        shutil.rmtree(archives / "model")
        full = ModelFolder(archives / "model", "full").config(f'backend: "python"\nmax_batch_size: 8\n{IDENTITY_PAIR}')
        full.python("class TritonPythonModel:\n    def initialize(self, args):\n        raise MemoryError('out of memory')\n")
        status, answer, _ = load(hash_, url, "full")
        assert (status, "out of memory" in json.loads(answer)["error"]) == (507, True), answer
        full.python(FAILING)
        assert load(hash_, url, "full")[0] == 200, "the repository of a load that failed is registered no more"
        status, answer, _ = call(address, f"/models/{hash_}/invoke", BODY)
        assert (status, "out of memory" in json.loads(answer)["error"]) == (507, True)
        for where in ("/proc/self", "/opt/ml/models/../../../sys", "/tmp/models/model", "/opt/ml/models/nobody/model"):
            status, answer, _ = load("x", where, "x")
            assert (status, re.search("Invalid .url.|not found", json.loads(answer)["error"]) is not None) == (400, True)
        assert call(address, "/models", b"{}")[0] == 400


def test_a_model_on_sagemaker_has_the_name_that_it_is_loaded_by(archives: Path, repository: Path) -> None:
    """Also where its configuration has another one, and a model of the server's own repository has it: as in Triton."""
    ModelFolder(archives, "model").config(f'name: "other"\nbackend: "python"\nmax_batch_size: 8\n{IDENTITY_PAIR}').python(FAILING)
    flags = ("--allow-sagemaker=true", "--model-control-mode=explicit", "--load-model=same", "--sagemaker-default-model=same")
    with ServerProcess(*flags, "--sagemaker-safe-port-range=1-65535", repositories=[repository]) as server:
        address = server.address("Sagemaker HTTPService")
        body = json.dumps({"model_name": "x", "url": f"{archives}/model"}).encode()
        status, answer, _ = call(address, "/models", body, {"X-Amzn-SageMaker-Target-Model": "same"})
        assert (status, answer) == (200, b"")
        status, answer, _ = call(address, "/models/x/invoke", BODY)
        assert (status, "out of memory" in json.loads(answer)["error"]) == (507, True), "this one's own"
        other = json.dumps({"model_name": "y", "url": f"{archives}/model"}).encode()
        assert call(address, "/models", other, {"X-Amzn-SageMaker-Target-Model": "same"})[0] == 409, "another archive's"
        assert call(address, "/models/x", method="DELETE")[0] == 200
        assert call(address, "/models", body)[0] == 200
        assert call(address, "/models/x/invoke", BODY)[0] == 507
        for line in (
            "Loading SageMaker TargetModel: same",
            "Unloading SageMaker TargetModel: same",
            "Loading SageMaker TargetModel: x",
        ):
            assert line in server.log


VERTEX = {
    "AIP_MODE": "PREDICTION",
    "AIP_PREDICT_ROUTE": "/v1/endpoints/1/deployedModels/2:predict",
    "AIP_HEALTH_ROUTE": "/v1/endpoints/1/deployedModels/2",
}
PREDICT = VERTEX["AIP_PREDICT_ROUTE"]


@pytest.fixture(scope="module")
def vertex(repository: Path) -> Iterator[str]:
    environment = {**VERTEX, "AIP_STORAGE_URI": str(repository)}
    flags = ("--vertex-ai-default-model=same", "--http-restricted-api=statistics:admin=key")
    with ServerProcess(*flags, environment=environment) as server:
        address = server.address("Vertex AI HTTPService")
        assert address is not None
        assert server.address("HTTPService") is None
        assert server.address("GRPCInferenceService") is None
        yield address


def test_predictions_on_vertex_ai(vertex: str) -> None:
    assert call(vertex, VERTEX["AIP_HEALTH_ROUTE"])[0] == 200
    status, answer, _ = call(vertex, PREDICT, BODY)
    assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [7])
    body, length = binary_body()
    status, answer, headers = call(vertex, PREDICT, body, {"Content-Type": f"{VERTEX_TYPE}{length}"})
    assert status == 200
    assert binary_output(answer, headers["Content-Type"], VERTEX_TYPE) == [[5]]
    length = int(headers["Inference-Header-Content-Length"])  # by which Triton's clients read it
    assert InferenceServerClient.parse_response_body(answer, header_length=length).as_numpy("OUTPUT0").tolist() == [[5]]
    assert call(vertex, PREDICT)[0] == 405
    assert call(vertex, "/v2/models/same/infer", BODY)[0] == 404


@pytest.mark.parametrize(
    ("target", "status", "content"),
    [
        ("v2", 200, b'"extensions"'),
        ("v2/health/live", 200, b""),
        ("v2/health/ready", 200, b""),
        ("v2/models/same", 200, b'"platform"'),
        ("v2/models/same/versions/1/config", 200, b'"max_batch_size"'),
        ("v2/models/same/ready", 200, b""),
        ("v2/models/same/versions/1/infer", 200, b'"OUTPUT0"'),
        ("v2/models/full/infer", 500, b"out of memory"),
        ("v2/models/nobody/infer", 404, b"nobody"),
        ("v2/models/same/stats", 403, b"expecting header 'admin'"),
        ("v2/models/stats", 403, b"expecting header 'admin'"),
        ("v2/systemsharedmemory/status", 200, b"[]"),
        ("v2/systemsharedmemory/region/a/register", 403, b"cannot be changed"),
        ("v2/repository/index", 200, b'"READY"'),
        ("v2/repository/models/same/unload", 403, b"cannot be loaded or unloaded"),
        ("metrics", 403, b"expecting header 'admin'"),
        ("v2/nothing", 400, b"does not name an endpoint"),
        ("../v2", 400, b"does not name an endpoint"),
    ],
)
def test_redirects_on_vertex_ai(vertex: str, target: str, status: int, content: bytes) -> None:
    body = BODY if target.endswith("infer") else b""
    found, answer, _ = call(vertex, PREDICT, body, {"X-Vertex-Ai-Triton-Redirect": target}, method="POST")
    assert found == status, answer
    assert content in answer


def test_the_key_of_statistics_opens_metrics_on_vertex_ai(vertex: str) -> None:
    status, answer, _ = call(vertex, PREDICT, b"", {"X-Vertex-Ai-Triton-Redirect": "metrics", "admin": "key"}, method="POST")
    assert status == 200
    assert b"nv_inference_count" in answer


@pytest.mark.parametrize(
    ("flags", "environment", "problem"),
    [
        (["--allow-vertex-ai=true"], {}, "AIP_PREDICT_ROUTE is not defined for Vertex AI endpoint"),
        ([], {"AIP_MODE": "PREDICTION", "AIP_PREDICT_ROUTE": "/p"}, "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"),
        ([], {**VERTEX, "AIP_PREDICT_ROUTE": "p"}, "'p' is not a path (the variable AIP_PREDICT_ROUTE)"),
        ([], VERTEX, "Expect the model repository contains only a single model if default model is not specified"),
        (["--vertex-ai-default-model=nobody"], VERTEX, "Expect the default model 'nobody' is loaded"),
        (["--allow-sagemaker"], {"SAGEMAKER_TRITON_INFERENCE_TYPE": "x"}, "--sagemaker-inference-type"),
        (["--allow-sagemaker", "--sagemaker-safe-port-range=9-8"], {}, "--sagemaker-safe-port-range: expected <first>-<last>"),
        (
            ["--allow-sagemaker", "--sagemaker-safe-port-range=8081-9999", "--http-port=22398"],
            {},
            "The server cannot listen to HTTP requests at port 22398, allowed port range is [8081, 9999]",
        ),
    ],
)
def test_options_that_cannot_be(repository: Path, flags: list[str], environment: dict[str, str], problem: str) -> None:
    with ServerProcess(*flags, repositories=[repository], environment=environment, expect_exit=1) as server:
        server.process.wait(60)
        assert problem in server.log
