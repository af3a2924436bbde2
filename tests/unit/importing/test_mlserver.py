"""`tpy import` of MLServer's folders: what becomes of each setting, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tpy.messages import DataType
from tpy_tools.commands.importing.core.plan import Copy, ImportPlan, ModelPlan, Part, Unimportable
from tpy_tools.commands.importing.mlserver import is_mlserver_source, plan_of_mlserver
from tpy_tools.commands.importing.sources import plan_of

CODE = "from mlserver import MLModel\n\n\nclass Mine(MLModel):\n    pass\n"
X = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
Y = {"name": "y", "datatype": "INT64", "shape": [-1, 1]}
SKLEARN = {"implementation": "mlserver_sklearn.SKLearnModel"}
XGBOOST = {"implementation": "mlserver_xgboost.XGBoostModel"}
TREES = '{"learner": {}, "version": [3, 2, 0]}'


def folder(path: Path, settings: Mapping[str, Any] | None = None, files: Mapping[str, str] | None = None, **more: Any) -> Path:
    """The folder of a model; without settings of one with a class."""
    path.mkdir(parents=True, exist_ok=True)
    mine = {"implementation": "models.Mine", "inputs": [X], "outputs": [Y]} if settings is None else settings
    (path / "model-settings.json").write_text(json.dumps({**mine, **more}))
    for name, text in ({"models.py": CODE} if files is None else files).items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path


def planned(source: Path, *, trust: bool = True) -> ModelPlan:
    plan = plan_of_mlserver(source, trust=trust)
    assert not plan.refused, plan.refused
    [model] = plan.models
    return model


def refused(source: Path, *, trust: bool = True) -> str:
    plan: ImportPlan = plan_of_mlserver(source, trust=trust)
    assert not plan.models
    [part] = plan.refused
    return part.becomes


def rows(parts: object) -> dict[str, str]:
    assert isinstance(parts, list | tuple)
    return {part.source: part.becomes for part in parts if isinstance(part, Part)}


def targets(model: ModelPlan) -> list[str]:
    return sorted(each.target for each in model.files)


def test_a_class_becomes_a_python_model(tmp_path: Path) -> None:
    source = folder(tmp_path / "mine", files={"models.py": CODE, "data/words.txt": "a"})
    assert is_mlserver_source(source)
    assert is_mlserver_source(tmp_path)
    model = planned(source)
    config = model.config
    assert (model.name, config.backend, config.max_batch_size, config.dynamic_batching) == ("mine", "python", 0, None)
    assert [(each.name, each.data_type, each.dims) for each in config.input] == [("x", DataType.FP32, (-1, 4))]
    assert [(each.name, each.data_type, each.dims) for each in config.output] == [("y", DataType.INT64, (-1, 1))]
    assert targets(model) == [
        "1/folder/data/words.txt",
        "1/folder/model-settings.json",
        "1/folder/models.py",
        "1/mlserver",
        "1/model.py",
    ]
    assert (model.lost, model.steps) == ([], ())


def test_nothing_is_imported_without_trust(tmp_path: Path) -> None:
    text = "its class, models.Mine, is code that runs in the server; --trust imports it all the same"
    assert refused(folder(tmp_path / "mine"), trust=False) == text
    pickled = folder(tmp_path / "sk", SKLEARN, {"model.joblib": ""})
    assert refused(pickled, trust=False).startswith("model.joblib is a pickle, which runs whatever code it holds")


def test_settings_become_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(
        '{"parallel_workers": 3, "cache_enabled": true, "cache_size": 7, "http_port": 80, "kafka_enabled": true, "mine": 1}'
    )
    folder(
        tmp_path / "mine",
        max_batch_size=16,
        max_batch_time=0.0205,
        cache_enabled=True,
        platform="torch",
        versions=["torch/2"],
        warm_workers=False,
        parallel_workers=2,
        colour="blue",
        outputs=[{"name": "y", "datatype": "BYTES", "shape": [-1]}],
        parameters={"inference_pool_gid": "a", "content_type": "np", "extra": {"deep": [1]}, "own": 1},
    )
    for source in (tmp_path, tmp_path / "settings.json"):
        model = planned(source)
        batching = model.config.dynamic_batching
        assert batching is not None
        assert (model.config.max_batch_size, batching.preferred_batch_size) == (1024, (16,))
        assert batching.max_queue_delay_microseconds == 20_500
        assert [each.dims for each in (*model.config.input, *model.config.output)] == [(4,), (1,)]
        assert model.config.instance_group[0].count == 3
        assert model.config.response_cache is not None
        assert model.steps == ("start the server with --cache-config=local,size=BYTES: the model has a response cache",)
        lost = rows(model.lost)
        assert set(lost) == {
            *("http_port", "kafka_enabled", "mine", "cache_size", "platform", "versions", "colour", "y: shape [-1]"),
            *("parallel_workers of the model", "parameters.inference_pool_gid"),
        }
        assert lost["http_port"] == "--http-port of tpy serve (8000)"
        assert lost["colour"] == "unknown; MLServer ignores it, too"


def test_batches_need_a_size_and_a_time(tmp_path: Path) -> None:
    model = planned(folder(tmp_path / "mine", max_batch_size=16))
    assert (model.config.max_batch_size, model.config.dynamic_batching) == (0, None)
    assert rows(model.lost) == {"max_batch_size, max_batch_time": "without both, MLServer does not batch"}
    (tmp_path / "settings.json").write_text('{"parallel_workers": 0}')
    assert planned(tmp_path).config.instance_group[0].count == 1


def test_sklearn_is_served_by_its_backend(tmp_path: Path) -> None:
    source = folder(
        tmp_path / "sk", SKLEARN, {"a/model.pickle": ""}, parameters={"uri": "./a", "extra": {"predict_fn": "transform"}}
    )
    model = planned(source)
    assert (model.config.backend, model.config.default_model_filename) == ("sklearn", "model.pkl")
    assert (model.config.max_batch_size, model.config.input) == (1024, ())
    assert [(each.source, each.target) for each in model.files if isinstance(each, Copy)] == [
        (str(source / "a/model.pickle"), "1/model.pkl")
    ]
    assert model.steps == ["start the server with --backend-config=sklearn,allow-pickle=true: the model is a pickle"]
    lost = rows(model.lost)
    assert lost["parameters.extra.predict_fn"] == "ask for the output 'transform'"
    assert "here X, FP64" in lost["names and types of inputs"]
    model = planned(folder(tmp_path / "sk", SKLEARN, {"model.joblib": ""}, inputs=[X], outputs=[{**Y, "name": "predict"}]))
    assert [(each.name, each.dims) for each in (*model.config.input, *model.config.output)] == [("x", (4,)), ("predict", (1,))]
    assert set(rows(model.lost)) == {"max_batch_size"}


def test_trees_are_served_by_their_backend_unless_they_have_names(tmp_path: Path) -> None:
    source = folder(tmp_path / "xgb", XGBOOST, {"model.bst": TREES})
    model = planned(source, trust=False)
    assert (model.config.backend, targets(model), model.completes) == ("fil", ["1/xgboost.json"], True)
    assert "input__0" in rows(model.lost)["names and types of inputs and outputs"]
    model = planned(folder(source, XGBOOST, {}, inputs=[X], outputs=[{**Y, "name": "predict"}]), trust=False)
    assert (model.config.backend, model.config.parameters) == ("python", {})
    assert targets(model) == ["1/folder/model-settings.json", "1/folder/model.bst", "1/mlserver", "1/model.py"]
    assert model.steps[0] == "xgboost must be installed where the server runs"
    lightgbm = {"implementation": "mlserver_lightgbm.LightGBMModel"}
    model = planned(folder(tmp_path / "lgb", lightgbm, {"model.bst": "tree\nversion=v4\n"}))
    assert targets(model) == ["1/model.txt"]


def test_models_of_mlflow_are_imported_as_such(tmp_path: Path) -> None:
    mlflow = {"implementation": "mlserver_mlflow.MLflowRuntime", "parameters": {"uri": "./saved"}}
    text = "flavors:\n  onnx:\n    data: model.onnx\nmlflow_version: 3.1\n"
    source = folder(tmp_path / "flow", mlflow, {"saved/MLmodel": text, "saved/model.onnx": ""})
    model = planned(source)
    assert (model.name, model.config.backend) == ("flow", "onnxruntime")
    assert [(each.source, each.target) for each in model.files if isinstance(each, Copy)] == [
        (f"{source}/saved/model.onnx", "1/model.onnx")
    ]
    there = folder(tmp_path / "both", {**mlflow, "parameters": {}}, {"MLmodel": text, "model.onnx": ""}, name="named")
    plan = plan_of(there, trust=False)
    assert (plan.kind, plan.models[0].name) == ("MLServer", "named"), "the settings are not lost"
    assert Copy(f"{there}/model.onnx", "1/model.onnx") in plan.models[0].files
    (source / "saved/MLmodel").unlink()
    assert "is not the folder of an MLflow model" in refused(source)


def test_environments(tmp_path: Path) -> None:
    source = folder(
        tmp_path / "mine", files={"models.py": CODE, "env.tar.gz": ""}, parameters={"environment_tarball": "./env.tar.gz"}
    )
    model = planned(source)
    assert model.config.parameter("EXECUTION_ENV_PATH") == "$$TRITON_MODEL_DIRECTORY/environment.tar.gz"
    assert "environment.tar.gz" in targets(model)
    assert "1/folder/env.tar.gz" not in targets(model)
    (source / "env" / "bin").mkdir(parents=True)
    (source / "env" / "bin" / "python").symlink_to("/usr/bin/python3")
    model = planned(folder(source, parameters={"environment_path": "env"}))
    assert model.config.parameter("EXECUTION_ENV_PATH") == str(source / "env")
    assert not [each for each in targets(model) if "/env/" in each]
    declared = {**XGBOOST, "inputs": [X], "outputs": [Y], "parameters": {"environment_tarball": "env.tar.gz"}}
    xgb = folder(tmp_path / "xgb", declared, {"model.bst": TREES, "env.tar.gz": ""})
    assert refused(xgb, trust=False).startswith("its environment is code")
    assert planned(xgb).steps == ()


@pytest.mark.parametrize(
    ("versions", "numbers"),
    [(["3"], {"3": 3}), (["2", "10"], {"2": 2, "10": 10}), (["v9", "v10", ""], {"v9": 2, "v10": 1, "": 3}), (["0"], {"0": 1})],
)
def test_versions_get_numbers(versions: list[str], numbers: dict[str, int], tmp_path: Path) -> None:
    for version in versions:
        said = {"parameters": {"version": version}} if version else {}
        folder(tmp_path / f"of-{version}", name="mine", **said)
    model = planned(tmp_path)
    copies = [each for each in model.files if isinstance(each, Copy) and "/of-" in each.source]
    found = {each.source.rpartition("/of-")[2].partition("/")[0]: each.target for each in copies}
    assert {version: int(found[version].partition("/")[0]) for version in versions} == numbers
    assert (model.config.version_policy is not None) == (len(versions) > 1)


def test_models_below_models_have_their_own_files(tmp_path: Path) -> None:
    folder(tmp_path / "outer")
    folder(tmp_path / "outer" / "inner")
    plan = plan_of(tmp_path, trust=True)
    assert plan.kind == "MLServer"
    assert {model.name: len(model.files) for model in plan.models} == {"outer": 4, "inner": 4}
    assert planned(tmp_path / "outer" / "inner" / "model-settings.json").name == "inner"


def test_parts_of_mlserver_that_are_not_there_are_named(tmp_path: Path) -> None:
    text = f"""
