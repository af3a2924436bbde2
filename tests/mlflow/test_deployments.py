"""`mlflow deployments` with the target tpy: MLflow's own client and command, and a server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.backends import onnx_models
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess
from tests.unit.importing.test_deployed_models import model

from .servers import ENVIRONMENT, LIBRARIES

MLFLOW = ENVIRONMENT / "bin" / "mlflow"

pytestmark = pytest.mark.skipif(not MLFLOW.exists(), reason="needs mlflow: make test-mlflow")


def run(*command: str, **environment: str) -> str:
    outcome = subprocess.run(command, env={**os.environ, **LIBRARIES, **environment}, check=False, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def test_deployments(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    ModelFolder(repository, "affine").config(AFFINE_CONFIG).affine(1, 2)
    given, other = model(tmp_path / "given"), model(tmp_path / "other", 5)
    assert (other / "model.onnx").read_bytes() == onnx_models.affine(2, 5)
    pickled = model(tmp_path / "pickled", flavours="sklearn: {pickled_model: model.pkl}")
    (pickled / "model.pkl").touch()
    flags = ("--model-control-mode=explicit", "--load-model=affine", "--allow-mlflow=true")
    with ServerProcess(*flags, repositories=[repository]) as server:
        port = (server.address("MLflow HTTPService") or "").rpartition(":")[2]
        target = f"tpy:http://{server.http}?repository={repository}&mlflow-port={port}"
        script = str(Path(__file__).with_name("deployments.py"))
        found = json.loads(run(str(ENVIRONMENT / "bin" / "python"), script, target, str(given), str(other), str(pickled)))
        assert (found["created"], found["updated"]) == ("mine", "mine")
        assert {"name": "mine", "versions": [{"version": "1", "state": "READY"}]} in found["listed"]
        assert found["got"] == [{"name": "INPUT", "datatype": "FP32", "shape": [-1, 3]}]
        assert found["predicted"] == {"predictions": [{"OUTPUT": [3.0, 5.0, 7.0]}]}
        assert found["then"] == {"predictions": {"OUTPUT": [[7.0, 9.0, 11.0]]}}
        assert found["named"] == {"predictions": {"OUTPUT": [[7.0, 7.0, 7.0]]}}
        assert found["again"][0] == "RESOURCE_ALREADY_EXISTS"
        assert found["broken"]
        assert "-C trust=true" in found["pickle"][1]
        assert {code for code, _ in found["names"]} == {"INVALID_PARAMETER_VALUE"}
        assert all("cannot be a model's name here" in text for _, text in found["names"])
        assert "was not made from a model of MLflow" in found["foreign"][1]
        assert "endpoints" in found["endpoint"][1]
        assert found["gone"][0] == "RESOURCE_DOES_NOT_EXIST"
        assert [path.name for path in repository.iterdir()] == ["affine"]
        about = {"TPY_MLFLOW_REPOSITORY": str(repository)}
        plain = f"tpy:http://{server.http}"
        made = run(str(MLFLOW), "deployments", "create", "-t", plain, "--name", "mine", "-m", str(given), **about)
        assert "deployment mine is created" in made
        assert (repository / "mine" / "1" / "model.onnx").exists()
        (tmp_path / "rows.json").write_text('[{"a": 1.0, "b": 2.0, "c": 3.0}]')
        rows = str(tmp_path / "rows.json")
        predicted = run(str(MLFLOW), "deployments", "predict", "-t", target, "--name", "mine", "-I", rows)
        assert json.loads(predicted) == {"predictions": [{"OUTPUT": [3.0, 5.0, 7.0]}]}
        run(str(MLFLOW), "deployments", "delete", "-t", plain, "--name", "mine", **about)
        assert not (repository / "mine").exists()
        assert "--model-control-mode=explicit" in run(str(MLFLOW), "deployments", "help", "-t", "tpy")
