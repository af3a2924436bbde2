"""`tpy import` of OpenVINO Model Server's config.json: what becomes of each setting, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput
from tpy.messages import DataType
from tpy_tools.commands.importing.core.pipelines import with_tensors
from tpy_tools.commands.importing.core.plan import ImportPlan, LinkTarget, ModelPlan, Part, Unimportable
from tpy_tools.commands.importing.openvino_server import is_openvino_server_source, plan_of_openvino_server
from tpy_tools.commands.importing.sources import plan_of


def network(folder: Path, *files: str) -> Path:
    """A base path with these files."""
    for file in files or ("1/model.xml", "1/model.bin"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return folder


def config(folder: Path, *models: Mapping[str, Any], **more: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_config_list": [{"config": each} for each in models], **more}))
    return folder


def served(folder: Path, *files: str, **settings: Any) -> Path:
    """The folder of a configuration with one model."""
    network(folder / "net", *files)
    return config(folder, {"name": "net", "base_path": "net", **settings})


def planned(source: Path) -> ModelPlan:
    plan = plan_of_openvino_server(source)
    assert not plan.refused, plan.refused
    [model] = plan.models
    return model


def refused(source: Path) -> str:
    plan: ImportPlan = plan_of_openvino_server(source)
    [part] = plan.refused
    return part.becomes


def rows(parts: Sequence[Part]) -> dict[str, str]:
    return {part.source: part.becomes for part in parts}


def test_a_model_becomes_links(tmp_path: Path) -> None:
    source = served(tmp_path)
    assert plan_of(source, trust=False).kind == "OpenVINO Model Server"
    model = planned(source / "config.json")
    assert (model.name, model.config.backend, model.config.default_model_filename) == ("net", "openvino", "model.xml")
    place = tmp_path / "net" / "1"
    assert model.files == [LinkTarget(f"{place}/model.xml", "1/model.xml"), LinkTarget(f"{place}/model.bin", "1/model.bin")]
    assert (model.completes, model.shapes, model.lost) == (True, {}, [])
    assert (model.config.max_batch_size, model.config.instance_group, model.config.version_policy) == (0, (), None)


@pytest.mark.parametrize(
    ("files", "filename", "links"),
    [
        (("3/a.xml", "3/a.bin", "3/a.txt"), "model.xml", {"3/model.xml": "3/a.xml", "3/model.bin": "3/a.bin"}),
        (
            ("1/a.onnx", "1/w.data", "2/a.onnx"),
            "model.onnx",
            {"1/model.onnx": "1/a.onnx", "1/w.data": "1/w.data", "2/model.onnx": "2/a.onnx"},
        ),
        (
            ("1/a.pdmodel", "1/a.pdiparams"),
            "model.pdmodel",
            {"1/model.pdmodel": "1/a.pdmodel", "1/model.pdiparams": "1/a.pdiparams"},
        ),
        (("1/a.tflite", "0/a.xml", "x/b.xml"), "model.tflite", {"1/model.tflite": "1/a.tflite"}),
        (("7/saved_model.pb", "7/variables/a"), "model.savedmodel", {"7/model.savedmodel": "7"}),
    ],
)
def test_files_of_all_formats(files: Sequence[str], filename: str, links: Mapping[str, str], tmp_path: Path) -> None:
    model = planned(served(tmp_path, *files))
    assert model.config.default_model_filename == filename
    found = {each.target: each.source for each in model.files if isinstance(each, LinkTarget)}
    assert found == {target: f"{tmp_path}/net/{source}" for target, source in links.items()}


def test_settings_become_the_configuration(tmp_path: Path) -> None:
    model = planned(
        served(
            tmp_path,
            "1/a.xml",
            "2/a.xml",
            base_path="/opt/ml/net",
            batch_size="16",
            nireq=4,
            target_device="GPU",
            plugin_config={"NUM_STREAMS": 2, "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": True},
            model_version_policy={"specific": {"versions": [2]}},
            layout="NCHW",
            idle_sequence_cleanup=True,
            cache_dir="/tmp",
        )
    )
    found = model.config
    assert (found.max_batch_size, found.instance_group[0].count) == (16, 4)
    assert {key: value.string_value for key, value in found.parameters.items()} == {
        "NUM_STREAMS": "2",
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": "YES",
        "TARGET_DEVICE": "GPU",
    }
    assert found.version_policy is not None
    assert found.version_policy.specific is not None
    assert found.version_policy.specific.versions == (2,)
    assert set(rows(model.lost)) == {"layout: NCHW", "idle_sequence_cleanup", "cache_dir"}
    model = planned(
        served(tmp_path, "1/a.xml", batch_size="auto", target_device="CPU", model_version_policy={"latest": {"num_versions": 2}})
    )
    [group] = model.config.instance_group
    assert (model.config.max_batch_size, group.count, group.kind) == (64, 1, InstanceKind.KIND_CPU)


@pytest.mark.parametrize(
    ("shape", "shapes", "lost"),
    [
        ("(1,3,224,224)", {"": (1, 3, 224, 224)}, set()),
        ("1, 3, -1", {"": (1, 3, -1)}, set()),
        ({"a": "(1:8,2)", "b": "auto"}, {"a": (-1, 2)}, {"shape of a: (1:8,2)", "shape of b: auto"}),
        ('{"a": "(5,)"}', {"a": (5,)}, set()),
        ("auto", {}, {"shape: auto"}),
    ],
)
def test_shapes(shape: object, shapes: Mapping[str, tuple[int, ...]], lost: set[str], tmp_path: Path) -> None:
    model = planned(served(tmp_path, shape=shape, batch_size=4))
    assert model.shapes == shapes
    assert set(rows(model.lost)) == lost | ({"batch_size"} if shapes else set())
    assert model.config.max_batch_size == (0 if shapes else 4)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"name": "a/b"}, "'a/b' cannot be a model's name here"),
        ({"base_path": "s3://bucket/net"}, "base_path: 's3://bucket/net' is in the cloud"),
        ({"base_path": "none"}, "base_path: there is no folder 'none'"),
        ({"base_path": "a\0b"}, "base_path: there is no folder"),
        ({"layout": "NHWC:NCHW"}, "layout: 'NHWC:NCHW' transposes tensors"),
        ({"layout": {"a": "NHWC:NCHW"}}, "layout of a: 'NHWC:NCHW' transposes"),
        ({"mean": "[1]"}, "mean: changes values"),
        ({"stateful": True}, "stateful: keep the state by sequences"),
        ({"custom_loader_options": {"loader_name": "x"}}, "custom_loader_options: a custom loader"),
        ({"colour": 1}, "unknown: colour"),
        ({"shape": "(1,0)"}, "shape: expected sizes such as"),
        ({"shape": "(" + "1," * 40 + ")"}, "shape: expected sizes"),
        ({"shape": "{"}, "shape: not JSON"),
        ({"shape": 5}, "shape: expected a shape"),
        ({"batch_size": -1}, "batch_size: expected a number between 0"),
        ({"nireq": 10**9}, "nireq: expected a number between 0 and 1024"),
        ({"plugin_config": []}, ""),
        ({"plugin_config": [1]}, "plugin_config: expected an object"),
        ({"plugin_config": {"A": [1]}}, "plugin_config: A: expected a number"),
        ({"plugin_config": {"a b": 1}}, "plugin_config: 'a b' is not the name of a property"),
        ({"model_version_policy": {"specific": {"versions": [9]}}}, "model_version_policy: there is no version 9"),
        ({"model_version_policy": {"latest": {"num_versions": 0}}}, "latest: num_versions: expected a number above 0"),
        ({"model_version_policy": {"newest": {}}}, "expected one of latest, specific with versions, all"),
        ({"model_version_policy": 1}, "expected one of latest, specific, all"),
    ],
)
def test_what_cannot_be_imported_is_said(said: dict[str, Any], why: str, tmp_path: Path) -> None:
    source = served(tmp_path, **said)
    if why:
        assert why in refused(source)
    else:
        planned(source)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (("1/a.xml", "1/b.xml"), "several files end in .xml: a.xml, b.xml"),
        (("1/a.txt",), "no file that ends in .xml, .onnx"),
        (("0/a.xml",), "no version: expected folders 1, 2"),
        (("1/a.xml", "2/a.onnx"), "versions of several formats (model.onnx, model.xml)"),
    ],
)
def test_folders_without_one_model(files: Sequence[str], why: str, tmp_path: Path) -> None:
    assert why in refused(served(tmp_path, *files))


def test_other_parts_of_a_configuration(tmp_path: Path) -> None:
    network(tmp_path / "net")
    settings = {"name": "net", "base_path": "net"}
    config(
        tmp_path,
        settings,
        settings,
        monitoring={"metrics": {"enable": True}},
        custom_node_library_config_list=[{"name": "a", "base_path": "b"}],
        mediapipe_config_list=[{"name": "graph"}],
        more=1,
    )
    plan = plan_of_openvino_server(tmp_path)
    assert rows(plan.refused) == {
        "net": "two models have this name",
        "graph": "a graph of MediaPipe: write a Python model or an ensemble",
    }
    assert set(rows(plan.models[0].lost)) == {"monitoring", "custom_node_library_config_list", "more"}


@pytest.mark.parametrize("text", ["{", "[]", '{"model": "bert"}', "[" * 100_000])
def test_other_files_of_this_name_are_not_taken(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert not is_openvino_server_source(tmp_path)
    with pytest.raises(Unimportable, match="expected the folder of an MLflow model"):
        plan_of(tmp_path, trust=True)


@pytest.mark.parametrize(
    "said", [{"model_config_list": {}}, {"model_config_list": [1]}, {"model_config_list": [], "pipeline_config_list": 1}]
)
def test_lists_that_are_none(said: Mapping[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(Unimportable, match=r"config\.json: .*: expected"):
        plan_of_openvino_server(tmp_path)


def source_of(node: str, item: str) -> dict[str, str]:
    return {"node_name": node, "data_item": item}


def node(name: str = "n", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "model_name": "net",
        "type": "DL model",
        "inputs": [{"x": source_of("request", "in")}],
        "outputs": [{"data_item": "y", "alias": "o"}],
        **more,
    }


def pipeline(*nodes: Any, **more: Any) -> dict[str, Any]:
    return {
        "name": "p",
        "inputs": ["in"],
        "nodes": list(nodes) or [node()],
        "outputs": [{"out": source_of("n", "o")}],
        **more,
    }


def planned_pipeline(folder: Path, said: object) -> ImportPlan:
    network(folder / "net")
    return plan_of_openvino_server(config(folder, {"name": "net", "base_path": "net"}, pipeline_config_list=[said]))


def test_a_pipeline_becomes_an_ensemble(tmp_path: Path) -> None:
    second = node("m", inputs=[{"x": source_of("n", "o")}], outputs=[{"data_item": "y", "alias": "o"}], version=3)
    plan = planned_pipeline(tmp_path, pipeline(node(), second, outputs=[{"out": source_of("m", "o")}]))
    assert plan.refused == []
    made = plan.models[-1].config
    assert made.ensemble_scheduling is not None
    assert [
        (each.model_name, each.model_version, dict(each.input_map), dict(each.output_map))
        for each in made.ensemble_scheduling.step
    ] == [
        ("net", -1, {"x": "in"}, {"y": "n.o"}),
        ("net", 3, {"x": "n.o"}, {"y": "out"}),
    ]

    def member(size: int, *dims: int) -> ModelConfig:
        kind = DataType.FP16
        return ModelConfig(
            max_batch_size=size,
            input=(ModelInput(name="x", data_type=kind, dims=dims),),
            output=(ModelOutput(name="y", data_type=kind, dims=dims),),
        )

    complete = with_tensors(made, {"net": member(8, 2)})
    assert (complete.max_batch_size, complete.input[0].name, complete.input[0].dims) == (8, "in", (2,))
    assert (complete.output[0].name, complete.output[0].data_type) == ("out", DataType.FP16)
    mixed = plan.models[-1].config
    assert mixed.ensemble_scheduling is not None
    [first, last] = mixed.ensemble_scheduling.step
    other = msgspec.structs.replace(last, model_name="fixed")
    mixed = msgspec.structs.replace(
        mixed, ensemble_scheduling=msgspec.structs.replace(mixed.ensemble_scheduling, step=(first, other))
    )
    complete = with_tensors(mixed, {"net": member(8, 2), "fixed": member(0, 4, 2)})
    assert (complete.max_batch_size, complete.input[0].dims, complete.output[0].dims) == (0, (-1, 2), (4, 2))
    for members, why in (
        ({}, "its model 'net' is not imported"),
        ({"net": ModelConfig()}, "inputs of 'net' are not known here"),
        ({"net": msgspec.structs.replace(member(8, 2), output=())}, "no model of the pipeline has the tensor for 'out'"),
    ):
        with pytest.raises(Unimportable, match=why):
            with_tensors(made, members)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (1, "pipeline_config_list: expected objects"),
        (pipeline(name="net"), "a model has this name, too"),
        (pipeline(name="../p"), "'../p' cannot be a model's name"),
        (pipeline(inputs=5), "expected lists: inputs, nodes, outputs"),
        (pipeline(demultiply_count=0), "demultiply_count: an ensemble does not split requests"),
        (pipeline(node(demultiply_count=2)), "node 'n': demultiply_count"),
        (pipeline(node(gather_from_node="n")), "node 'n': gather_from_node"),
        (pipeline(node(type="custom", library_name="l")), "node 'n': type 'custom': write a Python model"),
        (pipeline(node(model_name="other")), "node 'n': the model 'other' is not imported"),
        (pipeline(node(version="1")), "node 'n': version: expected a number"),
        (pipeline(node(), node()), "nodes: expected nodes of different names"),
        (pipeline(node("request")), "nodes: expected nodes of different names"),
        (pipeline(node(inputs=[{"x": source_of("none", "o")}])), "node 'n': there is no node 'none'"),
        (pipeline(node(inputs=[{"x": source_of("request", "no")}])), "node 'n': the pipeline has no input 'no'"),
        (pipeline(node(inputs=[{"x": 1}])), "node 'n': inputs: 'x': expected node_name and data_item"),
        (pipeline(node(inputs=[{}])), "node 'n': inputs: expected objects of one name each"),
        (pipeline(node(inputs=5)), "node 'n': inputs: expected a list"),
        (pipeline(node(outputs=[1])), "node 'n': outputs: expected objects with data_item and alias"),
        (pipeline(node(outputs=5)), "node 'n': outputs: expected objects with data_item and alias"),
        (pipeline(node(outputs=[{"data_item": "y"}])), "node 'n': outputs: expected objects with data_item and alias"),
        (pipeline(outputs=[{"out": source_of("n", "other")}]), "no node makes 'out'"),
        (pipeline(outputs=[{"in": source_of("n", "o")}]), "inputs and outputs: expected different names"),
        (pipeline(outputs=[{"a": source_of("n", "o")}, {"b": source_of("n", "o")}]), "outputs: 'b' is the same tensor as 'a'"),
    ],
)
def test_pipelines_that_are_no_ensembles(said: object, why: str, tmp_path: Path) -> None:
    [part] = planned_pipeline(tmp_path, said).refused
    assert why in part.becomes
