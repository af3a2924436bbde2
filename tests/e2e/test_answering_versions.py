"""The version that answers while a newer one is rolled out stays, also where the version policy keeps newer ones only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tritonclient.http as triton_http

from .repositories import ModelFolder
from .server import ServerProcess
from .test_rollouts import CONFIG, FAILS, MODEL, PLAN, WORKS, infer, rollout, serving
from .waiting import wait_until

LATEST = "version_policy: { latest { num_versions: 2 } }"


def folder_with(tmp_path: Path, policy: str) -> ModelFolder:
    config = (CONFIG % json.dumps(PLAN)).replace(LATEST, policy)
    return ModelFolder(tmp_path / "models", "m").config(config).file("1/model.py", MODEL)


def bring(server: ServerProcess, model: ModelFolder, version: int) -> None:
    model.file(f"{version}/model.py", MODEL)
    with triton_http.InferenceServerClient(server.http) as client:
        client.load_model("m")


def ready(server: ServerProcess) -> list[int]:
    with triton_http.InferenceServerClient(server.http) as client:
        return sorted(int(each["version"]) for each in client.get_model_repository_index() if each.get("state") == "READY")


@pytest.mark.parametrize("policy", ["", "version_policy: { latest { num_versions: 1 } }"])
def test_a_policy_of_one_version_keeps_the_one_that_answers_until_another_is_promoted(tmp_path: Path, policy: str) -> None:
    model = folder_with(tmp_path, policy)
    with serving(model.path.parent) as server:
        bring(server, model, 2)
        assert ready(server) == [1, 2]
        assert infer(server, WORKS, 20) == {1: 10, 2: 10}
        wait_until(lambda: infer(server, WORKS, 20) == {2: 20})
        wait_until(lambda: ready(server) == [2])


def test_a_version_that_comes_during_a_rollout_takes_the_place_of_the_one_that_is_rolled_out(tmp_path: Path) -> None:
    model = folder_with(tmp_path, LATEST)
    with serving(model.path.parent) as server:
        bring(server, model, 2)
        assert rollout(server)["new"]["version"] == 2
        bring(server, model, 3)
        assert ready(server) == [1, 2, 3]
        status = rollout(server)
        assert (status["old"]["version"], status["new"]["version"], status["percent"]) == (1, 3, 50)
        assert infer(server, WORKS, 10) == {1: 5, 3: 5}
        rollout(server, "promote")
        assert infer(server, WORKS, 10) == {3: 10}
        wait_until(lambda: ready(server) == [2, 3])


def test_a_version_that_comes_after_a_rollback_has_to_pass_the_gates(tmp_path: Path) -> None:
    model = folder_with(tmp_path, LATEST)
    with serving(model.path.parent) as server:
        bring(server, model, 2)
        wait_until(lambda: infer(server, FAILS, 20) == {1: 20})
        assert rollout(server)["state"] == "rolled back"
        bring(server, model, 3)
        assert infer(server, WORKS, 10) == {1: 5, 3: 5}


def test_a_restarted_server_keeps_the_version_that_answers(tmp_path: Path) -> None:
    model = folder_with(tmp_path, "")
    file = tmp_path / "rollouts.json"
    with serving(model.path.parent, f"--rollout-file={file}") as server:
        bring(server, model, 2)
        rollout(server, "roll_back")
        wait_until(lambda: json.loads(file.read_bytes())["m"]["state"] == "rolled back")
    with serving(model.path.parent, f"--rollout-file={file}") as server:
        assert ready(server) == [1, 2]
        assert infer(server, WORKS, 10) == {1: 10}


def test_a_version_without_a_folder_is_not_kept(tmp_path: Path) -> None:
    model = folder_with(tmp_path, "")
    with serving(model.path.parent) as server:
        bring(server, model, 2)
        shutil.rmtree(model.path / "1")
        bring(server, model, 3)
        wait_until(lambda: infer(server, WORKS, 10) == {3: 10})
        server.wait_log("model 'm': version 1 is gone, so 3 gets all requests")
