"""--management-address: load, unload, index and settings stand there only, whatever port is asked; the rest is as before."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.docs.pages import ROOT
from tpy.cli.parsing import UsageError, collect
from tpy.cli.serve_options import server_options

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess

REFUSAL = "This API is served at the server's management address only (--management-address)"
EXAMPLES = ROOT / "docs" / "examples" / "openai" / "models"
MANAGEMENT = "Management HTTPService"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """HTTP and gRPC are in a frontend process, OpenAI's API too."""
    repository = tmp_path_factory.mktemp("models")
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    flags = (
        "--management-address=127.0.0.1:0",
        "--model-control-mode=explicit",
        "--load-model=m",
        "--load-model=writer",
        "--allow-openai=true",
        "--allow-sagemaker=true",
        "--allow-tensorflow-serving=true",
        "--allow-torchserve=true",
        "--frontend-processes=1",
    )
    with ServerProcess(*flags, repositories=[repository, EXAMPLES]) as running:
        yield running


def ask(address: str | None, path: str, body: bytes | None = None, *, accept: str = "*/*") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{path}", body, {"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def infer(client: object, module: object) -> list[list[float]]:
    tensor = module.InferInput("INPUT", [1, 3], "FP32")  # type: ignore[attr-defined]
    tensor.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
    return client.infer("m", [tensor]).as_numpy("OUTPUT").tolist()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_other_ports_change_nothing(server: ServerProcess, module: object) -> None:
    url = server.http if module is tritonclient.http else server.grpc
    with module.InferenceServerClient(url) as client:  # type: ignore[attr-defined]
        for call in (
            lambda: client.load_model("m"),
            lambda: client.unload_model("m"),
            client.get_model_repository_index,
            client.get_log_settings,
            lambda: client.update_log_settings({"log_verbose_level": 1}),
            client.get_trace_settings,
            lambda: client.update_trace_settings("m", {"trace_level": ["TIMESTAMPS"]}),
        ):
            with pytest.raises(InferenceServerException) as refused:
                call()
            assert REFUSAL in refused.value.message()
            assert refused.value.status() in ("403", "StatusCode.UNAVAILABLE")
        assert client.is_server_ready()
        assert client.is_model_ready("m")
        assert client.get_model_metadata("m")
        assert client.get_inference_statistics("m")
        assert infer(client, module) == [[2, 4, 6]]


def test_ports_of_platforms_change_nothing(server: ServerProcess) -> None:
    openai, sagemaker, torchserve = (server.address(f"{name} HTTPService") for name in ("OpenAI", "Sagemaker", "TorchServe"))
    for address, path in (
        (openai, "/v1/models/writer/unload"),
        (sagemaker, "/models"),
        (sagemaker, "/models/writer"),
        (torchserve, "/models"),
        (torchserve, "/models/writer"),
    ):
        status, text = ask(address, path, None if path == "/models/writer" else b"{}")
        assert (status, REFUSAL in text) == (403, True), path
    assert "writer" in ask(openai, "/v1/models")[1]


def test_tensorflow_serving_changes_nothing(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.address("TensorFlow Serving GRPCService") or "") as channel:
        reload = channel.unary_unary("/tensorflow.serving.ModelService/HandleReloadConfigRequest")
        with pytest.raises(grpc.RpcError) as refused:
            reload(b"", timeout=30)
    assert (refused.value.code().name, REFUSAL in refused.value.details()) == ("UNAVAILABLE", True)
    rest = server.address("TensorFlow Serving HTTPService")
    assert json.loads(ask(rest, "/v1/models/m:predict", b'{"instances": [[1, 2, 3]]}')[1]) == {"predictions": [[2, 4, 6]]}


