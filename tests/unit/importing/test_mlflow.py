"""`tpy import` of MLflow models: what becomes of each flavour. The documents are as MLflow 3.17 writes them."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tpy.messages import DataType
from tpy_tools.commands.importing.core.mlflow import MlflowFolder, plan_mlflow
from tpy_tools.commands.importing.core.plan import Copy, ModelPlan, Part, Unimportable
from tpy_tools.commands.importing.core.python_function import model_py
from tpy_tools.commands.importing.core.report import as_text
from tpy_tools.commands.importing.core.signature import inputs_of, outputs_of, read_signature
from tpy_tools.commands.importing.mlflow import read_mlflow
from tpy_tools.commands.importing.registry import fetched

COLUMNS = [{"type": "double", "name": "a", "required": True}, {"type": "string", "name": "b", "required": False}]
TENSOR = [{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}]
PYTHON_FUNCTION = {"loader_module": "mlflow.sklearn", "python_version": "3.11.7", "env": {"virtualenv": "python_env.yaml"}}


def signature(inputs: object = TENSOR, outputs: object = TENSOR, params: object = None) -> dict[str, Any]:
    return {
        "inputs": json.dumps(inputs),
        "outputs": json.dumps(outputs),
        "params": None if params is None else json.dumps(params),
    }


def folder(flavors: Mapping[str, Any], *files: str, kinds: Mapping[str, str] | None = None, **more: Any) -> MlflowFolder:
    document = {"flavors": flavors, "mlflow_version": "3.17.2", "signature": signature(), **more}
    return MlflowFolder(name="mine", document=document, files=frozenset(files), kinds=kinds or {})


def planned(source: MlflowFolder, *, trust: bool = False) -> ModelPlan:
    plan = plan_mlflow(source, trust=trust)
    assert not plan.refused, plan.refused
    [model] = plan.models
    return model


def refused(source: MlflowFolder, *, trust: bool = False) -> str:
    plan = plan_mlflow(source, trust=trust)
    assert not plan.models
    [part] = plan.refused
    assert part.source == "mine"
    return part.becomes


def test_an_onnx_flavour_becomes_an_onnx_model() -> None:
    onnx = {"data": "model.onnx", "providers": ["CPUExecutionProvider"], "onnx_session_options": {"inter_op_num_threads": 1}}
    model = planned(
        folder(
            {"onnx": onnx, "python_function": PYTHON_FUNCTION},
            "model.onnx",
            "model.onnx.data",
            "requirements.txt",
            metadata={"a": 1},
        )
    )
    assert list(model.files) == [Copy("model.onnx", "1/model.onnx"), Copy("model.onnx.data", "1/model.onnx.data")]
    assert (model.config.backend, model.completes) == ("onnxruntime", True)
    lost = [part.source for part in model.lost]
    assert lost == [
        *("flavors.onnx.providers", "flavors.onnx.onnx_session_options", "flavors.python_function"),
        *("requirements.txt", "signature", "metadata"),
    ]


def test_what_the_mlflow_port_needs_is_a_parameter() -> None:
    def noted(model: ModelPlan) -> object:
        return json.loads(model.config.parameter("MLFLOW_MODEL"))

    tensor = {"type": "float32", "shape": [-1, 2]}
    native = planned(folder({"onnx": {"data": "m.onnx"}}, "m.onnx"))
    assert noted(native) == {"flavor": "onnx", "inputs": [tensor], "outputs": [tensor]}
    general = {**PYTHON_FUNCTION, "predict_fn": "predict_proba"}
    unsigned = folder({"python_function": general, "sklearn": {"pickled_model": "m.skops"}}, "m.skops", signature=None)
    assert noted(planned(unsigned)) == {"flavor": "sklearn", "output": "predict_proba"}
    columns = folder({"python_function": PYTHON_FUNCTION}, signature=signature(COLUMNS, COLUMNS[:1]))
    assert noted(planned(columns, trust=True)) == {
        "flavor": "python_function",
        "inputs": [{"name": "a", "type": "double"}, {"name": "b", "type": "string", "required": False}],
        "outputs": [{"name": "a", "type": "double"}],
    }


def test_a_key_that_nobody_knows_is_named() -> None:
    model = planned(folder({"onnx": {"data": "m.onnx"}}, "m.onnx", quantum={"a": 1}))
    assert Part("quantum", "unknown") in model.lost


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..\\b", "", None, ["model.onnx"]])
def test_a_path_that_leaves_the_folder_is_refused(path: object) -> None:
    assert "leaves the folder of the model" in refused(folder({"onnx": {"data": path}}, "model.onnx"))


def test_skops_becomes_an_sklearn_model() -> None:
    said = {"pickled_model": "model.skops", "skops_trusted_types": ["a.B", "c.D"]}
    general = {**PYTHON_FUNCTION, "predict_fn": "predict_proba"}
    model = planned(folder({"python_function": general, "sklearn": said}, "model.skops"))
    assert list(model.files) == [Copy("model.skops", "1/model.skops")]
    assert (model.config.backend, model.config.default_model_filename) == ("sklearn", "model.skops")
    assert Part("python_function.predict_fn", "ask for the output 'predict_proba'") in model.lost
    assert "'--backend-config=sklearn,trusted-types=a.B;c.D'" in model.steps[0]


def test_a_pickle_needs_trust() -> None:
    source = folder({"sklearn": {"pickled_model": "model.pkl"}}, "model.pkl")
    assert "a pickle, which runs whatever code it holds when it is loaded; --trust" in refused(source)
    model = planned(source, trust=True)
    assert model.config.default_model_filename == "model.pkl"
    assert "--backend-config=sklearn,allow-pickle=true" in model.steps[0]


@pytest.mark.parametrize(
    ("flavour", "file", "kind", "target"),
    [
        ("xgboost", "model.xgb", "xgboost-ubj", "1/xgboost.ubj"),
        ("xgboost", "model.json", "xgboost-json", "1/xgboost.json"),
        ("lightgbm", "model.lgb", "lightgbm", "1/model.txt"),
    ],
)
def test_trees_become_a_fil_model(flavour: str, file: str, kind: str, target: str) -> None:
    said = {"data": file, "model_class": f"{flavour}.Booster"}
    model = planned(folder({flavour: said}, file, kinds={file: kind}))
    assert list(model.files) == [Copy(file, target)]
    assert model.config.backend == "fil"
    assert model.lost[0].source == "model_class"


def test_an_estimator_of_lightgbm_becomes_an_sklearn_model() -> None:
    model = planned(folder({"lightgbm": {"data": "model.skops"}}, "model.skops"))
    assert model.config.backend == "sklearn"


def test_torchscript_becomes_a_pytorch_model() -> None:
    file = "data/model.pth"
    model = planned(folder({"pytorch": {"model_data": "data"}}, file, kinds={file: "torchscript"}))
    assert list(model.files) == [Copy(file, "1/model.pt")]
    assert [(each.name, each.dims) for each in model.config.input] == [("INPUT__0", (2,))]
    assert [(each.name, each.dims) for each in model.config.output] == [("OUTPUT__0", (2,))]


def test_what_no_backend_reads_becomes_a_python_model() -> None:
    flavours = {"pytorch": {"model_data": "data"}, "python_function": PYTHON_FUNCTION}
    said = signature(COLUMNS, TENSOR, [{"name": "scale", "type": "double", "default": 1.0}])
    source = folder(flavours, "data/model.pth", "requirements.txt", signature=said)
    assert "--trust imports it all the same" in refused(source)
    model = planned(source, trust=True)
    assert [(each.name, each.data_type, each.dims, each.optional) for each in model.config.input] == [
        ("a", DataType.FP64, (1,), False),
        ("b", DataType.BYTES, (1,), True),
    ]
    assert model.lost[0].source == "flavors.pytorch"
    assert Part("signature.params", "parameters of a request: scale") in model.carried
    assert "by Python 3.11.7: python -m venv {model}/environment" in model.steps[0]
    assert "EXECUTION_ENV_PATH" in model.footer


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "MLmodel has no signature"),
        ({"inputs": "[]", "outputs": "[]"}, "signature.inputs is missing"),
        ({"inputs": "{", "outputs": "[]"}, "signature.inputs is not a JSON list"),
        ({"inputs": "[" * 100_000, "outputs": "[]"}, "signature.inputs is not a JSON list"),
        (signature(outputs=None), "signature.outputs is not a JSON list"),
        (signature([{"name": "a", "type": "map"}]), "'a' has the type 'map', which no tensor has"),
        (signature([{"name": "a", "type": ["map"]}]), "which no tensor has"),
        (signature([*TENSOR, *COLUMNS]), "columns and tensors together"),
        (signature([{"type": "tensor", "tensor-spec": {"dtype": "quad", "shape": [-1]}}]), "unknown dtype 'quad'"),
        (signature([{"type": "tensor", "tensor-spec": {"dtype": "int8", "shape": [-2]}}]), "is not a list of sizes"),
        (signature([{"name": "a", "type": "long"}, {"name": "a", "type": "long"}]), "two have the same name"),
    ],
)
def test_signatures_that_say_too_little(said: object, told: str) -> None:
    assert told in refused(folder({"python_function": PYTHON_FUNCTION}, signature=said), trust=True)


def test_flavours_that_nobody_serves() -> None:
    assert refused(folder({"spark": {}})) == "no flavor that can be served: flavors are spark"
    assert refused(folder({})) == "MLmodel names no flavors"


def test_names_and_texts_of_the_source_do_not_reach_the_terminal_as_orders() -> None:
    plan = plan_mlflow(folder({"onnx": {"data": "\x1b[2Jm.onnx"}}, "\x1b[2Jm.onnx"), trust=False)
    assert "\x1b" not in as_text(plan, Path("models"), dry_run=True)


def test_the_python_model_reads_names_as_data() -> None:
    """A column's name cannot become code of model.py."""
    name = '"""\'\nraise SystemExit(1) #'
    said = read_signature(signature([{**TENSOR[0], "name": name}]))
    text = model_py(said)
    tables = text[text.index("INPUTS") : text.index("class TritonPythonModel")]
    namespace: dict[str, Any] = {}
    exec(compile(tables, "model.py", "exec"), namespace)
    assert namespace["INPUTS"] == [(name, name, "float32", None)]


