"""Requests for MODEL@ALIAS get the version that the alias names."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.backends import onnx_models

from .repositories import ModelFolder
from .server import ServerProcess, run_tpy

CONFIG = """
backend: "onnxruntime"
version_policy: { specific { versions: [ 1, 2 ] } }
parameters { key: "aliases" value { string_value: '%s' } }
"""
ALIASES = '{"stable": 1, "canary": 2, "next": 3}'


def models(folder: Path) -> Path:
    model = ModelFolder(folder, "m").config(CONFIG % ALIASES)
    for version in (1, 2, 3):
        model.file(f"{version}/model.onnx", onnx_models.affine(1.0, float(version)))
    ModelFolder(folder, "m@taken").config('backend: "onnxruntime"').file("1/model.onnx", onnx_models.affine(1.0, 9.0))
    return folder


@pytest.fixture(scope="module", params=[0, 1])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = models(tmp_path_factory.mktemp("models"))
    with ServerProcess(f"--frontend-processes={request.param}", repositories=[repository]) as running:
        yield running


def asked(server: ServerProcess, name: str, version: str = "") -> list[tuple[float, str]]:
    """The number that is added to 0, and the version in the answer, over both protocols."""
    found = []
    with triton_http.InferenceServerClient(server.http) as http, triton_grpc.InferenceServerClient(server.grpc) as grpc:
        meta = http.get_model_metadata("m")
        for kind, client in ((triton_http, http), (triton_grpc, grpc)):
            given = kind.InferInput(meta["inputs"][0]["name"], [1, 3], "FP32")
            given.set_data_from_numpy(np.zeros((1, 3), np.float32))
            answer = client.infer(name, [given], version)
            said = answer.get_response()
            said = said if isinstance(said, dict) else {"model_version": said.model_version}
            found.append((float(answer.as_numpy(meta["outputs"][0]["name"])[0, 0]), said["model_version"]))
    return found


def test_both_protocols_find_the_version(server: ServerProcess) -> None:
    assert asked(server, "m@stable") == [(1.0, "1")] * 2
    assert asked(server, "m@canary") == [(2.0, "2")] * 2
    assert asked(server, "m") == [(2.0, "2")] * 2
    assert asked(server, "m@taken") == [(9.0, "1")] * 2, "a model with such a name is a model"


def test_all_that_is_asked_of_a_version(server: ServerProcess) -> None:
    with triton_http.InferenceServerClient(server.http) as client:
        assert client.is_model_ready("m@stable")
        assert not client.is_model_ready("m@next")
        assert client.get_model_metadata("m@stable")["versions"] == ["1"]
        assert client.get_model_config("m@stable")["name"] == "m"
        assert [each["version"] for each in client.get_inference_statistics("m@stable")["model_stats"]] == ["1"]


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("m@other", "", "model 'm' has no alias 'other', it has canary, next, stable"),
        ("m@next", "", "Request for unknown model: 'm' version 3 is not found"),
        ("m@stable", "2", "Request for unknown model: 'm@stable' is not found"),
        ("x@stable", "", "Request for unknown model: 'x@stable' is not found"),
        ("m@taken@stable", "", "Request for unknown model: 'm@taken@stable' is not found"),
    ],
)
def test_what_has_no_version(server: ServerProcess, name: str, version: str, reason: str) -> None:
    with pytest.raises(InferenceServerException) as error:
        asked(server, name, version)
    assert reason in str(error.value)


def test_generate_and_models_of_frontends_know_them(server: ServerProcess) -> None:
    with triton_http.InferenceServerClient(server.http) as client:
        named = client.get_model_metadata("m")["inputs"][0]["name"]
    body = json.dumps({named: [0.0, 0.0, 0.0]}).encode()
    with urllib.request.urlopen(f"http://{server.http}/v2/models/m@stable/generate", body) as answer:
        assert json.load(answer)["model_version"] == "1"


def test_a_parameter_that_is_something_else_is_only_a_warning(tmp_path: Path) -> None:
    model = ModelFolder(tmp_path, "m").config(CONFIG % '{"sta@ble": 1}')
    model.file("1/model.onnx", onnx_models.affine(1.0, 1.0)).file("2/model.onnx", onnx_models.affine(1.0, 1.0))
    checked = run_tpy("check", str(tmp_path))
    assert checked.code == 0
    assert "unexpected value of parameter aliases for m: no version has an alias by it" in checked.out
