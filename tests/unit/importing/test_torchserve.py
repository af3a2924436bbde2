"""`tpy import` of TorchServe's archives and model stores: what becomes of each setting, and what is refused."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tpy.config.model_config import InstanceKind
from tpy_tools.commands.importing.core.plan import ImportPlan, ModelPlan, Part, Text, Unimportable, Unpack
from tpy_tools.commands.importing.torchserve import imported_of_ts, is_torchserve_source, plan_of_torchserve

HANDLER = "def handle(data, context):\n    return data\n"


def archive(
    folder: Path,
    name: str = "m",
    version: str = "1.0",
    *,
    config: str = "",
    files: Mapping[str, str] | None = None,
    file: str = "",
    top: Mapping[str, Any] | None = None,
    **model: Any,
) -> Path:
    """An archive as torch-model-archiver 0.12 makes it."""
    folder.mkdir(exist_ok=True)
    said = {"modelName": name, "handler": "handler.py", "modelVersion": version, **model}
    contents = {"handler.py": HANDLER, **(files or {})}
    if config:
        said["configFile"] = "model-config.yaml"
        contents["model-config.yaml"] = config
    manifest = {
        "createdOn": "24/11/2026 17:04:36",
        "runtime": "python",
        "model": said,
        "archiverVersion": "0.12.0",
        **(top or {}),
    }
    path = folder / (file or f"{name}.mar")
    with zipfile.ZipFile(path, "w") as written:
        for each, text in {**contents, "MAR-INF/MANIFEST.json": json.dumps(manifest)}.items():
            written.writestr(each, text)
    return path


def planned(source: Path) -> ModelPlan:
    plan = plan_of_torchserve(source, trust=True)
    assert not plan.refused, plan.refused
    [model] = plan.models
    return model


def refused(source: Path, *, trust: bool = True) -> str:
    plan: ImportPlan = plan_of_torchserve(source, trust=trust)
    assert not plan.models
    [part] = plan.refused
    return part.becomes


def rows(parts: object) -> dict[str, str]:
    assert isinstance(parts, list | tuple)
    return {part.source: part.becomes for part in parts if isinstance(part, Part)}


def test_an_archive_becomes_a_python_model(tmp_path: Path) -> None:
    model = planned(archive(tmp_path, extensions="", files={"index_to_name.json": "{}"}))
    config = model.config
    assert (model.name, config.backend, config.max_batch_size, config.version_policy) == ("m", "python", 1, None)
    assert [(each.name, each.optional) for each in config.input] == [("body", False), ("headers", True)]
    assert [each.name for each in config.output] == ["response", "status", "response_headers"]
    assert config.parameter("TORCHSERVE_VERSIONS") == "1=1.0"
    assert config.parameter("TPY_EXECUTE_TIMEOUT_SECONDS") == "120"
    assert sorted(each.target for each in model.files) == ["1/archive", "1/model.py", "1/ts"]
    assert Unpack(str(tmp_path / "m.mar"), "1/archive") in model.files
    assert config.dynamic_batching is not None
    assert config.dynamic_batching.max_queue_delay_microseconds == 0, "a batch of one has nothing to wait for"
    assert config.dynamic_batching.default_queue_policy is not None
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 100
    assert model.steps == []


def test_what_a_model_config_says_is_read_without_yaml(tmp_path: Path) -> None:
    model = planned(archive(tmp_path, config="mine: {a: [1, 2.5]}"))
    [text] = [each.text for each in model.files if isinstance(each, Text) and each.target == "1/model-config.json"]
    assert (json.loads(text), model.steps) == ({"mine": {"a": [1, 2.5]}}, [])
    dated = planned(archive(tmp_path / "dated", config="since: 2026-11-28"))
    assert not [each for each in dated.files if each.target == "1/model-config.json"]
    assert dated.steps == ["PyYAML must be installed where the server runs"]


def test_nothing_is_imported_without_trust(tmp_path: Path) -> None:
    text = "its handler, handler.py, is code that runs in the server; --trust imports it all the same"
    assert refused(archive(tmp_path), trust=False) == text


def test_settings_of_an_archive(tmp_path: Path) -> None:
    config = """