def test_tensors_without_rows_keep_their_sizes() -> None:
    said = read_signature(signature([{"type": "tensor", "tensor-spec": {"dtype": "int64", "shape": [3, -1]}}]))
    assert [(each.name, each.dims) for each in inputs_of(said)] == [("input", (3, -1))]
    assert [(each.name, each.dims) for each in outputs_of(said)] == [("output", (-1, 2))]


def mlflow_folder(path: Path, text: str = "flavors: {onnx: {data: model.onnx}}\n") -> Path:
    path.mkdir()
    (path / "MLmodel").write_text(text)
    (path / "model.onnx").write_bytes(b"")
    return path


def test_the_registered_name_is_that_of_the_model(tmp_path: Path) -> None:
    source = mlflow_folder(tmp_path / "model")
    assert read_mlflow(source).name == "model"
    (source / "registered_model_meta").write_text("model_name: iris\nmodel_version: '3'\n")
    assert read_mlflow(source).name == "iris"
    assert read_mlflow(source).files == {"model.onnx"}


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    source = mlflow_folder(tmp_path / "model")
    (tmp_path / "secret").write_text("s")
    os.symlink(source / "model.onnx", source / "inside.onnx")
    assert "inside.onnx" in read_mlflow(source).files
    os.symlink(tmp_path / "secret", source / "data.bin")
    with pytest.raises(Unimportable, match=r"data.bin: a link that leads out of the folder"):
        read_mlflow(source)


