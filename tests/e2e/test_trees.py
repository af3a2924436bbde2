"""Trees and pickles behind a real server: found without a configuration, refused without the switch, in workers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from .server import ServerProcess, run_tpy
from .test_serve_target import ask
from .test_workers import worker_of
from .waiting import wait_until

for module in ("treelite", "sklearn", "lightgbm"):
    pytest.importorskip(module, reason=f"needs {module}: make test-backends")

ROWS = np.random.default_rng(2).standard_normal((80, 4)).astype(np.float32)
LABELS = (ROWS[:, 0] + ROWS[:, 1] > 0).astype(int)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import joblib
    import lightgbm
    from sklearn.linear_model import LogisticRegression

    root = tmp_path_factory.mktemp("trees")
    trees = lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, lightgbm.Dataset(ROWS, LABELS), 5)
    for name in ("trees", "apart", "pickled"):
        (root / name / "1").mkdir(parents=True)
    trees.save_model(root / "trees" / "1" / "model.txt")
    trees.save_model(root / "apart" / "1" / "model.txt")
    (root / "apart" / "config.pbtxt").write_text(
        'backend: "fil" parameters { key: "predict_proba" value { string_value: "true" } } '
        'parameters { key: "isolation" value { string_value: "process" } }'
    )
    joblib.dump(LogisticRegression().fit(ROWS, LABELS), root / "pickled" / "1" / "model.joblib")
    (root / "pickled" / "config.pbtxt").write_text('backend: "sklearn"')
    return root


def test_init_makes_a_folder_of_trees(repository: Path, tmp_path: Path) -> None:
    outcome = run_tpy(
        "init", "mine", "--from", str(repository / "trees" / "1" / "model.txt"), "--repository", str(tmp_path / "models")
    )
    assert (outcome.code, outcome.err) == (0, "")
    config = (tmp_path / "models" / "mine" / "config.pbtxt").read_text()
    assert 'backend: "fil"' in config
    assert "max_batch_size: 64" in config
    with ServerProcess(str(tmp_path / "models")) as server:
        request = json.loads((tmp_path / "models" / "mine" / "request.json").read_text())
        assert ask(server, "/v2/models/mine/infer", request)[0] == 200
    (tmp_path / "cut.txt").write_text("tree")
    told = run_tpy("init", "cut", "--from", str(tmp_path / "cut.txt"), "--repository", str(tmp_path / "models")).err
    assert "the fil backend cannot read the model: unable to load model 'cut'" in told
    assert told.endswith("; --as onnx converts it\n")


def test_trees_are_served_and_pickles_are_refused(repository: Path) -> None:
    with ServerProcess("--exit-on-error=false", repositories=[repository]) as server:
        answers = []
        for module, address in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
            tensor = module.InferInput("input__0", [4, 4], "FP32")
            tensor.set_data_from_numpy(ROWS[:4])
            with module.InferenceServerClient(address) as client:
                classes = client.infer("trees", [tensor]).as_numpy("output__0")
                probabilities = client.infer("apart", [tensor]).as_numpy("output__0")
            assert classes.tolist() == (probabilities[:, 1] > 0.5).tolist()
            answers.append(probabilities.tolist())
        assert answers[0] == answers[1]
        reasons = {entry["name"]: entry.get("reason", "") for entry in json.loads(ask(server, "/v2/repository/index", {})[1])}
        assert "'model.joblib' is a pickle, which runs whatever code it holds when it is loaded" in reasons["pickled"]
        assert "has the shape" not in server.log


def test_pickles_are_served_in_workers_once_they_are_allowed(repository: Path) -> None:
    with ServerProcess("--backend-config=sklearn,allow-pickle=true", repositories=[repository]) as server:
        status, text = ask(server, "/v2/models/pickled/generate", {"X": ROWS[0].astype(float).tolist()})
        assert status == 200, text
        assert json.loads(text)["predict"] in (0, 1)


def test_workers_that_are_killed_come_back(repository: Path) -> None:
    with (
        ServerProcess("--backend-config=sklearn,allow-pickle=true", repositories=[repository]) as server,
        tritonclient.http.InferenceServerClient(server.http) as client,
    ):
        rows = {"apart": {"input__0": ROWS[0].tolist()}, "pickled": {"X": ROWS[0].astype(float).tolist()}}
        for model, given in rows.items():
            assert ask(server, f"/v2/models/{model}/generate", given)[0] == 200
            os.kill(worker_of(server, f"{model}_0"), signal.SIGKILL)
            assert client.is_model_ready("trees")
            wait_until(lambda model=model: f"instance '{model}_0' was started again" in server.log, within_s=50)
            wait_until(lambda model=model: client.is_model_ready(model))
            assert ask(server, f"/v2/models/{model}/generate", given)[0] == 200
