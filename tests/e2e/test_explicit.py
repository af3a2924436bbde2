"""Mode explicit over HTTP: load, unload, overrides, updates that keep serving, and what the index says meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from tests.backends import onnx_models

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess
from .waiting import wait_until

COUNTING = """
import os, pathlib
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        notes = pathlib.Path(args["model_repository"]).parent.parent / (args["model_name"] + ".initialized")
        with open(notes, "a") as file:
            file.write(args["model_instance_name"] + "\\n")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
COUNTING_CONFIG = """
backend: "python"
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""


@pytest.fixture(scope="module")
def shared_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explicit") / "models"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def server(shared_repository: Path) -> Iterator[ServerProcess]:
    with ServerProcess("--model-control-mode=explicit", repositories=[shared_repository]) as process:
        yield process


@pytest.fixture
def client(server: ServerProcess) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(server.http) as client:
        yield client


@pytest.fixture
def model(shared_repository: Path) -> ModelFolder:
    """A model of this test alone, in the repository of the server that all share."""
    number = len(list(shared_repository.iterdir()))
    return ModelFolder(shared_repository, f"m{number}").config(AFFINE_CONFIG)


def scaled(client: InferenceServerClient, model: str, version: str = "") -> float:
    """The factor by which a model multiplies."""
    tensor = InferInput("INPUT", [1, 3], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 3), np.float32))
    answer = client.infer(model, [tensor], model_version=version).as_numpy("OUTPUT")
    assert answer is not None
    return float(answer[0, 0])


def states(client: InferenceServerClient, model: str) -> list[tuple[str, str, str]]:
    """(version, state, reason) of each row about a model."""
    index: list[dict[str, Any]] = client.get_model_repository_index()
    return [(e.get("version", ""), e.get("state", ""), e.get("reason", "")) for e in index if e["name"] == model]


def initialized(model: ModelFolder) -> list[str]:
    """The instances that a COUNTING model has ever initialized. Noted outside of its directory: a change in there is a reload."""
    return (model.path.parent.parent / f"{model.name}.initialized").read_text().split()


def test_load_unload_and_load_again(model: ModelFolder, client: InferenceServerClient) -> None:
    model.affine(1, 2)
    client.load_model(model.name)
    assert scaled(client, model.name) == 2
    assert states(client, model.name) == [("1", "READY", "")]
    client.unload_model(model.name)
    assert not client.is_model_ready(model.name)
    wait_until(lambda: states(client, model.name) == [("1", "UNAVAILABLE", "unloaded")])
    with pytest.raises(InferenceServerException, match=r"^\[404\] Request for unknown model: 'm\d+' has no available versions$"):
        scaled(client, model.name)
    client.load_model(model.name)
    assert scaled(client, model.name) == 2
    client.unload_model("nosuch")


def test_nothing_is_loaded_at_the_start(repository: Path) -> None:
    """Models on disk are listed by name only; the server is ready."""
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    with (
        ServerProcess("--model-control-mode=explicit", repositories=[repository]) as server,
        InferenceServerClient(server.http) as client,
    ):
        assert client.get_model_repository_index() == [{"name": "m"}]
        assert client.is_server_ready()
        client.load_model("m")
        client.unload_model("m")
        wait_until(lambda: states(client, "m") == [("1", "UNAVAILABLE", "unloaded")])
        assert client.is_server_ready()


def test_an_update_switches_and_a_failed_one_keeps_the_old(model: ModelFolder, server: ServerProcess) -> None:
    model.affine(1, 2)
    with InferenceServerClient(server.http) as client:
        client.load_model(model.name)
        model.affine(1, 3)
        client.load_model(model.name)
        assert scaled(client, model.name) == 3
        model.file("1/model.onnx", b"no model")
        text = rf"^\[400\] load failed for model '{model.name}': version 1 is at UNAVAILABLE state: "
        with pytest.raises(InferenceServerException, match=text):
            client.load_model(model.name)
        assert scaled(client, model.name) == 3
        ((_, state, reason),) = states(client, model.name)
        assert state == "READY"
        assert "model.onnx" in reason
        server.wait_log(f"failed to load '{model.name}' version")
        model.affine(1, 4)
        client.load_model(model.name)
        assert scaled(client, model.name) == 4
        assert states(client, model.name) == [("1", "READY", "")]


def test_a_broken_configuration_keeps_the_old_model(model: ModelFolder, client: InferenceServerClient) -> None:
    model.affine(1, 2)
    client.load_model(model.name)
    model.config(AFFINE_CONFIG + "dims 3\n")
    text = rf"failed to load '{model.name}', failed to poll from model repository: .*config\.pbtxt:6:"
    with pytest.raises(InferenceServerException, match=text):
        client.load_model(model.name)
    assert scaled(client, model.name) == 2
    ((_, state, reason),) = states(client, model.name)
    assert state == "READY"
    assert "config.pbtxt:6:" in reason
    model.config(AFFINE_CONFIG)
    client.load_model(model.name)
    assert states(client, model.name) == [("1", "READY", "")]


def test_version_policies_and_version_folders(model: ModelFolder, client: InferenceServerClient) -> None:
    for version in (1, 2, 5):
        model.affine(version, version)
    for name in ("01", "latest", "3x"):
        model.file(f"{name}/model.onnx", b"")
    client.load_model(model.name)
    assert client.get_model_metadata(model.name)["versions"] == ["5"]
    for policy, versions in (
        ("latest { num_versions: 2 }", ["2", "5"]),
        ("all { }", ["1", "2", "5"]),
        ("specific { versions: [ 1, 7 ] }", ["1"]),
        ("specific { versions: [ 1, 2 ] }", ["1", "2"]),
    ):
        model.config(f"{AFFINE_CONFIG} version_policy {{ {policy} }}")
        client.load_model(model.name)
        assert client.get_model_metadata(model.name)["versions"] == versions
        assert [scaled(client, model.name, version) for version in versions] == [float(version) for version in versions]
        assert scaled(client, model.name) == float(versions[-1])
    model.config(f"{AFFINE_CONFIG} version_policy {{ specific {{ versions: [ 9 ] }} }}")
    text = rf"^\[400\] .*at least one version must be available under the version policy of model '{model.name}'"
    with pytest.raises(InferenceServerException, match=text):
        client.load_model(model.name)
    assert scaled(client, model.name) == 2


def test_configuration_override(model: ModelFolder, client: InferenceServerClient) -> None:
    model.affine(1, 2).affine(2, 3)
    client.load_model(model.name)
    override = {
        "backend": "onnxruntime",
        "max_batch_size": 3,
        "versionPolicy": {"specific": {"versions": ["1"]}},
        "input": [{"name": "INPUT", "data_type": "TYPE_FP32", "dims": [3]}],
        "output": [{"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [3]}],
    }
    client.load_model(model.name, config=json.dumps(override))
    assert client.get_model_config(model.name)["max_batch_size"] == 3
    assert client.get_model_metadata(model.name)["versions"] == ["1"]
    for broken in ("{", '{"nosuch": 1}', json.dumps({**override, "max_batch_size": -1})):
        with pytest.raises(InferenceServerException, match=model.name):
            client.load_model(model.name, config=broken)
    assert client.get_model_config(model.name)["max_batch_size"] == 3
    assert scaled(client, model.name) == 2


def test_file_override_and_back(model: ModelFolder, client: InferenceServerClient) -> None:
    model.affine(1, 2)
    config = json.dumps({"backend": "onnxruntime"})
    client.load_model(model.name, config=config, files={"file:1/model.onnx": onnx_models.affine(7, 0)})
    assert scaled(client, model.name) == 7
    assert client.get_model_config(model.name)["max_batch_size"] == 4
    client.load_model("fresh", config=config, files={"file:3/model.onnx": onnx_models.affine(8, 0)})
    assert scaled(client, "fresh") == 8
    assert states(client, "fresh") == [("3", "READY", "")]
    client.load_model(model.name)
    assert scaled(client, model.name) == 2
    client.unload_model("fresh")
    assert not client.is_model_ready("fresh")


@pytest.mark.parametrize("path", ["/1/model.onnx", "./1/model.onnx", "1/.//model.onnx"])
def test_file_overrides_in_other_spellings(client: InferenceServerClient, path: str) -> None:
    config = json.dumps({"backend": "onnxruntime"})
    client.load_model("spelt", config=config, files={f"file:{path}": onnx_models.affine(6, 0)})
    assert scaled(client, "spelt") == 6
    client.unload_model("spelt")


@pytest.mark.parametrize("path", ["../m/1/model.onnx", "1/../../x", "/../etc/x", "1/", "1/.", "./", ""])
def test_file_overrides_stay_inside(client: InferenceServerClient, path: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("outside", config='{"backend": "onnxruntime"}', files={f"file:{path}": b"x"})
    assert caught.value.status() == "400"
    assert "not a path inside the model" in caught.value.message()


def test_instances_change_without_loading_again(model: ModelFolder, client: InferenceServerClient) -> None:
    model.config(COUNTING_CONFIG).python(COUNTING)
    client.load_model(model.name)
    assert initialized(model) == [f"{model.name}_0"]
    model.config(COUNTING_CONFIG + "instance_group [ { count: 3 } ]\n")
    client.load_model(model.name)
    grown = initialized(model)
    assert len(grown) == 3, grown  # the first one goes on
    assert client.get_model_config(model.name)["instance_group"][0]["count"] == 3
    model.config(COUNTING_CONFIG + "instance_group [ { count: 1 } ]\n")
    client.load_model(model.name)
    tensor = InferInput("INPUT", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    client.infer(model.name, [tensor])
    client.load_model(model.name)
    assert len(initialized(model)) == 3


def test_a_touch_and_a_load_initialize_the_model_again(model: ModelFolder, client: InferenceServerClient) -> None:
    """The habit of those who want a reload. A load alone does nothing."""
    model.config(COUNTING_CONFIG).python(COUNTING)
    client.load_model(model.name)
    client.load_model(model.name)
    assert initialized(model) == [f"{model.name}_0"]
    for file, count in (("1/model.py", 2), ("config.pbtxt", 2)):  # as Triton, which compares configurations
        (model.path / file).touch()
        client.load_model(model.name)
        client.load_model(model.name)
        assert initialized(model) == [f"{model.name}_0"] * count


FINALIZING = (
    COUNTING.replace("        with open(notes", "        self.notes = notes.with_suffix('.finalized')\n        with open(notes")
    + """
    def finalize(self):
        with open(self.notes, "a") as file:
            file.write("x")