def test_the_start_page_tells_models_where_the_index_is(server: ServerProcess) -> None:
    assert "writer" not in ask(server.http, "/", accept="text/html")[1]
    assert "writer" in ask(server.address(MANAGEMENT), "/v2/models", accept="text/html")[1]
    assert ask(server.address(MANAGEMENT), "/", accept="text/html")[1].startswith("<!doctype html>"), "the page"
    assert ask(server.http, "/v2/models")[0] == 403
    status, text = ask(server.http, "/v1/models")
    assert (status, "writer" in text) == (200, True), "who is ready is no index of the repository"


def test_the_graph_of_a_model_is_there_too(server: ServerProcess) -> None:
    status, text = ask(server.address(MANAGEMENT), "/v2/models/m/graph")
    graph = json.loads(text)
    assert status == 200
    assert [node["operator"] for node in graph["nodes"]] == ["Mul", "Add"]
    assert [tensor["shape"] for tensor in graph["inputs"] + graph["outputs"]] == [["N", 3], ["N", 3]]
    status, text = ask(server.address(MANAGEMENT), "/v2/models/writer/graph")
    assert (status, "ONNX files (.onnx) only" in text) == (501, True)
    status, text = ask(server.http, "/v2/models/m/graph")
    assert (status, REFUSAL in text) == (403, True)


def test_all_is_at_the_management_address(server: ServerProcess) -> None:
    address = server.address(MANAGEMENT)
    assert address is not None
    with tritonclient.http.InferenceServerClient(address) as client:
        client.unload_model("writer")
        client.load_model("m", config=json.dumps({"backend": "onnxruntime", "max_batch_size": 4}))
        assert {row["name"] for row in client.get_model_repository_index()} >= {"m", "writer"}
        assert client.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
        client.update_log_settings({"log_verbose_level": 0})
        assert client.get_trace_settings("m")["trace_level"] == ["OFF"]
        assert infer(client, tritonclient.http) == [[2, 4, 6]]
    with tritonclient.http.InferenceServerClient(server.http) as client:
        assert client.get_model_config("m")["max_batch_size"] == 4, "of a load at the other port"


def test_a_unix_socket_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "manage.sock"
    with ServerProcess(f"--management-address=unix:{path}", repositories=[EXAMPLES]) as running:
        assert ask(running.http, "/v2/repository/index", b"")[0] == 403
        command = ["curl", "-s", "--unix-socket", str(path), "-X", "POST", "http://x/v2/repository/index"]
        assert "writer" in subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert not path.exists()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--management-address=8003"], "--management-address: expected HOST:PORT, [IPV6]:PORT or unix:PATH"),
        (["--management-address=unix:"], "as 127.0.0.1:8003, got 'unix:'"),
        (["--management-address=localhost:99999"], "got 'localhost:99999'"),
        (["--management-address=::1:8003"], "got '::1:8003'"),
        (["--management-use-ssl=true", "--management-address=[::1]:0"], "(--management-server-cert, --management-server-key)"),
        (
            ["--management-address=127.0.0.1:24501", "--http-address=127.0.0.1", "--http-port=24501"],
            "MANAGEMENT requests at the same address and port 127.0.0.1:24501 (--http-port, --management-address)",
        ),
        (
            [
                "--management-address=unix:/tmp/../tmp/tpy.sock",
                "--http-address=unix:/tmp/tpy.sock",
                "--metrics-address=127.0.0.1",
            ],
            "at the same Unix socket unix:/tmp/../tmp/tpy.sock (--http-address, --management-address)",
        ),
        (
            ["--grpc-address=unix:/tmp/tpy.sock", "--http-address=unix:/tmp/tpy.sock", "--metrics-address=127.0.0.1"],
            "at the same Unix socket unix:/tmp/tpy.sock (--grpc-address, --http-address)",
        ),
    ],
)
def test_addresses_that_cannot_be(flags: list[str], problem: str) -> None:
    given = {"model_repository": ["r"]}
    given.update({name.replace("-", "_"): [value] for name, _, value in (flag[2:].partition("=") for flag in flags)})
    with pytest.raises(UsageError) as refused:
        server_options(*collect(given, {}))
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
