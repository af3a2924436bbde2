"""--auth-config on every port, with stock clients, also in frontend processes."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tpy.frontends.access.config import digest, key_entry

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess
from .waiting import wait_until

KEYS = {"user": ["infer"], "admin": ["manage", "observe"], "slow": ["infer"]}
LIMITS = {"slow": "requests_per_s = 0.01\nburst = 1\n"}


def write(file: Path, *names: str) -> None:
    """The keys of these names; the key of `user` is `key-of-user`, for the model m only."""
    entries = [
        f"{key_entry(name, digest(f'key-of-{name}'), KEYS[name], ['m*'] if name == 'user' else ['*'])}\n{LIMITS.get(name, '')}"
        for name in names
    ]
    file.write_text("\n".join(entries))


@pytest.fixture(scope="module", params=[0, 1], ids=["one process", "frontend process"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    home = tmp_path_factory.mktemp("guarded")
    for name in ("m", "other"):
        ModelFolder(home / "models", name).config(AFFINE_CONFIG.replace('"m"', f'"{name}"')).affine(1, 2)
    write(home / "auth.toml", *KEYS)
    flags = (
        f"--auth-config={home / 'auth.toml'}",
        "--auth-required=true",
        "--model-control-mode=explicit",
        "--load-model=m",
        "--load-model=other",
        "--http-header-forward-pattern=.*",
        "--log-verbose=2",
        f"--frontend-processes={request.param}",
    )
    with ServerProcess(*flags, repositories=[home / "models"]) as server:
        yield server, home / "auth.toml"
        assert "key-of-" not in server.log
        for name in KEYS:
            assert digest(f"key-of-{name}") not in server.log


def ask(address: str, method: str, path: str, body: bytes = b"", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    answer.text = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def rows(module: object) -> list[object]:
    tensor = module.InferInput("INPUT", [1, 3], "FP32")  # type: ignore[attr-defined]
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    return [tensor]


@pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc])
def test_stock_clients(guarded: tuple[ServerProcess, Path], module: object) -> None:
    server, _ = guarded
    url = server.http if module is tritonclient.http else server.grpc
    user, admin = {"authorization": "Bearer key-of-user"}, {"x-api-key": "key-of-admin"}
    with module.InferenceServerClient(url) as client:  # type: ignore[attr-defined]
        assert client.is_server_live()
        assert client.is_server_ready()
        client.infer("m", rows(module), headers=user)
        client.get_model_metadata("m", headers=user)
        client.load_model("m", headers=admin)
        client.get_model_repository_index(headers=admin)
        client.update_trace_settings("m", {"trace_level": ["OFF"]}, headers=admin)
        for call, status in (
            (lambda: client.infer("m", rows(module)), "401|UNAUTHENTICATED"),
            (lambda: client.infer("other", rows(module), headers=user), "403|PERMISSION_DENIED"),
            (lambda: client.infer("m", rows(module), headers=admin), "403|PERMISSION_DENIED"),
            (lambda: client.get_model_metadata("other", headers=user), "403|PERMISSION_DENIED"),
            (lambda: client.load_model("m", headers=user), "403|PERMISSION_DENIED"),
            (lambda: client.unload_model("m"), "401|UNAUTHENTICATED"),
            (lambda: client.get_model_repository_index(headers=user), "403|PERMISSION_DENIED"),
            (lambda: client.get_inference_statistics(headers=user), "403|PERMISSION_DENIED"),
            (lambda: client.update_log_settings({"log_verbose_level": 1}, headers=user), "403|PERMISSION_DENIED"),
            (lambda: client.get_trace_settings(headers=user), "403|PERMISSION_DENIED"),
            (lambda: client.update_trace_settings("m", {"trace_level": ["TENSORS"]}, headers=user), "403|PERMISSION_DENIED"),
            (lambda: client.update_trace_settings("", {"trace_level": ["TENSORS"]}, headers=user), "403|PERMISSION_DENIED"),
            (lambda: client.get_server_metadata(headers={"x-api-key": "key-of-nobody"}), "401|UNAUTHENTICATED"),
        ):
            with pytest.raises(InferenceServerException) as refused:
                call()
            assert any(each in str(refused.value.status()) for each in status.split("|")), refused.value


def test_answers_of_http(guarded: tuple[ServerProcess, Path]) -> None:
    server, _ = guarded
    answer = ask(server.http, "GET", "/v2/models/m")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="tpy"')
    answer = ask(server.http, "POST", "/v2/repository/index", X_API_Key="key-of-user")
    assert (answer.status, answer.headers["www-authenticate"]) == (403, 'Bearer realm="tpy", error="insufficient_scope"')
    for path in ("/v2/models/m?key=key-of-user", "/v2/models/m?access_token=key-of-user"):  # a URL stands in logs
        assert ask(server.http, "GET", path).status == 401
    for path in ("/v2/repository%2fmodels/m/load", "/v2/repository/models%2Fm%2Funload", "//v2/repository/models/m/load"):
        assert ask(server.http, "POST", path, X_API_Key="key-of-user").status == 404
    assert ask(server.http, "POST", "/v2/%72epository/models/m/load", X_API_Key="key-of-user").status == 403
    for path in (
        "/",
        "/v2",
        "/v2/models",
        "/v1/models",
        "/v1/models/m",
        "/docs",
        "/v2/models/m/ready",
        "/v2/systemsharedmemory/status",
        "/v2/logging",
    ):
        assert ask(server.http, "GET", path).status == 401, path
    for key, names in (("user", {"m"}), ("admin", {"m", "other"})):
        answer = ask(server.http, "GET", "/v1/models", X_API_Key=f"key-of-{key}")
        assert set(json.loads(answer.text)["models"]) == names
    assert ask(server.metrics, "GET", "/metrics").status == 401
    assert ask(server.metrics, "GET", "/metrics", X_API_Key="key-of-user").status == 403
    assert ask(server.metrics, "GET", "/metrics", X_API_Key="key-of-admin").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/m/../other/infer",
        "/v2/models/m/..%2fother/infer",
        "/v2/models/m%2f..%2fother/infer",
        "/v2/models/m;/other/infer",
        "/v2/models/./other/infer",
        "/v2/models/%6fther/infer",
        "/v2/models/other/infer?model=m",
        "/v2/models/other%00m/infer",
        "/v2/models/OTHER/infer",
        "/v2/models/m%0aother/infer",
        "http://m/v2/models/other/infer",
        "/v1/models/other:predict",
        "/v2/models/other/generate",
    ],
)
def test_no_spelling_of_a_model_is_in_anothers_pattern(guarded: tuple[ServerProcess, Path], path: str) -> None:
    """The key is for models that match m*."""
    server, _ = guarded
    body = b'{"inputs": [{"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}'
    assert ask(server.http, "POST", path, body, X_API_Key="key-of-user").status in (400, 403, 404)
    assert ask(server.http, "POST", "/v2/models/m/infer", body, X_API_Key="key-of-user").status == 200


def test_rates(guarded: tuple[ServerProcess, Path]) -> None:
    server, _ = guarded
    body = json.dumps({"inputs": [{"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}).encode()
    answers = [ask(server.http, "POST", "/v2/models/m/infer", body, X_API_Key="key-of-slow") for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert 1 <= int(answers[1].headers["retry-after"]) <= 100
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException, match="too many requests") as refused:
            client.infer("m", rows(tritonclient.grpc), headers={"x-api-key": "key-of-slow"})
        assert "RESOURCE_EXHAUSTED" in str(refused.value.status())


def test_reflection_and_watch_need_a_role(guarded: tuple[ServerProcess, Path]) -> None:
    server, _ = guarded
    with grpc.insecure_channel(server.grpc) as channel:
        for path in ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/Watch"):
            call = channel.stream_stream(path)(iter([b""]), timeout=20)
            with pytest.raises(grpc.RpcError) as refused:
                list(call)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"\x0a\x01m", timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_key_that_is_taken_away(guarded: tuple[ServerProcess, Path]) -> None:
    """Also of a stream that is open: each of its requests is checked."""
    server, file = guarded
    answers: list[object] = []
    arrived = threading.Semaphore(0)

    def take(result: object, error: object) -> None:
        answers.append(error)
        arrived.release()

    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(take, headers={"x-api-key": "key-of-user"})
        client.async_stream_infer("m", rows(tritonclient.grpc))
        assert arrived.acquire(timeout=30)
        client.async_stream_infer("other", rows(tritonclient.grpc))
        assert arrived.acquire(timeout=30)
        write(file, "admin")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: ask(server.http, "GET", "/v2/models/m", X_API_Key="key-of-user").status == 401)
        wait_until(lambda: ask(server.http, "GET", "/v2", X_API_Key="key-of-admin").status == 200)
        client.async_stream_infer("m", rows(tritonclient.grpc))
        assert arrived.acquire(timeout=30)
    assert answers[0] is None
    assert "has no role" in str(answers[1])
    assert "not known here" in str(answers[2])
    write(file, *KEYS)