"""
)


def test_a_load_is_answered_when_removed_instances_are_finalized(model: ModelFolder, client: InferenceServerClient) -> None:
    model.config(COUNTING_CONFIG + "instance_group [ { count: 3 } ]\n").python(FINALIZING)
    client.load_model(model.name)
    model.config(COUNTING_CONFIG + "instance_group [ { count: 1 } ]\n")
    client.load_model(model.name)
    assert (model.path.parent.parent / f"{model.name}.finalized").read_text() == "xx"


def test_versions_that_stay_are_not_loaded_again(model: ModelFolder, client: InferenceServerClient) -> None:
    """Statistics start anew with a load: those of the version that stays go on."""
    model.config(AFFINE_CONFIG + "version_policy { all { } }").affine(1, 1)
    client.load_model(model.name)
    scaled(client, model.name)
    model.affine(2, 2)
    client.load_model(model.name)
    assert scaled(client, model.name) == 2
    assert client.get_inference_statistics(model.name, "1")["model_stats"][0]["inference_count"] == 1


@pytest.mark.parametrize("name", ["nosuch", "a..b", "...", "..my"])
def test_names_that_no_repository_has(client: InferenceServerClient, name: str) -> None:
    said = f"failed to load '{name}', failed to poll from model repository: model not found in any model repository"
    with pytest.raises(InferenceServerException, match=re.escape(said)) as caught:
        client.load_model(name)
    assert caught.value.status() == "500"


def test_files_of_a_load_call_in_triton_s_spellings(model: ModelFolder, client: InferenceServerClient) -> None:
    """Recorded from 2.51: a leading slash is fine, a name that is too long fails in the file system."""
    config = json.dumps({"backend": "identity", "max_batch_size": 8})
    for name in ("/1/any", "1//any", "//1/any"):
        client.load_model("made", config=config, files={f"file:{name}": b"x"})
        assert client.is_model_ready("made")
    with pytest.raises(InferenceServerException, match="failed to open binary file for write") as caught:
        client.load_model("made", config=config, files={"file:1/" + "x" * 300: b"x"})
    assert caught.value.status() == "500"
    client.unload_model("made")


def test_a_model_that_vanishes_from_disk_stays_until_it_is_unloaded(model: ModelFolder, client: InferenceServerClient) -> None:
    model.affine(1, 2)
    client.load_model(model.name)
    model.path.rename(model.path.parent.parent / "elsewhere")
    with pytest.raises(InferenceServerException, match=f"failed to load '{model.name}', failed to poll from model repository"):
        client.load_model(model.name)
    assert scaled(client, model.name) == 2
    client.unload_model(model.name)
    assert not client.is_model_ready(model.name)


WARMED = """
import os, pathlib, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.notes = pathlib.Path(args["model_repository"]).parent.parent / args["model_name"]

    def execute(self, requests):
        while not (self.notes.parent / (self.notes.name + ".open")).exists():
            (self.notes.parent / (self.notes.name + ".warming")).touch()
            time.sleep(0.002)
        for request in requests:
            if request.inputs()[0].as_numpy()[0] < 0:
                raise ValueError("cold")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", r.inputs()[0].as_numpy())]) for r in requests]