minWorkers: 3
maxWorkers: 5
batchSize: 8
maxBatchDelay: 20
responseTimeout: 30
startupTimeout: 300
clientTimeoutInMills: 700
jobQueueSize: 50
deviceType: cpu
parallelType: pp
torchrun: {nproc-per-node: 4}
handler: {profile: true}
pt2: {compile: {enable: true}}
mine: 1
"""
    model = planned(archive(tmp_path, config=config))
    batching = model.config.dynamic_batching
    assert batching is not None
    assert batching.default_queue_policy is not None
    assert (model.config.max_batch_size, batching.max_queue_delay_microseconds) == (8, 20_000)
    assert batching.default_queue_policy.max_queue_size == 50
    assert batching.default_queue_policy.default_timeout_microseconds == 700_000
    assert model.config.parameter("TPY_EXECUTE_TIMEOUT_SECONDS") == "30"
    [group] = model.config.instance_group
    assert (group.count, group.kind) == (3, InstanceKind.KIND_CPU)
    assert set(rows(model.lost)) == {"startupTimeout", "parallelType", "torchrun", "maxWorkers"}
    assert model.steps == []


def test_workers_are_dealt_out_to_gpus(tmp_path: Path) -> None:
    model = planned(archive(tmp_path, config="minWorkers: 3\ndeviceIds: [2, 3]"))
    [group] = model.config.instance_group
    assert (group.count, group.kind, group.gpus) == (2, InstanceKind.KIND_GPU, (2, 3))
    assert rows(model.carried)["deviceIds"] == "instance_group: gpus [2, 3], 2 instances on each"


def test_a_model_store_with_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.properties").write_text(
        "# of TorchServe\ninference_address=http://0.0.0.0:8080\nmodel_store=/home/model-server/store\nload_models = all\n"
        "default_workers_per_model: 4\ndefault_response_timeout=90\njob_queue_size=7\nservice_envelope=json\n"
        'models={\\\n  "m": {\\\n    "2.0": {"defaultVersion": true, "batchSize": 16, "maxBatchDelay": 3}\\\n  }\\\n}\n'
        "async_logging=true\n"
    )
    store = tmp_path / "store"
    archive(store, "m", "1.0", file="old.mar")
    archive(store, "m", "2.0", file="new.mar")
    archive(store, "other", config="minWorkers: 1\nbatchSize: 2")
    archive(store, "broken", handler="missing.py")
    (store / "readme.txt").touch()
    assert is_torchserve_source(tmp_path)
    plan = plan_of_torchserve(tmp_path / "config.properties", trust=True)
    [(refused_name, why)] = rows(plan.refused).items()
    assert (refused_name, "'missing.py' is neither in the archive nor one of base_handler" in why) == ("broken.mar", True)
    m, other = plan.models
    assert m.config.parameter("TORCHSERVE_VERSIONS") == "2=2.0 1=1.0"
    assert m.config.version_policy is not None
    assert m.config.version_policy.all is not None
    assert (m.config.max_batch_size, m.config.parameter("TPY_EXECUTE_TIMEOUT_SECONDS")) == (16, "90")
    assert m.config.instance_group[0].count == 4
    assert m.config.parameter("TORCHSERVE_ENVELOPE") == "json"
    assert rows(m.lost)["settings of 1.0"] == "settings hold for all versions: those of 2.0"
    assert rows(m.lost)["inference_address"] == "--allow-torchserve and --torchserve-port of tpy serve"
    assert "unknown" in rows(m.lost)["async_logging"]
    assert "model_store" not in rows(m.lost)
    assert (other.config.instance_group[0].count, other.config.max_batch_size) == (1, 2)


def test_models_that_are_named_are_those_that_are_read(tmp_path: Path) -> None:
    archive(tmp_path, "a")
    archive(tmp_path, "b")
    properties = tmp_path / "config.properties"
    properties.write_text("load_models=first=b.mar\n")
    assert planned(tmp_path).name == "b"
    properties.write_text("load_models=https://x.org/c.mar,b.mar\n")
    with pytest.raises(Unimportable, match=r"load_models: there is no c\.mar"):
        plan_of_torchserve(tmp_path, trust=True)


@pytest.mark.parametrize(
    ("versions", "numbers"),
    [
        (["3"], "3=3"),
        (["1.2"], "1=1.2"),
        (["2.0", "2.0.1", "1.10", "1.9"], "3=2.0 4=2.0.1 2=1.10 1=1.9"),
        (["1", "1.0"], "1=1 2=1.0"),
        (["beta"], "1=beta"),
    ],
)
def test_versions_get_numbers(versions: list[str], numbers: str, tmp_path: Path) -> None:
    for at, version in enumerate(versions):
        archive(tmp_path, "m", version, file=f"{at}.mar")
    assert planned(tmp_path).config.parameter("TORCHSERVE_VERSIONS") == numbers


def test_an_unpacked_archive_is_copied(tmp_path: Path) -> None:
    with zipfile.ZipFile(archive(tmp_path, requirementsFile="requirements.txt", files={"requirements.txt": "numpy"})) as packed:
        packed.extractall(tmp_path / "unpacked")
    model = planned(tmp_path / "unpacked")
    assert [each.target for each in model.files] == ["1/model.py", "1/archive", "1/ts"]
    assert any("pip install numpy -r {model}/1/archive/requirements.txt" in step for step in model.steps)
    assert "EXECUTION_ENV_PATH" in model.footer
    (tmp_path / "unpacked" / "link").symlink_to("/etc")
    assert refused(tmp_path / "unpacked").startswith("link: a link that leads out of the folder")


def test_stock_handlers_need_their_packages(tmp_path: Path) -> None:
    assert planned(archive(tmp_path, handler="image_classifier")).steps == [
        "torch, torchvision and Pillow must be installed where the server runs"
    ]
    assert planned(archive(tmp_path, handler="text_classifier")).steps == ["torch must be installed where the server runs"]


def test_modules_of_torchserve_that_are_not_there_are_named(tmp_path: Path) -> None:
    text = """
