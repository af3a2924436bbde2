"""`tpy check` knows the server it belongs to: what loading would refuse by name is an error, what has no effect a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpy_data.registry import BackendRegistry
from tpy_tools.commands.check_report import report

INSTALLED = ", ".join(sorted(row.name for row in BackendRegistry().available()))
TENSORS = 'input { name: "I" data_type: TYPE_FP32 dims: 1 } output { name: "O" data_type: TYPE_FP32 dims: 1 }\n'


def checked(tmp_path: Path, config: str) -> tuple[list[str], bool]:
    """The lines about model m with this configuration, and whether all is well."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    text, sound = report(
        [str(tmp_path)],
        as_json=False,
        model_config_name="",
        auto_complete=True,
        namespacing=False,
        backend_directory=tmp_path / "backends of the server",
    )
    return [line.removeprefix(f"{tmp_path}/m/config.pbtxt:") for line in text.splitlines()[:-1]], sound


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            'backend: "identify"\n' + TENSORS,
            (
                "1:1: backend: unable to find backend library for backend 'identify'; expected one of "
                f"{INSTALLED}. Did you mean 'identity'?"
            ),
        ),
        (
            'name: "m"\nbackend: "fastertransformer"\n' + TENSORS,
            (
                "2:1: backend: unable to find backend library for backend 'fastertransformer'; expected one of "
                f"{INSTALLED}. For 'fastertransformer', install a package that offers it as an entry point 'tpy.backends'; or "
                "convert the model to ONNX, or run it in a model.py "
                "(backend 'python')"
            ),
        ),
    ],
)
def test_what_loading_would_refuse_by_name_is_an_error(tmp_path: Path, config: str, problem: str) -> None:
    lines, sound = checked(tmp_path, config)
    assert (lines, sound) == ([problem], False)


def test_what_has_no_effect_is_a_warning(tmp_path: Path) -> None:
    lines, sound = checked(tmp_path, 'backend: "identity"\noptimization { priority: PRIORITY_MAX }\n' + TENSORS)
    assert lines == ["2:16: warning: optimization.priority: 'priority' has no effect in this server"]
    assert sound


def test_problems_of_the_validation_are_not_repeated(tmp_path: Path) -> None:
    parameter = 'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "x" } } sequence_batching { }\n'
    lines, sound = checked(tmp_path, 'backend: "identity"\n' + parameter + TENSORS)
    assert len(lines) == 1
    assert not sound


def test_backends_in_folders_are_known(tmp_path: Path) -> None:
    folder = tmp_path / "backends of the server" / "mine"
    folder.mkdir(parents=True)
    (folder / "model.py").touch()
    lines, _ = checked(tmp_path, 'backend: "mine"\n' + TENSORS)
    assert not [line for line in lines if "backend 'mine'" in line]


def test_a_library_beside_the_model_is_its_backend(tmp_path: Path) -> None:
    for name, place in (("beside", ""), ("in_version", "1/"), ("nowhere", None)):
        (tmp_path / name / "1").mkdir(parents=True)
        tensors = 'input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }'
        (tmp_path / name / "config.pbtxt").write_text(f'backend: "mine"\n{tensors}\n')
        if place is not None:
            (tmp_path / name / f"{place}libtriton_mine.so").touch()
    text, _ = report(
        [str(tmp_path)],
        as_json=False,
        model_config_name="",
        auto_complete=True,
        namespacing=False,
        backend_directory=tmp_path / "none",
    )
    assert text.count("unable to find backend library for backend 'mine'") == 1
