"""`tpy check --deep`: what only loading shows, and nothing is sound that was not looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import run_tpy
from .test_serve_target import MODEL_PY

ENSEMBLE = """platform: "ensemble"
max_batch_size: 4
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ {size} ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] }} ]
ensemble_scheduling {{ step [ {{
  model_name: "{member}" model_version: -1
  input_map {{ key: "INPUT" value: "IN" }} output_map {{ key: "OUTPUT" value: "OUT" }}
}} ] }}
"""


def check(repository: Path) -> tuple[int, list[str]]:
    outcome = run_tpy("check", "--deep", str(repository))
    assert outcome.err == ""
    return outcome.code, outcome.out.replace(f"{repository}/", "").splitlines()


def test_sound_models_stay_sound(repository: Path) -> None:
    ModelFolder(repository, "affine").config(AFFINE_CONFIG).affine(1, 2)
    ModelFolder(repository, "bare").affine(1, 2)
    ModelFolder(repository, "python").config("").python(MODEL_PY.replace("FORMULA", "x"))
    code, lines = check(repository)
    assert (code, lines[-1]) == (0, "3 models checked, 0 with errors")
    assert lines[0].startswith("bare: warning: autofilled max_batch_size to 4")


def test_a_model_that_does_not_fit_its_configuration(repository: Path) -> None:
    ModelFolder(repository, "m").config(AFFINE_CONFIG.replace('"INPUT"', '"NOPE"')).affine(1, 2)
    code, lines = check(repository)
    assert (code, lines[-1]) == (1, "1 model checked, 1 with errors")
    assert lines[0].startswith("m: version 1 does not load: unexpected inference input 'NOPE', allowed inputs are")
    assert run_tpy("check", str(repository)).code == 0, "it is found by loading only"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("x = 1\n", "TritonPythonModel"),
        ("import no_such_module\nclass TritonPythonModel: pass\n", "No module named 'no_such_module'"),
        (
            (
                "class TritonPythonModel:\n    def initialize(self, args):\n        raise ValueError('no weights')\n"
                "    def execute(self, requests): ...\n"
            ),
            "ValueError: no weights",
        ),
    ],
)
def test_python_models(repository: Path, source: str, told: str) -> None:
    config = AFFINE_CONFIG.replace("onnxruntime", "python")
    ModelFolder(repository, "m").config(config).python(source)
    code, lines = check(repository)
    assert code == 1
    assert "m: version 1 does not load: " in lines[0]
    assert told in lines[0]


def test_an_environment_that_is_not_there(repository: Path) -> None:
    config = 'backend: "python"\nparameters { key: "EXECUTION_ENV_PATH" value { string_value: "/nosuch/env" } }\n'
    ModelFolder(repository, "m").config(config).python(MODEL_PY.replace("FORMULA", "x"))
    code, lines = check(repository)
    assert code == 1
    assert "/nosuch/env" in lines[0]


def test_devices_and_accelerators_that_are_not_there(repository: Path) -> None:
    accelerator = 'optimization { execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] } }\n'
    ModelFolder(repository, "accelerated").config(AFFINE_CONFIG + accelerator).affine(1, 2)
    ModelFolder(repository, "placed").config(AFFINE_CONFIG + "instance_group [ { kind: KIND_GPU gpus: [ 99 ] } ]\n").affine(1, 2)
    code, lines = check(repository)
    assert code == 1
    assert any(line.startswith("accelerated: version 1 does not load: ") and "penVINO" in line for line in lines), lines
    assert any(line.startswith("placed: ") and "GPU" in line for line in lines), lines
    assert lines[-1] == "2 models checked, 2 with errors"


def test_groups_on_gpus_that_could_not_be_checked_are_not_sound(repository: Path) -> None:
    """Beside a group for the CPU, which is."""
    groups = "instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU } ]\n"
    ModelFolder(repository, "m").config(AFFINE_CONFIG + groups).affine(1, 2)
    outcome = run_tpy("check", "--deep", str(repository), environment={"TRITON_SERVER_CPU_ONLY": "1"})
    assert outcome.code == 1
    assert "m: its instances on GPUs were not checked: there is no GPU here" in outcome.out
    assert outcome.out.endswith("1 model checked, 1 with errors\n")


@pytest.mark.parametrize(
    ("backend", "package", "file"),
    [
        ("onnxruntime", "onnxruntime", "model.onnx"),
        ("pytorch", "torch", "model.pt"),
        ("openvino", "openvino", "model.xml"),
        ("tensorflow", "tensorflow", "model.graphdef"),
        ("litert", "ai_edge_litert", "model.tflite"),
        ("tensorrt", "tensorrt", "model.plan"),
    ],
)
def test_a_framework_that_is_not_installed(repository: Path, tmp_path: Path, backend: str, package: str, file: str) -> None:
    """Whatever else is installed here: a package that cannot be imported is one that is not there."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    names = (package, "tensorrt_rtx") if package == "tensorrt" else (package,)
    for name in names:
        (hidden / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n")
    ModelFolder(repository, "m").config(AFFINE_CONFIG.replace("onnxruntime", backend)).file(f"1/{file}", b"x")
    outcome = run_tpy("check", "--deep", str(repository), environment={"PYTHONPATH": str(hidden)})
    assert outcome.code == 1
    assert outcome.out.endswith("1 model checked, 1 with errors\n")
    assert "install" in outcome.out, "what to do"


def test_a_backend_that_nobody_has(repository: Path) -> None:
    ModelFolder(repository, "m").config(AFFINE_CONFIG.replace("onnxruntime", "nosuch")).affine(1, 2)
    code, lines = check(repository)
    assert (code, lines[-1]) == (1, "1 model checked, 1 with errors")
    assert "unable to find backend library for backend 'nosuch'" in lines[0]


def test_a_warm_up_that_fails(repository: Path) -> None:
    """The server would not load the model."""
    warmup = """model_warmup [ { name: "first" batch_size: 1
      inputs { key: "INPUT" value { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } } } ]
    """
    source = "class TritonPythonModel:\n    def execute(self, requests):\n        raise ValueError('not warm')\n"
    ModelFolder(repository, "m").config(AFFINE_CONFIG.replace("onnxruntime", "python") + warmup).python(source)
    code, lines = check(repository)
    assert (code, lines[-1]) == (1, "1 model checked, 1 with errors")
    assert "failed to run warmup sample 'first'" in lines[0]
    assert "not warm" in lines[0]


def test_each_version_is_looked_at(repository: Path) -> None:
    folder = ModelFolder(repository, "m").config(AFFINE_CONFIG + "version_policy { all { } }\n").affine(1, 2)
    folder.file("2/model.onnx", b"no model")
    code, lines = check(repository)
    assert (code, lines[-1]) == (1, "1 model checked, 1 with errors")
    assert lines[0].startswith("m: version 2 does not load: ")


def test_ensembles_are_held_to_what_their_members_really_take(repository: Path) -> None:
    ModelFolder(repository, "bare").affine(1, 2)
    ModelFolder(repository, "fits").config(ENSEMBLE.format(size=3, member="bare"))
    (repository / "fits" / "1").mkdir()
    ModelFolder(repository, "not").config(ENSEMBLE.format(size=4, member="bare"))
    (repository / "not" / "1").mkdir()
    code, lines = check(repository)
    assert code == 1
    assert lines[-1] == "3 models checked, 1 with errors"
    assert any(line.startswith("not/config.pbtxt: ensemble_scheduling.step: ") for line in lines)


def test_an_ensemble_that_could_not_be_checked_is_not_sound(repository: Path) -> None:
    ModelFolder(repository, "broken").file("1/model.onnx", b"no model")
    ModelFolder(repository, "whole").config(ENSEMBLE.format(size=3, member="broken"))
    (repository / "whole" / "1").mkdir()
    code, lines = check(repository)
    assert (code, lines[-1]) == (1, "2 models checked, 2 with errors")
    assert "its steps could not be checked: of broken inputs and outputs are not known" in lines[1]