from ts.torch_handler.base_handler import BaseHandler
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler import (image_classifier, densenet_handler)
import ts.metrics.metrics_store, os
import torch
"""
    assert imported_of_ts(text) >= {"ts.torch_handler.densenet_handler", "ts.handler_utils.utils", "ts.metrics.metrics_store"}
    lost = rows(planned(archive(tmp_path, files={"handler.py": text})).lost)
    assert {name for name in lost if "import" in name} == {
        "handler.py: import ts.handler_utils.utils",
        "handler.py: import ts.torch_handler.densenet_handler",
    }


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"handler": "vllm_handler"}, "handler: 'vllm_handler' is neither in the archive nor one of base_handler"),
        ({"handler": "handler.py:a b"}, "handler: 'handler.py:a b' names no function"),
        ({"name": "a/b"}, "'a/b' cannot be a model's name here"),
        ({"name": ""}, "'' cannot be a model's name here"),
        ({"serializedFile": "../weights.pt"}, "serializedFile: '../weights.pt' leaves the folder"),
        ({"serializedFile": "weights.pt"}, "serializedFile: there is no file 'weights.pt'"),
        ({"top": {"runtime": "LSP"}}, "runtime: 'LSP': only handlers in Python"),
        ({"top": {"model": []}}, "says nothing about a model"),
        ({"version": "a=b"}, "modelVersion: expected letters"),
        ({"config": "sequenceBatching: true"}, "sequenceBatching: its handler keeps sequences"),
        ({"config": "continuousBatching: true"}, "continuousBatching: its handler answers in pieces"),
        ({"config": "batchSize: -1"}, "batchSize: expected a number between 1"),
        ({"config": "minWorkers: 100000"}, "minWorkers: expected a number between 1 and 1024"),
        ({"config": "batchSize: [1]"}, "batchSize: expected a number"),
        ({"config": "deviceIds: [a]"}, "deviceIds: expected numbers of GPUs"),
        ({"config": "a: &a {b: 1}\nc: {<<: *a}"}, "YAML with merged anchors"),
        ({"config": "- 1"}, "expected names and values"),
    ],
)
def test_what_cannot_be_imported_is_said(said: dict[str, Any], why: str, tmp_path: Path) -> None:
    said = {"name": "m", **said}
    assert why in refused(archive(tmp_path, file="x.mar", **said))


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "expected an object"),
        (b"\xff", "not JSON"),
        (None, "it has no MAR"),
    ],
)
def test_manifests_that_cannot_be_read(manifest: bytes | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "x.mar"
    with zipfile.ZipFile(path, "w") as written:
        written.writestr("MAR-INF/MANIFEST.json" if manifest is not None else "other", manifest or b"")
    assert why in refused(path)


def test_a_hostile_archive_is_refused_and_its_neighbours_are_not(tmp_path: Path) -> None:
    archive(tmp_path, "good")
    with zipfile.ZipFile(archive(tmp_path, "bad"), "a") as written:
        written.writestr("../../out.py", "")
    plan = plan_of_torchserve(tmp_path, trust=True)
    assert [each.name for each in plan.models] == ["good"]
    assert "'../../out.py' is refused: its path leads out" in rows(plan.refused)["bad.mar"]


def test_two_archives_of_one_version_are_refused(tmp_path: Path) -> None:
    archive(tmp_path, "m", file="a.mar")
    archive(tmp_path, "m", file="b.mar")
    assert refused(tmp_path) == "two archives have the same modelName and modelVersion"


HANDLERS = "def before(data, context):\n    return data\n\n\ndef after(data, context):\n    return data\n"
CHAIN = """
models:
  min-workers: 2
  batch-size: 4
  timeout-ms: 1500
  retry-attempts: 3
  first: {url: m.mar}
  second: {url: stored/m.mar, batch-size: 8}
