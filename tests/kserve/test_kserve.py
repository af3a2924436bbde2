"""The runtimes of deploy/kserve: their fields by KServe's own classes, and the server as they start it, on what KServe's storage
initializer leaves in /mnt/models, asked by KServe's own client over v1, v2 and gRPC."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.backends import onnx_models
from tests.docs.pages import ROOT
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess
from tpy.cli.flags import FLAG_BY_NAME

FILE = ROOT / "deploy" / "kserve" / "clusterservingruntime.yaml"
PYTHON = ROOT / ".kserve" / "bin" / "python"
SERVICE = "scaler"
needs_kserve = pytest.mark.skipif(not PYTHON.exists(), reason="needs kserve: make test-kserve")

FIELDS = """
import json, sys, yaml
from kserve.models import V1alpha1ServingRuntimeSpec, V1alpha1SupportedModelFormat

unknown = []
for document in yaml.safe_load_all(sys.stdin.read()):
    unknown += set(document["spec"]) - set(V1alpha1ServingRuntimeSpec.attribute_map.values())
    for each in document["spec"]["supportedModelFormats"]:
        unknown += set(each) - set(V1alpha1SupportedModelFormat.attribute_map.values())
print(json.dumps(sorted(set(unknown))))
"""
DOWNLOAD = """
import sys
from kserve_storage import Storage
Storage.download(sys.stdin.read(), sys.argv[1])
"""
CLIENT = """
import asyncio, json, sys
from kserve import InferInput, InferRequest, InferenceGRPCClient, InferenceRESTClient, RESTConfig

name, http, grpc = sys.argv[1:]

def request():
    return InferRequest(name, [InferInput("INPUT", [1, 3], "FP32", data=[1.0, 2.0, 3.0])])

async def ask():
    said = {}
    v1 = InferenceRESTClient(RESTConfig(protocol="v1"))
    said["v1"] = (await v1.infer(f"http://{http}", {"instances": [[1.0, 2.0, 3.0]]}, name))["predictions"]
    v2 = InferenceRESTClient(RESTConfig(protocol="v2"))
    said["v1 ready"] = await v1.is_model_ready(f"http://{http}", name)
    said["v2"] = (await v2.infer(f"http://{http}", request(), name)).outputs[0].as_numpy().tolist()
    client = InferenceGRPCClient(grpc)
    said["grpc"] = (await client.infer(request())).outputs[0].as_numpy().tolist()
    said["grpc ready"] = [await client.is_server_ready(), await client.is_model_ready(name)]
    await v1.close(), await v2.close(), await client.close()
    return said

print(json.dumps(asyncio.run(ask())))
"""


def kserve(code: str, *arguments: str, given: str = "") -> str:
    """Returns the last line that a program in KServe's environment prints."""
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", code, *arguments], input=given, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout.splitlines() or [""])[-1]


def runtimes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(FILE.read_text()))


def test_the_runtimes_fit_the_server() -> None:
    http, grpc = runtimes()
    assert [each["spec"]["protocolVersions"] for each in (http, grpc)] == [["v1", "v2"], ["grpc-v2"]]
    for each, port in ((http, 8080), (grpc, 9000)):
        [container] = each["spec"]["containers"]
        [opened] = container["ports"]
        assert (container["name"], opened["containerPort"]) == ("kserve-container", port)
        directory, *flags = container["args"]
        assert directory == "/mnt/models"
        assert {text.removeprefix("--").split("=")[0] for text in flags} <= FLAG_BY_NAME.keys()
        assert f"--{'http' if port == 8080 else 'grpc'}-port={port}" in flags
    assert http["spec"]["supportedModelFormats"] == grpc["spec"]["supportedModelFormats"]


@needs_kserve
@pytest.mark.parametrize(("name", "unknown"), [("protocolVersions", []), ("protocols", ["protocols"])])
def test_the_fields_of_the_runtimes_are_kserves(name: str, unknown: list[str]) -> None:
    assert json.loads(kserve(FIELDS, given=FILE.read_text().replace("protocolVersions", name))) == unknown


def _file(source: Path) -> str:
    (source / "net.onnx").write_bytes(onnx_models.affine(2.0, 1.0))
    return str(source / "net.onnx")


def _folder_with_a_file(source: Path) -> str:
    (source / "model.onnx").write_bytes(onnx_models.affine(2.0, 1.0))
    return str(source)


def _archive(source: Path) -> str:
    with zipfile.ZipFile(source / "models.zip", "w") as archive:
        archive.writestr("net.onnx", onnx_models.affine(2.0, 1.0))
    return str(source / "models.zip")


def _repository(source: Path) -> str:
    ModelFolder(source, SERVICE).config(AFFINE_CONFIG).affine(1, 2.0, 1.0)
    return str(source)


@needs_kserve
@pytest.mark.parametrize("store", [_file, _folder_with_a_file, _archive, _repository])
def test_models_are_served_as_kserve_stores_them(tmp_path: Path, store: Callable[[Path], str]) -> None:
    (source := tmp_path / "source").mkdir()
    models = tmp_path / "models"
    kserve(DOWNLOAD, str(models), given=f"file://{store(source)}")
    [container] = runtimes()[0]["spec"]["containers"]
    directory, name, *flags = container["args"]
    assert (directory, name) == ("/mnt/models", "--model-name={{.Name}}")
    kept = [flag for flag in flags if "-port=" not in flag and "exit-delay" not in flag]
    with ServerProcess(str(models), f"--model-name={SERVICE}", *kept) as server:
        said = json.loads(kserve(CLIENT, SERVICE, server.http, server.grpc))
    answer = [[3.0, 5.0, 7.0]]
    assert said == {
        "v1": answer,
        "v2": answer,
        "grpc": answer,
        "v1 ready": True,
        "grpc ready": [True, True],
    }
