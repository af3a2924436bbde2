"""`tpy check`: every problem of every model with its place, without loading anything."""

from __future__ import annotations

import json
from pathlib import Path

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import run_tpy


def broken(repository: Path) -> None:
    ModelFolder(repository, "good").config(AFFINE_CONFIG).affine(1, 2)
    ModelFolder(repository, "warned").config(AFFINE_CONFIG).affine(1, 2).affine(2, 2)
    (repository / "warned" / "01").mkdir()
    ModelFolder(repository, "syntax").config("max_batch_size: 4\nno_such_field: 1\nbackend: 7\n").affine(1, 2)
    ModelFolder(repository, "semantics").config(
        'name: "other"\nbackend: "onnxruntime"\nmax_batch_size: 4\n'
        'input [ { name: "X" data_type: TYPE_FP32 dims: [ 0 ] } ]\n'
        "dynamic_batching {\n  preferred_batch_size: [ 5 ]\n}\n"
    ).affine(1, 2)
    ModelFolder(repository, "no_version").config(AFFINE_CONFIG)


def test_text(repository: Path) -> None:
    broken(repository)
    outcome = run_tpy("check", str(repository))
    assert (outcome.code, outcome.err) == (1, "")
    lines = outcome.out.splitlines()
    assert lines[-1] == "5 models checked, 3 with errors"
    for place in (
        "syntax/config.pbtxt:2:1: no_such_field: ModelConfig has no field 'no_such_field'; expected one of name, ",
        "syntax/config.pbtxt:3:10: backend: '7' is not a string; expected a string in quotes",
        "semantics/config.pbtxt:1:1: name: unexpected directory name 'semantics' for model 'other', directory name must equal",
        "semantics/config.pbtxt:4:",
        "semantics/config.pbtxt:6:",
        "no_version: version_policy: at least one version must be available",
    ):
        assert any(line.startswith(f"{repository}/{place}") for line in lines), place
    assert not any("good" in line for line in lines)
    assert any("warning" in line and "01" in line for line in lines)


def test_json(repository: Path) -> None:
    broken(repository)
    outcome = run_tpy("check", "--json", str(repository))
    assert (outcome.code, outcome.err) == (1, "")
    report = json.loads(outcome.out)
    assert report["ok"] is False
    models = {model["name"]: model for model in report["models"]}
    assert {name: model["ok"] for name, model in models.items()} == {
        "good": True,
        "no_version": False,
        "semantics": False,
        "syntax": False,
        "warned": True,
    }
    first = models["syntax"]["problems"][0]
    assert (first["severity"], first["line"], first["column"], first["field"]) == ("error", 2, 1, "no_such_field")
    assert first["file"] == f"{repository}/syntax/config.pbtxt"
    assert first["message"] == "ModelConfig has no field 'no_such_field'"
    assert models["warned"]["problems"][0]["severity"] == "warning"


def test_a_sound_repository(repository: Path, demo_repository: Path) -> None:
    ModelFolder(repository, "good").config(AFFINE_CONFIG).affine(1, 2)
    outcome = run_tpy("check", str(repository), str(demo_repository))
    assert (outcome.code, outcome.out, outcome.err) == (0, "5 models checked, 0 with errors\n", "")


def test_options_mean_what_they_mean_for_serve(repository: Path) -> None:
    ModelFolder(repository, "m").affine(1, 2).file("configs/broken.pbtxt", "nonsense\n")
    assert run_tpy("check", str(repository)).code == 0
    assert run_tpy("check", "--disable-auto-complete-config", str(repository)).code == 1
    assert run_tpy("check", "--model-config-name=broken", str(repository)).code == 1


def test_one_model_is_no_repository(repository: Path) -> None:
    ModelFolder(repository, "m").affine(1, 2)
    outcome = run_tpy("check", str(repository / "m"))
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == f"tpy: error: {repository / 'm'}: one model; expected the repository that it is in: {repository}\n"


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    outcome = run_tpy("check", str(missing))
    assert (outcome.code, outcome.out) == (1, "")
    assert (
        outcome.err
        == f"tpy: error: {missing}: no such folder; expected a model repository, a folder with a folder for each model\n"
    )
    assert run_tpy("check").err == "tpy: error: Missing argument 'REPOSITORY...'; arguments: tpy check --help\n"
    assert run_tpy("nosuch").err == "tpy: error: No such command 'nosuch'.\n"


def test_without_a_command_the_help_is_shown() -> None:
    outcome = run_tpy()
    assert outcome.code == 1
    assert outcome.err.startswith("Usage: tpy ")
    assert {"check", "demo", "serve"} <= set(outcome.err.split())


def test_files_that_a_configuration_names_are_looked_for(repository: Path) -> None:
    labelled = AFFINE_CONFIG.replace('name: "OUTPUT"', 'name: "OUTPUT" label_filename: "labels.txt"')
    assert labelled != AFFINE_CONFIG
    ModelFolder(repository, "labelled").config(labelled).affine(1, 2)
    text = 'backend: "python"\nparameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}\n'
    ModelFolder(repository, "packed").config(text.format("$$TRITON_MODEL_DIRECTORY/env")).python("")
    ModelFolder(repository, "elsewhere").config(text.format("/nosuch/env.tar.gz")).python("")
    told = run_tpy("check", str(repository)).out.splitlines()
    assert [line.partition(": ")[2] for line in told[:-1]] == [
        "parameters: EXECUTION_ENV_PATH: no directory or archive at '/nosuch/env.tar.gz'",
        f"output.label_filename: output 'OUTPUT': there is no file 'labels.txt' in {repository}/labelled",
        "parameters: EXECUTION_ENV_PATH: no directory or archive at '$$TRITON_MODEL_DIRECTORY/env'",
    ]
    (repository / "labelled" / "labels.txt").write_text("a\nb\nc\n")
    (repository / "packed" / "env").mkdir()
    assert run_tpy("check", str(repository)).out.splitlines()[-1] == "3 models checked, 1 with errors"
