"""Messages that name the next step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from tpy.backend import ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import ModelOutput
from tpy.config.model_files import advice_for_folder, rename_advice
from tpy.messages import DataType
from tpy_backends.signature import Signature, TensorInfo
from tpy_backends.validation import warn_of_outputs_left_out
from tpy_control.core.scan import version_of
from tpy_data.backends.python.worker.pb_utils.failures import LINES_MAX, describe
from tpy_data.registry import how_to_get

BACKENDS = ("dali", "identity", "onnxruntime", "python", "pytorch", "tensorflow", "tensorrt")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("onnx", "onnxruntime"), ("torch", "pytorch"), ("pyton", "python"), ("pytorchh", "pytorch"), ("tens", ""), ("py", "")],
)
def test_a_backend_is_guessed(name: str, meant: str) -> None:
    told = how_to_get(name, BACKENDS)
    assert told == f"Did you mean '{meant}'?" if meant else told.startswith(f"For '{name}', install a package")


@pytest.mark.parametrize(
    ("folder", "number"),
    [("v1", "1"), ("V12", "12"), ("version-3", "3"), ("ver_04", "4"), ("versions", ""), ("v", ""), ("v0", ""), ("best", "")],
)
def test_a_version_folder_gets_its_number(folder: str, number: str) -> None:
    advice = f"rename it to {number}" if number else ""
    assert rename_advice(folder) == advice
    assert str(version_of(folder)).endswith(advice or "which fails to convert to integral number")
    assert (f"{folder}/: {advice}" in advice_for_folder(None, [f"{folder}/"], folder="m")) == bool(number)


def test_leading_zeros() -> None:
    assert str(version_of("007")).endswith("contains leading zeros in its directory name; rename it to 7")
    assert str(version_of("00")).endswith("contains leading zeros in its directory name")


def raised(source: str, depth: int) -> str:
    """The text about an exception in this model.py, which calls a library."""
    code: dict[str, Callable[[int], None]] = {}
    exec(compile("def down(n):\n    if n == 0: raise ValueError('low')\n    down(n - 1)\n", "/lib/library.py", "exec"), code)
    exec(compile(source, "/models/m/1/model.py", "exec"), code)
    try:
        code["execute"](depth)
    except ValueError as error:
        return describe(error, inspect.currentframe())
    raise AssertionError


MODEL = "def execute(n):\n    return helper(n)\ndef helper(n):\n    down(n)\n"


def test_a_short_stack_is_as_tritons() -> None:
    lines = raised(MODEL, 1).splitlines()
    assert lines[0] == "ValueError: low"
    assert [line.strip() for line in lines[3:]] == [
        "/lib/library.py(2): down",
        "/lib/library.py(3): down",
        "/models/m/1/model.py(4): helper",
        "/models/m/1/model.py(2): execute",
    ]


def test_the_line_of_the_model_comes_first_in_a_long_stack() -> None:
    lines = [line.strip() for line in raised(MODEL, 100).splitlines()[3:]]
    assert lines[0] == "/models/m/1/model.py(4): helper"
    assert lines[1] == "/lib/library.py(2): down"
    assert len(lines) == LINES_MAX + 2
    assert lines[-1] == f"... and {103 - LINES_MAX} more calls"


@pytest.mark.parametrize(("listed", "left_out"), [("AB", ""), ("A", "B"), ("", "")])
def test_outputs_that_a_configuration_leaves_out(listed: str, left_out: str, tmp_path: Path) -> None:
    """One that lists none has them completed."""
    outputs = {name: TensorInfo(name, DataType.FP32, (-1,)) for name in "AB"}
    config = ModelConfig(name="m", output=tuple(ModelOutput(name=name, data_type=DataType.FP32, dims=(-1,)) for name in listed))
    lines: list[str] = []
    context = ModelContext(
        name="m",
        version=1,
        generation=1,
        config=config,
        model_directory=tmp_path,
        version_directory=tmp_path,
        log=lambda level, message: lines.append(f"{level}: {message}"),
    )
    warn_of_outputs_left_out(context, Signature(inputs={}, outputs=outputs))
    text = "warning: model 'm': its configuration leaves out B, which the model gives: clients cannot ask for what is not in it"
    assert lines == ([text] if left_out else [])
