"""SavedModels that `tpy import` has linked are served in all versions that the configuration of TensorFlow Serving names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.server import ServerProcess, run_tpy
from tests.e2e.test_serve_target import ask

pytest.importorskip("tensorflow", reason="needs TensorFlow: make test-backends")

MODELS = """
model_config_list {
  config { name: "gather" base_path: "/models/gather" model_version_policy { specific { versions: 3 versions: 5 } } }
  config { name: "latest" base_path: "gather" }
}
"""


def test_linked_versions_are_served(tmp_path: Path) -> None:
    from .models import save_gathering

    served, models = tmp_path / "served", tmp_path / "models"
    for version in ("3", "4", "00000005"):
        save_gathering(served / "gather" / version)
    (served / "models.config").write_text(MODELS)
    (served / "batching_parameters.txt").write_text("max_batch_size { value: 8 } batch_timeout_micros { value: 100 }")
    outcome = run_tpy("import", str(served), "--to", str(models))
    assert outcome.code == 0, outcome.out  # TensorFlow writes to standard error
    assert (models / "gather" / "5" / "model.savedmodel").readlink() == (served / "gather" / "00000005").resolve()
    config = (models / "gather" / "config.pbtxt").read_text()
    assert "max_batch_size: 8" in config
    assert 'name: "INDEX"' in config
    assert run_tpy("check", "--deep", str(models)).out == "2 models checked, 0 with errors\n"
    request = {"inputs": [{"name": "INDEX", "datatype": "INT64", "shape": [2, 1], "data": [1, 2]}]}
    with ServerProcess(str(models)) as server:
        for path in ("gather/versions/3", "gather/versions/5", "latest/versions/5"):
            status, answer = ask(server, f"/v2/models/{path}/infer", request)
            assert status == 200, answer
            outputs = {each["name"]: each["data"] for each in json.loads(answer)["outputs"]}
            assert outputs["DOUBLED"] == [2, 4]
        assert ask(server, "/v2/models/gather/versions/4/infer", request)[0] == 404
        assert ask(server, "/v2/models/latest/versions/3/infer", request)[0] == 404