import mlserver.kafka.server
from mlserver.handlers import custom_handler
from mlserver_sklearn import SKLearnModel
{CODE}
    async def predict_stream(self, payloads):
        yield None
"""
    lost = rows(planned(folder(tmp_path / "mine", files={"models.py": text.replace("    pass\n", "")})).lost)
    assert set(lost) == {
        *("models.py: import mlserver.kafka.server", "models.py: import mlserver_sklearn", "custom_handler", "predict_stream"),
    }


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"implementation": ""}, "implementation: expected the name of a class"),
        ({"implementation": "Mine"}, "implementation: 'Mine' names no class"),
        ({"implementation": "..models.Mine"}, "names no class"),
        ({"implementation": "other.Mine"}, "there is no other.py beside model-settings.json"),
        ({"implementation": "mlserver_huggingface.HuggingFaceRuntime"}, "serve language models by an engine"),
        ({"name": "a/b"}, "'a/b' cannot be a model's name here"),
        ({"inputs": []}, "model-settings.json declares no inputs"),
        ({"outputs": None}, "model-settings.json declares no outputs"),
        ({"inputs": [{**X, "datatype": "FP31"}]}, "inputs: 'x': datatype 'FP31' is not among BOOL,"),
        ({"inputs": [{**X, "shape": [0]}]}, "inputs: 'x': shape: expected a list of sizes"),
        ({"inputs": [X, X]}, "inputs: two have the same name"),
        ({"inputs": {"a": 1}}, "inputs: expected a list of tensors"),
        ({"inputs": ["x"]}, "inputs: expected tensors with name, datatype and shape"),
        ({"max_batch_size": "8"}, "max_batch_size: expected a number between 0 and 2147483647, got '8'"),
        ({"max_batch_size": [[8]]}, "got a list"),
        ({"max_batch_time": -1}, "max_batch_time: expected seconds between 0 and 2147, got -1"),
        ({"max_batch_time": True}, "max_batch_time: expected seconds"),
        ({"parameters": []}, "parameters: expected an object"),
        ({"parameters": {"uri": "../other"}}, "parameters.uri: '../other' leaves the folder of the model"),
        ({"parameters": {"uri": "/etc/passwd"}}, "parameters.uri: '/etc/passwd' leaves the folder"),
        ({"parameters": {"uri": "file:///etc"}}, "parameters.uri: '/etc' leaves the folder"),
        ({"parameters": {"uri": "s3://bucket/model"}}, "parameters.uri: 's3://bucket/model' is an address"),
        ({"parameters": {"uri": "http://[/"}}, "parameters.uri: 'http://[/' is not an address"),
        ({"parameters": {"uri": 7}}, "parameters.uri: expected text"),
        ({"parameters": {"environment_tarball": "../e.tar.gz"}}, "environment_tarball: '../e.tar.gz' leaves the folder"),
        ({"parameters": {"environment_tarball": "e.tar.gz"}}, "environment_tarball: there is no file 'e.tar.gz'"),
        ({"parameters": {"environment_path": "/none\0"}}, "environment_path: there is no folder"),
        ({**SKLEARN, "parameters": {"uri": "./none"}}, "parameters.uri: there is no file 'none'; expected one, or model.joblib"),
        ({**SKLEARN, "parameters": {"uri": "models.py"}}, "'models.py': the sklearn backend reads .joblib"),
        ({**XGBOOST, "inputs": [], "parameters": {"uri": "models.py"}}, "'models.py' is of no format that the fil backend reads"),
        ({**XGBOOST, "outputs": [], "parameters": {"uri": "models.py"}}, "declare `outputs`, too"),
    ],
)
def test_what_cannot_be_imported_is_said(said: dict[str, Any], why: str, tmp_path: Path) -> None:
    assert why in refused(folder(tmp_path / "mine", **said))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "expected an object"),
        (b"\xff", "not JSON"),
        (b" " * 2**21, "expected at most 1048576"),
    ],
)
def test_settings_that_cannot_be_read(text: bytes, why: str, tmp_path: Path) -> None:
    source = folder(tmp_path / "mine")
    (source / "model-settings.json").write_bytes(text)
    assert why in refused(source)
    folder(source)
    (tmp_path / "settings.json").write_bytes(text)
    with pytest.raises(Unimportable, match=why):
        plan_of_mlserver(tmp_path, trust=True)


def test_a_hostile_folder_is_refused_and_its_neighbours_are_not(tmp_path: Path) -> None:
    folder(tmp_path / "good")
    folder(tmp_path / "bad")
    (tmp_path / "bad" / "link").symlink_to("/etc/passwd")
    folder(tmp_path / "odd", files={"models.py": "(" * 100_000})
    plan = plan_of_mlserver(tmp_path, trust=True)
    assert [each.name for each in plan.models] == ["good", "odd"]
    assert rows(plan.refused) == {"bad": "link: a link that leads out of the folder, or to a folder"}


def test_two_folders_of_one_version_are_refused(tmp_path: Path) -> None:
    folder(tmp_path / "a", name="mine")
    folder(tmp_path / "b", name="mine")
    assert refused(tmp_path) == "two folders have the same name and version"