dag:
  second: [after]
  before: [first]
  first: [second]
"""


def workflow(folder: Path, specification: str, handler: str = "handlers.py", **said: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "w.war"
    manifest = {"workflow": {"workflowName": "w", "specFile": "workflow.yaml", "handler": handler, **said}}
    with zipfile.ZipFile(path, "w") as written:
        for name, text in {
            "handlers.py": HANDLERS,
            "workflow.yaml": specification,
            "WAR-INF/MANIFEST.json": json.dumps(manifest),
        }.items():
            written.writestr(name, text)
    return path


def test_a_chain_becomes_an_ensemble(tmp_path: Path) -> None:
    archive(tmp_path, config="minWorkers: 1\nmine: 1\n")
    path = workflow(tmp_path, CHAIN)
    plan = plan_of_torchserve(path, trust=True)
    assert not plan.refused
    before, first, second, after, ensemble = plan.models
    assert [each.name for each in plan.models] == ["w__before", "w__first", "w__second", "w__after", "w"]
    assert before.config.parameter("TORCHSERVE_HANDLER") == "handlers.py:before"
    assert (before.config.max_batch_size, before.config.instance_group[0].count) == (1, 1)
    assert Unpack(str(path), "1/archive") in before.files
    assert Unpack(str(tmp_path / "m.mar"), "1/archive") in first.files
    assert [each.config.max_batch_size for each in (first, second)] == [4, 8]
    assert [each.config.instance_group[0].count for each in (first, second)] == [1, 1], "the archive's own settings are first"
    assert first.config.parameter("TPY_EXECUTE_TIMEOUT_SECONDS") == "2"
    assert set(rows(first.lost)) == {"retryAttempts"}
    assert [each.config.parameter("TORCHSERVE_ANSWERS") for each in (before, first, second, after)] == ["successes"] * 3 + [""]
    scheduling = ensemble.config.ensemble_scheduling
    assert scheduling is not None
    assert [(step.model_name, dict(step.input_map), dict(step.output_map)) for step in scheduling.step] == [
        ("w__before", {"body": "body", "headers": "headers"}, {"response": "before.response"}),
        ("w__first", {"body": "before.response"}, {"response": "first.response"}),
        ("w__second", {"body": "first.response"}, {"response": "second.response"}),
        ("w__after", {"body": "second.response"}, {name: name for name in ("response", "status", "response_headers")}),
    ]


def test_workflows_of_a_store(tmp_path: Path) -> None:
    archive(tmp_path / "models")
    workflow(tmp_path / "flows", "models: {only: {url: m.mar}}\ndag: {before: [only]}\n")
    (tmp_path / "config.properties").write_text("model_store=models\nworkflow_store=flows\n")
    plan = plan_of_torchserve(tmp_path, trust=True)
    assert not plan.refused
    assert sorted(each.name for each in plan.models) == ["m", "w", "w__before", "w__only"]


@pytest.mark.parametrize(
    ("specification", "why"),
    [
        ("models: {}\n", "workflow.yaml: expected models and dag"),
        ("models: []\ndag: {}\n", "workflow.yaml: expected models and dag"),
        ("models: {}\ndag: {}\n", "dag: expected a chain with one begin, got none; "),
        ("models: {}\ndag: {a: 1}\n", "dag: expected names, each with the list of the nodes that follow it"),
        ("models: {}\ndag: {a: [b, c]}\n", "dag: 'a' leads to b, c: only chains are imported; "),
        ("models: {}\ndag: {a: [c], b: [c]}\n", "dag: 'c' follows several nodes: only chains are imported; "),
        ("models: {}\ndag: {a: [b], b: [a]}\n", "dag: expected a chain with one begin, got none; "),
        ("models: {}\ndag: {a: [b], c: [d]}\n", "dag: expected a chain with one begin, got a, c; "),
        ("models: {}\ndag: {a: [b], c: [d], d: [c]}\n", "dag: 'c' and 'd' lead to each other; "),
        ("models: {}\ndag: {'../a': [b]}\n", "'../a' cannot be a model's name here"),
        ("models: {x: {url: m.mar}}\ndag: {a: [b]}\n", "models: 'x' is not in dag"),
        ("models: {a: {}}\ndag: {a: [b]}\n", "models: 'a': expected the url of its archive"),
        (
            "models: {a: {url: 'https://host/m.mar'}}\ndag: {a: [b]}\n",
            "models: 'a': https://host/m.mar is an address: fetch it, ",
        ),
        ("models: {a: {url: ../m.mar}}\ndag: {a: [b]}\n", "models: 'a': url: '../m.mar' leaves the folder of the model"),
        ("models: {a: {url: none.mar}}\ndag: {a: [b]}\n", "models: 'a': there is no none.mar beside it"),
        ("models: {a: {url: m.mar, batch-size: -1}}\ndag: {a: [b]}\n", "m.mar: batchSize: expected a number between 1 and "),
    ],
)
def test_workflows_that_are_refused(tmp_path: Path, specification: str, why: str) -> None:
    archive(tmp_path)
    assert refused(workflow(tmp_path, specification)).startswith(why)


def test_a_workflow_needs_its_handler_and_trust(tmp_path: Path) -> None:
    path = workflow(tmp_path, "models: {}\ndag: {a: [b]}\n", handler="none.py")
    assert refused(path) == "handler: there is no file 'none.py', which has the functions of the workflow"
    assert "--trust imports it all the same" in refused(path, trust=False)


def test_names_are_there_once(tmp_path: Path) -> None:
    archive(tmp_path, "w")
    workflow(tmp_path, "models: {}\ndag: {a: [b]}\n").rename(tmp_path / "one.war")
    workflow(tmp_path, "models: {}\ndag: {a: [b]}\n").rename(tmp_path / "two.war")
    plan = plan_of_torchserve(tmp_path, trust=True)
    assert sorted(each.name for each in plan.models) == ["w", "w__a", "w__b"]
    assert rows(plan.refused) == {
        "two.war": "another workflow has models of these names, too: w, w__a, w__b",
        "w": "a workflow has a model of this name, too",
    }