"""


def test_a_model_is_ready_after_its_warmup(model: ModelFolder, server: ServerProcess, client: InferenceServerClient) -> None:
    warmup = 'model_warmup [ { name: "w" inputs { key: "INPUT" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } } '
    model.config(COUNTING_CONFIG + warmup + "batch_size: 1 count: 3 } ]").python(WARMED)
    notes = model.path.parent.parent
    with ThreadPoolExecutor(1) as pool:

        def load() -> None:
            with InferenceServerClient(server.http) as other:
                other.load_model(model.name)

        loading = pool.submit(load)
        wait_until((notes / f"{model.name}.warming").exists)
        assert states(client, model.name) == [("1", "LOADING", "")]
        assert not client.is_model_ready(model.name)
        assert not loading.done()
        (notes / f"{model.name}.open").touch()
        loading.result()
    assert states(client, model.name) == [("1", "READY", "")]
    assert client.get_inference_statistics(model.name)["model_stats"][0]["inference_count"] == 0


def test_a_warmup_that_fails_fails_the_load(model: ModelFolder, client: InferenceServerClient) -> None:
    (model.path.parent.parent / f"{model.name}.open").touch()
    warmup = 'model_warmup [ { name: "w" inputs { key: "INPUT" value { data_type: TYPE_FP32 dims: [ 1 ] '
    model.config(COUNTING_CONFIG + warmup + 'input_data_file: "cold" } } batch_size: 1 } ]').python(WARMED)
    model.file("warmup/cold", np.array([-1], np.float32).tobytes())
    with pytest.raises(InferenceServerException, match=r"failed to run warmup sample 'w': (.|\n)*ValueError: cold"):
        client.load_model(model.name)
    assert states(client, model.name)[0][:2] == ("1", "UNAVAILABLE")
    model.file("warmup/cold", np.array([1], np.float32).tobytes())
    client.load_model(model.name)
    assert states(client, model.name) == [("1", "READY", "")]
