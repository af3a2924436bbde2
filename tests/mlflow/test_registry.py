"""`tpy import` of addresses in MLflow's registry, in the environment with MLflow."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .servers import ENVIRONMENT, LIBRARIES

PYTHON = ENVIRONMENT / "bin" / "python"
REGISTER = """
import numpy as np, mlflow
from sklearn.linear_model import LinearRegression
model = LinearRegression().fit(np.array([[1.0], [2.0]]), np.array([2.0, 4.0]))
with mlflow.start_run():
    logged = mlflow.sklearn.log_model(model, name="model", registered_model_name="double", input_example=np.array([[1.0]]))
print(logged.model_uri)
"""

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs mlflow: make test-mlflow")


def test_addresses(tmp_path: Path) -> None:
    environment = {**os.environ, **LIBRARIES, "PYTHONPATH": "", "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(PYTHON), *command], env=environment, cwd=tmp_path, check=False, capture_output=True, text=True)

    registered = run("-c", REGISTER)
    assert registered.returncode == 0, registered.stderr
    for address in ("models:/double/1", registered.stdout.split()[-1]):
        models = tmp_path / address.replace("/", "-")
        outcome = run("-m", "tpy", "import", address, "--to", str(models), "--trust")
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr
        [folder] = models.iterdir()
        assert list((folder / "1").iterdir())
    assert (tmp_path / "models:-double-1" / "double").is_dir()
    outcome = run("-m", "tpy", "import", "models:/nobody/1", "--to", str(tmp_path / "none"))
    assert outcome.returncode == 1
    assert "models:/nobody/1: mlflow cannot fetch it: " in outcome.stderr
    assert "nobody" in outcome.stderr.partition("cannot fetch it: ")[2]