def test_pipes_are_refused(tmp_path: Path) -> None:
    source = mlflow_folder(tmp_path / "model")
    os.mkfifo(source / "pipe")
    with pytest.raises(Unimportable, match="pipe: not a file"):
        read_mlflow(source)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "not YAML"),
        ("- a", "expected names and values"),
        ("a: !!python/object/apply:os.system [true]", "not YAML"),
        ("a: &a {b: 1}\nc: &c {<<: [*a, *a]}\n", "merged anchors"),
        ("a: " + "x" * 1024 * 1024, "expected at most 1048576"),
    ],
)
def test_an_mlmodel_that_is_not_one(tmp_path: Path, text: str, told: str) -> None:
    source = mlflow_folder(tmp_path / "model", text)
    with pytest.raises(Unimportable, match=told):
        read_mlflow(source)


def test_kinds_of_files(tmp_path: Path) -> None:
    source = mlflow_folder(tmp_path / "model")
    (source / "a.xgb").write_bytes(b"{L\0\0\0\0\0\0\0\7learner{")
    (source / "b.json").write_bytes(b'{"learner":{')
    (source / "c.lgb").write_bytes(b"tree\nversion=v4\n")
    (source / "d.xgb").write_bytes(b"binf")
    for name, inside in (("e.pth", "net/constants.pkl"), ("f.pth", "net/data.pkl")):
        with zipfile.ZipFile(source / name, "w") as archive:
            archive.writestr(inside, b"")
    kinds = {"a.xgb": "xgboost-ubj", "b.json": "xgboost-json", "c.lgb": "lightgbm", "e.pth": "torchscript"}
    assert read_mlflow(source).kinds == kinds


def test_an_address_needs_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpy_tools.commands.importing.registry.find_spec", lambda name: None)
    why = "^an address of MLflow: install mlflow beside tpy"
    with pytest.raises(Unimportable, match=why), fetched(Path("models:/double/3")):
        raise AssertionError
