"""`tpy import`: the model folders that it makes are sound, and are served."""

from __future__ import annotations

import json
import re
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.backends import onnx_models

from .server import ServerProcess, run_tpy
from .test_serve_target import ask

TENSOR = json.dumps([{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 3]}}])
"""A signature's side."""

MLMODEL = """
flavors:
  FLAVOUR
  python_function: {loader_module: mlflow.onnx, python_version: 3.11.7}
mlflow_version: 3.17.2
signature:
  inputs: 'TENSOR'
  outputs: 'TENSOR'
  params: '[{"name": "scale", "type": "double", "default": 2.0}]'
""".replace("TENSOR", TENSOR)

PYFUNC = """
class Model:
    def predict(self, data, params=None):
        return data * (params or {"scale": 2})["scale"]


def load_model(path):
    assert open(path + "/MLmodel").read()
    return Model()
"""
"""Stands in for mlflow.pyfunc, which is not installed here."""


def mlflow_model(path: Path, flavour: str) -> Path:
    path.mkdir()
    (path / "MLmodel").write_text(MLMODEL.replace("FLAVOUR", flavour))
    (path / "model.onnx").write_bytes(onnx_models.affine(2, 1))
    return path


def test_models_of_mlflow_are_served(tmp_path: Path) -> None:
    models = tmp_path / "models"
    native = mlflow_model(tmp_path / "native", "onnx: {data: model.onnx}")
    general = mlflow_model(tmp_path / "general", "other: {}")
    dry = run_tpy("import", str(native), "--to", str(models), "--dry-run")
    assert (dry.code, dry.err, models.exists()) == (0, "", False)
    assert "model.onnx  1/model.onnx, for the onnxruntime backend" in dry.out
    assert dry.out.splitlines()[-1] == "1 model to import, 0 not"
    assert run_tpy("import", str(native), "--to", str(models)).code == 0
    without = run_tpy("import", str(general), "--to", str(models), "--json")
    assert (without.code, json.loads(without.out)["models"]) == (1, [])
    assert json.loads(run_tpy("import", str(general), "--to", str(models), "--trust", "--json").out)["not_imported"] == []
    assert run_tpy("check", str(models)).out == "2 models checked, 0 with errors\n"
    library = models / "general" / "1" / "mlflow"
    library.mkdir()
    (library / "__init__.py").touch()
    (library / "pyfunc.py").write_text(PYFUNC)
    with ServerProcess("--allow-mlflow=true", repositories=[models]) as server:
        request = {"name": "input", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
        scaled = {"inputs": [request], "parameters": {"scale": 10}}
        status, answer = ask(server, "/v2/models/general/infer", scaled)
        assert status == 200, answer
        assert json.loads(answer)["outputs"][0]["data"] == [10, 20, 30, 40, 50, 60]
        status, answer = ask(server, "/v2/models/general/infer", {"inputs": [request]})
        assert status == 200, answer
        assert json.loads(answer)["outputs"][0]["data"] == [2, 4, 6, 8, 10, 12]
        status, answer = ask(server, "/v2/models/native/infer", {"inputs": [{**request, "name": "INPUT"}]})
        assert status == 200, answer
        assert json.loads(answer)["outputs"][0]["data"] == [3, 5, 7, 9, 11, 13]
        rows = [[1, 2, 3], [4, 5, 6]]
        scaled = {"inputs": rows, "params": {"scale": 10}}
        assert invoked(server, "general", scaled) == (200, {"predictions": [[10, 20, 30], [40, 50, 60]]})
        many = [[float(at), 0, 0] for at in range(150)]  # more than max_batch_size
        assert invoked(server, "general", {"inputs": many}) == (200, {"predictions": [[2 * row[0], 0, 0] for row in many]})
        frame = {"dataframe_split": {"columns": ["a", "b", "c"], "data": rows}}
        assert invoked(server, "native", frame) == (200, {"predictions": [{"OUTPUT": [3, 5, 7]}, {"OUTPUT": [9, 11, 13]}]})
        status, refusal = invoked(server, "native", {"inputs": [[1, 2]]})
        assert (status, refusal["error_code"]) == (400, "BAD_REQUEST")
        status, refusal = invoked(server, "nobody", {"inputs": [[1, 2]]})
        assert (status, refusal["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


def invoked(server: ServerProcess, model: str, body: object) -> tuple[int, Any]:
    """Status and document of an answer of the MLflow port."""
    url = f"http://{server.address('MLflow HTTPService')}/models/{model}/invocations"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_what_cannot_be_imported_leaves_nothing_behind(tmp_path: Path) -> None:
    models = tmp_path / "models"
    broken = mlflow_model(tmp_path / "broken", "onnx: {data: model.onnx}")
    (broken / "model.onnx").write_bytes(b"no model")
    outcome = run_tpy("import", str(broken), "--to", str(models))
    assert (outcome.code, list(models.iterdir())) == (1, [])
    assert "the onnxruntime backend cannot read it" in outcome.out
    (models / "broken").mkdir()
    outcome = run_tpy("import", str(broken), "--to", str(models), "--dry-run")
    assert f"{models}/broken is there already; remove it" in outcome.out
    outcome = run_tpy("import", str(tmp_path), "--to", str(models))
    assert (outcome.code, outcome.out) == (1, "")
    assert "expected the folder of an MLflow model" in outcome.err


def test_saved_models_of_tensorflow_serving_are_linked(tmp_path: Path) -> None:
    """Their contents are for the backend, which is not installed here: tests/backends/tensorflow/test_imported.py."""
    models = tmp_path / "models"
    version = tmp_path / "served" / "half" / "00000007"
    version.mkdir(parents=True)
    (version / "saved_model.pb").touch()
    (tmp_path / "served" / "models.config").write_text(
        "model_config_list { config { name: 'half' base_path: '/models/half' version_labels { key: 'stable' value: 7 } } }"
    )
    (tmp_path / "served" / "batching_parameters.txt").write_text("max_batch_size { value: 32 } num_batch_threads { value: 2 }")
    dry = run_tpy("import", str(tmp_path / "served"), "--to", str(models), "--dry-run")
    assert (dry.code, dry.err, models.exists()) == (0, "", False)
    assert re.search(r"version_labels: stable +parameters.aliases: ask for half@stable", dry.out)
    if find_spec("tensorflow") is not None:
        return  # an empty file is no SavedModel
    assert run_tpy("import", str(tmp_path / "served"), "--to", str(models)).code == 0
    assert (models / "half" / "7" / "model.savedmodel").readlink() == version.resolve()
    assert run_tpy("check", str(models)).out == "1 model checked, 0 with errors\n"
