"""Flags of the HTTP frontend, end to end."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess


def rows(count: int) -> list[InferInput]:
    tensor = InferInput("INPUT", [count, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((count, 3), np.float32))
    return [tensor]


def test_restricted_apis_ask_for_their_header(repository: Path) -> None:
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    flags = (
        "--http-restricted-api=model-repository,statistics:admin-key=secret",
        "--http-restricted-api=inference:user-key=open",
        "--model-control-mode=explicit",
        "--load-model=m",
    )
    admin, user = {"admin-key": "secret"}, {"user-key": "open"}
    with ServerProcess(*flags, repositories=[repository]) as server, InferenceServerClient(server.http) as client:
        for call in (
            lambda headers: client.get_model_repository_index(headers=headers),
            lambda headers: client.load_model("m", headers=headers),
            lambda headers: client.get_inference_statistics("m", headers=headers),
        ):
            call(admin)
            for wrong in ({}, user, {"admin-key": "other"}):
                with pytest.raises(
                    InferenceServerException, match=r"^\[403\] This API is restricted, expecting header 'admin-key'$"
                ):
                    call(wrong)
        client.infer("m", rows(1), headers=user)
        with pytest.raises(InferenceServerException, match=r"^\[403\] This API is restricted, expecting header 'user-key'$"):
            client.infer("m", rows(1))
        assert client.is_server_ready()
        assert client.get_model_metadata("m")["name"] == "m"


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_the_largest_body(repository: Path, encoding: str | None) -> None:
    ModelFolder(repository, "m").config(AFFINE_CONFIG.replace("max_batch_size: 8", "max_batch_size: 100000")).affine(1, 2)
    with (
        ServerProcess("--http-max-input-size=20000", repositories=[repository]) as server,
        InferenceServerClient(server.http) as client,
    ):
        client.infer("m", rows(1000), request_compression_algorithm=encoding)
        text = r"^\[400\] .* exceeds the maximum allowed .* of 20000 bytes\. Use --http-max-input-size to increase the limit\.$"
        with pytest.raises(InferenceServerException, match=text):
            client.infer("m", rows(5000), request_compression_algorithm=encoding)
        client.infer("m", rows(1000))


def test_without_metrics_and_without_http(repository: Path) -> None:
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    server = ServerProcess("--allow-metrics=false", repositories=[repository])
    server.start()
    server.wait_log("Started HTTPService")
    with InferenceServerClient(server.http) as client:
        client.infer("m", rows(1))
    assert server.stop() == 0
    assert "metrics service" not in server.log
    with ServerProcess("--allow-http=false", repositories=[repository]) as other:
        page = urllib.request.urlopen(f"http://{other.metrics}/metrics").read().decode()
    assert 'nv_inference_count{model="m",version="1"} 0' in page
    assert "HTTP service" not in other.log


def test_errors_are_json_and_connections_live_on(repository: Path) -> None:
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    with ServerProcess(repositories=[repository]) as server:
        for path, status in (
            ("/v2/nosuch", 404),
            ("/v2/models/m/infer", 405),
            ("/v2/health/live/", 404),
            ("/v2/models/x/config", 404),
        ):
            with pytest.raises(HTTPError) as caught:
                urllib.request.urlopen(f"http://{server.http}{path}")
            with caught.value as answer:
                assert answer.status == status
                assert list(json.loads(answer.read())) == ["error"]
